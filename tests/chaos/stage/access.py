"""How an invocation of a scenario reaches database, provider and machines; and what is given to its loops."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.wire.driver import TimeLimits
from shepherd_core.domain.backoff import Backoff
from shepherd_core.domain.clock import Clock, Deadline
from shepherd_core.domain.machine import Machine, ProviderId
from shepherd_core.domain.provider import Provider
from shepherd_core.loops import runner
from shepherd_core.loops.base import Loop
from shepherd_core.loops.initializer import StartOptions
from shepherd_core.loops.runner import RunLimits
from shepherd_core.loops.updater import Updater
from shepherd_core.providers.equinix.adapter import EquinixProvider
from shepherd_core.settings.functions.bmdb import BmdbSettings
from shepherd_core.settings.providers.equinix import EquinixSettings
from shepherd_core.telemetry import Metric

from simulator.providers.equinix.api import EquinixApi
from tests.chaos.stage.environment import (
    API_KEY,
    MACHINE_SECONDS,
    PREFIX,
    PROJECT,
    PUBLIC_KEY,
    SESSION_SECONDS,
    Environment,
)
from tests.support.bmdb.capacity import provisioner

INVOCATION_SECONDS = 600
START = StartOptions(
    path="/root/agent", endpoint="agents.example:443", answer_seconds=20, backoff=Backoff(300, 14_400, 1.2)
)


def equinix_settings(api: EquinixApi) -> EquinixSettings:
    return EquinixSettings(
        project=PROJECT, credential_parameter="/unused", fleet=PREFIX, key_name="shepherd", api_url=api.url
    )


class Answering(EquinixProvider):
    """A provider that calls ``happening`` while it is asked about a machine."""

    happening: Callable[[str], object] = staticmethod(lambda _: None)

    def get_machine(self, provider_id: ProviderId, deadline: Deadline) -> Machine:
        self.happening(provider_id)
        return super().get_machine(provider_id, deadline)


@dataclass
class Access:
    """Undisturbed by default."""

    bmdb: BmdbSettings | None = None
    """None: the fleet's database, without a proxy."""
    api_url: str | None = None
    """None: the URL of the environment's provider."""
    api_key: Callable[[], str] = lambda: API_KEY
    addresses: dict[str, str] = field(default_factory=dict)
    """Addresses that replace the real ones, by machine name."""
    agent_source: str | None = None
    """None: the scenario's agent."""
    prepare: Callable[[], object] = lambda: None
    """Called by the Initializer before anything else, once a machine is due."""
    password: Callable[[], str] | None = None
    limits: TimeLimits | None = None
    """None: a connection whose server process has served others."""
    machine_seconds: float = MACHINE_SECONDS
    answer_seconds: float = START.answer_seconds
    connect_seconds: float = 5.0

    def connect(self, environment: Environment) -> Connection:
        if self.limits is None:
            return environment.connect()
        settings = self.bmdb or environment.fleet.settings
        connection = Connection(settings, self.password, environment.clock, limits=self.limits)
        environment.fleet._connections.append(connection)
        return connection

    def equinix(self, environment: Environment, clock: Clock) -> Answering:
        settings = equinix_settings(environment.api)
        if self.api_url is not None:
            settings = settings.model_copy(update={"api_url": self.api_url})
        return Answering(settings, self.api_key, lambda: PUBLIC_KEY, clock)


def provision(provider: Provider, connection: Connection, clock: Clock, limit: int) -> Mapping[Metric, float]:
    """Invoke the Provisioner, with room for *limit* machines."""
    found = provisioner(provider, connection, clock, session_seconds=SESSION_SECONDS, max_machines=limit, chunk=2)
    return found.run(Deadline(clock, INVOCATION_SECONDS), "chaos")


def update(provider: Provider, connection: Connection, clock: Clock, steady_seconds: float) -> Mapping[Metric, float]:
    updater = Updater(provider, connection, clock, SESSION_SECONDS, steady_seconds)
    return updater.run(Deadline(clock, INVOCATION_SECONDS), "chaos")


def run(
    loop: Loop[Any],
    provider: str,
    connection: Connection,
    clock: Clock,
    at_once: int = 1,
    machine_seconds: float = MACHINE_SECONDS,
) -> Mapping[Metric, float]:
    """Invoke a loop that works on machines, *at_once* of them."""
    return runner.run(
        loop,
        provider,
        connection,
        clock,
        RunLimits(at_once, machine_seconds, SESSION_SECONDS),
        deadline=Deadline(clock, INVOCATION_SECONDS),
        runtime_info="chaos",
    )
