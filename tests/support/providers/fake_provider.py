import threading
from collections import Counter
from collections.abc import Callable
from ipaddress import ip_address
from uuid import UUID

from shepherd_core.domain.clock import Deadline, Permission
from shepherd_core.domain.errors.provider import CapacityTaken, MachineNotFound, ProviderError
from shepherd_core.domain.machine import INVALID, Availability, Machine, ProviderId, ProviderStatus
from shepherd_core.domain.provider import Capability, Provider

from tests.support.bmdb.fleet import PROVIDER


class FakeProvider(Provider):
    name = PROVIDER
    capabilities: frozenset[Capability] = frozenset()

    def list_machines(self, deadline: Deadline) -> list[Machine]:
        raise NotImplementedError

    def get_machine(self, provider_id: ProviderId, deadline: Deadline) -> Machine:
        raise NotImplementedError

    def create_machine(self, capacity: Machine, token: UUID, deadline: Deadline) -> Machine:
        raise NotImplementedError


class FakeSteps(FakeProvider):
    """A provider that records the remediation steps that it is asked for, and then does what the test says."""

    def __init__(self, *lacks: Capability) -> None:
        self.capabilities = frozenset({Capability.REBOOT, Capability.POWER_CYCLE, Capability.REINSTALL}) - set(lacks)
        self.asked: list[str] = []
        """The steps, in order."""
        self.reboots: Counter[str] = Counter()
        """By provider id; those that did not fail."""
        self.before: Callable[[str], object] = lambda _: None
        """Called before the request is sent."""
        self.then: Callable[[str], object] = lambda _: None
        """Called when it was sent."""
        self.answers = False
        """Whether it answers that it is unavailable; else no answer comes."""

    def reboot(self, provider_id: ProviderId, permission: Permission) -> None:
        self._take("reboot", permission)
        self.reboots[provider_id] += 1

    def power_cycle(self, provider_id: ProviderId, permission: Permission) -> None:
        self._take("power-cycle", permission)

    def reinstall(self, provider_id: ProviderId, permission: Permission) -> None:
        self._take("reinstall", permission)

    def _take(self, step: str, permission: Permission) -> None:
        self.before(step)
        permission.confirm()
        self.asked.append(step)
        try:
            self.then(step)
        except ProviderError as error:
            if self.answers or not error.retryable:
                permission.declined()
            raise


class Cloud(FakeProvider):
    """A provider in memory, for any thread: some capacity, and machines that carry the tokens of their creation."""

    name = "cloud"
    capabilities = frozenset({Capability.CREATE, Capability.RELEASE})

    def __init__(self, capacity: int) -> None:
        self.capacity = [f"place-{number}" for number in range(capacity)]
        self.machines: dict[ProviderId, Machine] = {}
        self._made = 0
        self._lock = threading.Lock()

    def add(self, token: UUID | None = None, place: str | None = None) -> ProviderId:
        self._made += 1
        made = ProviderId(f"machine-{self._made}")
        self.machines[made] = Machine(
            provider_id=made,
            availability=Availability.KNOWN_USED,
            address=ip_address(f"192.0.2.{self._made}"),
            reservation_id=place,
            location="da",
            status=ProviderStatus.PROVISIONING,
            token=token,
        )
        return made

    def list_machines(self, deadline: Deadline) -> list[Machine]:
        deadline.left()
        with self._lock:
            used = {machine.reservation_id for machine in self.machines.values()}
            free = [
                Machine(
                    provider_id=INVALID, availability=Availability.KNOWN_UNUSED, reservation_id=place, location="da"
                )
                for place in self.capacity
                if place not in used
            ]
            return [*self.machines.values(), *free]

    def get_machine(self, provider_id: ProviderId, deadline: Deadline) -> Machine:
        deadline.left()
        if provider_id not in self.machines:
            raise MachineNotFound(provider_id)
        return self.machines[provider_id]

    def create_machine(self, capacity: Machine, token: UUID, deadline: Deadline) -> Machine:
        deadline.check()
        with self._lock:
            on_it = [each for each in self.machines.values() if each.reservation_id == capacity.reservation_id]
            if any(each.token != token for each in on_it):
                raise CapacityTaken(f"{capacity.reservation_id} is in use")
            return on_it[0] if on_it else self.machines[self.add(token, capacity.reservation_id)]

    def release(self, provider_id: ProviderId, deadline: Deadline) -> None:
        deadline.check()
        self.machines.pop(provider_id, None)


def refuse(error: Exception) -> Callable[[str], None]:
    def then(_: str) -> None:
        raise error

    return then
