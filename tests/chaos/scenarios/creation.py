"""The Provisioner at every simulated provider that makes machines: each is made once, whenever the function dies."""

from collections import Counter
from pathlib import Path
from typing import Any, get_args

from shepherd_core.domain.clock import SystemClock
from shepherd_core.providers.kit.context import ProviderContext
from shepherd_core.settings.providers import find
from shepherd_core.wiring import providers

from simulator.environment.machine_source import MachineSource, SourceSpec
from simulator.machines.pool import MachinePool
from simulator.providers import SimulatedProvider, machine_source
from simulator.providers.kit.hardware import NoHardware
from tests.chaos.crash_points import Points
from tests.chaos.stage.access import provision
from tests.chaos.stage.environment import Environment
from tests.support.bmdb.capacity import provided
from tests.support.bmdb.fleet import Fleet

MAKERS = tuple(
    name
    for name in get_args(SimulatedProvider)
    if machine_source(name).in_use is not MachineSource.in_use and name != "equinix"
)
"""Providers that make machines and keep their tokens, as their sources tell; Equinix has scenarios of its own."""
MACHINES = 3


class AtProvider(Environment):
    """An environment with a machine source, whose machines the invariants do not know."""

    source: MachineSource

    def close(self) -> None:
        self.source.close()
        super().close()


class Creating:
    """Free capacity for three machines at a provider."""

    def __init__(self, fleet: Fleet, provider: str) -> None:
        self.name = f"provisioner, {provider}"
        self._fleet = fleet
        self._spec = find(provider)

    def arrange(self) -> Environment:
        environment = AtProvider(self._fleet, SystemClock())
        pool: MachinePool = NoHardware()  # type: ignore[assignment]  # it is only used as hardware
        spec = SourceSpec(
            pool=pool, folder=Path("/unused"), machines=MACHINES, minute=0.001, address="127.0.0.1", faults=(), seed=0
        )
        environment.source = machine_source(self._spec.name)(spec)
        environment.source.__enter__()
        return environment

    def tick(self, environment: Environment, points: Points) -> object:
        assert isinstance(environment, AtProvider)
        source = environment.source
        given = {name.removeprefix("SHEPHERD_PROVIDER_").lower(): value for name, value in source.environment.items()}
        chosen: dict[str, Any] = {name: given[name] for name in self._spec.settings.model_fields if name in given}
        settings = self._spec.settings(**chosen)
        context = ProviderContext(
            clock=points.clock,
            read=lambda _: b"",
            read_secret=lambda name: source.secrets[name],
            invalidate_secret=lambda _: None,
            public_key=lambda: next(value for name, value in source.secrets.items() if name.endswith(".pub")),
        )
        provider = providers.build(self._spec, settings, context)
        return provision(provider, environment.connect(), points.clock, MACHINES)

    def missing(self, environment: Environment) -> list[str]:
        assert isinstance(environment, AtProvider)
        made = environment.source.in_use()
        recorded = {provider_id: str(machine_id) for provider_id, machine_id in provided(self._fleet).items()}
        tokens = Counter(token for token in made.values() if token is not None)
        found = [] if sum(tokens.values()) == MACHINES else [f"{sum(tokens.values())} of {MACHINES} machines exist"]
        found += [f"{count} machines carry {token}" for token, count in tokens.items() if count > 1]
        found += [f"{each} is recorded as {recorded.get(each)}" for each in made if recorded.get(each) != made[each]]
        intents = self._fleet.sql("SELECT machine_id FROM machine_creation_intent")
        return found + [f"the intent {row[0]} is still there" for row in intents]
