import json
from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import UUID

from shepherd_core.bmdb.connection import Connection
from shepherd_core.domain.clock import Clock, Deadline
from shepherd_core.domain.machine import Machine, ProviderId
from shepherd_core.domain.provider import Capability, Provider
from shepherd_core.loops.provisioner import Provisioner, RateLimits
from shepherd_core.providers.static import StaticProvider
from shepherd_core.rules.provisioning import PlanLimits

from tests.support.bmdb.fleet import HOUR, Fleet
from tests.support.providers.fake_provider import Cloud


def provisioner(
    provider: Provider,
    connection: Connection,
    clock: Clock,
    *,
    session_seconds: float = 60,
    creation_seconds: float = 0,
    boot_seconds: float | None = None,
    **limits: Any,
) -> Provisioner:
    """Return a Provisioner; *limits* are those of its plan that are not the usual ones."""
    usual = {"max_machines": 0, "chunk": 20, "drift_limit": 3, "assimilate": False, "abandon_seconds": HOUR}
    pace = RateLimits(
        session_seconds=session_seconds,
        creation_seconds=creation_seconds,
        penalty_seconds=HOUR,
        boot_seconds=boot_seconds,
    )
    return Provisioner(provider, connection, clock, PlanLimits(**{**usual, **limits}), pace)


class Killed(BaseException):
    """The process ends in the middle of what it does."""


class Edge(Provider):
    """A provider with hooks before and after its calls, by the names of the methods."""

    name = ""
    capabilities: frozenset[Capability] = frozenset()

    def __init__(self, provider: Provider) -> None:
        self.name = provider.name
        self.capabilities = provider.capabilities
        self.before: dict[str, Callable[[], object]] = {}
        self.after: dict[str, Callable[[], object]] = {}
        self.calls: Counter[str] = Counter()
        self._provider = provider

    def list_machines(self, deadline: Deadline) -> list[Machine]:
        return self._call("list_machines", deadline)  # type: ignore[no-any-return]  # the method of that name does

    def get_machine(self, provider_id: ProviderId, deadline: Deadline) -> Machine:
        return self._call("get_machine", provider_id, deadline)  # type: ignore[no-any-return]  # as above

    def create_machine(self, capacity: Machine, token: UUID, deadline: Deadline) -> Machine:
        return self._call("create_machine", capacity, token, deadline)  # type: ignore[no-any-return]  # as above

    def release(self, provider_id: ProviderId, deadline: Deadline) -> None:
        self._call("release", provider_id, deadline)

    def _call(self, method: str, *arguments: object) -> Any:
        self.calls[method] += 1
        if method in self.before:
            self.before[method]()
        result = getattr(self._provider, method)(*arguments)
        if method in self.after:
            self.after[method]()
        return result


def failing(error: BaseException, times: int = 1) -> Callable[[], None]:
    """Return a hook that raises *error* so many *times* (0: always)."""
    left = iter(range(times)) if times else iter(int, 1)

    def fail() -> None:
        if next(left, None) is not None:
            raise error

    return fail


def static(names: list[str]) -> Edge:
    """Return a provider of the machines that *names* has when it is asked."""

    def listed() -> bytes:
        return json.dumps([{"ID": name, "Addr": f"192.0.2.{ord(name[0])}"} for name in names]).encode()

    return Edge(StaticProvider(listed))


def provided(fleet: Fleet) -> dict[str, UUID]:
    return {row[0]: row[1] for row in fleet.sql("SELECT provider_id, machine_id FROM machine_provided")}


def intents(fleet: Fleet) -> list[UUID]:
    return [row[0] for row in fleet.sql("SELECT machine_id FROM machine_creation_intent")]


def assert_settled(fleet: Fleet, cloud: Cloud, machines: int) -> None:
    assert len(cloud.machines) == machines
    assert {provider_id: machine.token for provider_id, machine in cloud.machines.items()} == provided(fleet)
    assert len({machine.reservation_id for machine in cloud.machines.values()}) == machines
    assert intents(fleet) == []
    assert fleet.sql("SELECT count(*) FROM machines") == [[machines]]
