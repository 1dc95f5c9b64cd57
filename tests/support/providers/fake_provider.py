"""Providers for tests of the loops: nothing of them is real."""

from collections import Counter
from collections.abc import Callable
from uuid import UUID

from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.errors.provider import ProviderError
from shepherd_core.domain.machine import Machine, ProviderId
from shepherd_core.domain.provider import Capability, Provider

from tests.support.bmdb.fleet import PROVIDER


class FakeProvider(Provider):
    """A provider that can do nothing. Methods that a test does not override fail it."""

    name = PROVIDER
    capabilities: frozenset[Capability] = frozenset()

    def list_machines(self, deadline: Deadline) -> list[Machine]:
        """Fail the test."""
        raise NotImplementedError

    def get_machine(self, provider_id: ProviderId, deadline: Deadline) -> Machine:
        """Fail the test."""
        raise NotImplementedError

    def create_machine(self, capacity: Machine, token: UUID, deadline: Deadline) -> Machine:
        """Fail the test."""
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

    def reboot(self, provider_id: ProviderId, deadline: Deadline) -> None:
        """Record it."""
        self._take("reboot", deadline)
        self.reboots[provider_id] += 1

    def power_cycle(self, provider_id: ProviderId, deadline: Deadline) -> None:
        """Record it."""
        self._take("power-cycle", deadline)

    def reinstall(self, provider_id: ProviderId, deadline: Deadline) -> None:
        """Record it."""
        self._take("reinstall", deadline)

    def _take(self, step: str, deadline: Deadline) -> None:
        self.before(step)
        deadline.confirm()
        self.asked.append(step)
        try:
            self.then(step)
        except ProviderError as error:
            if self.answers or not error.retryable:
                deadline.declined()
            raise


def refuse(error: Exception) -> Callable[[str], None]:
    """Return a function that raises *error*."""

    def then(_: str) -> None:
        raise error

    return then
