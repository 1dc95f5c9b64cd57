"""The environment of the Recoverer's tests: machines of the BMDB, and a provider that has them all."""

from collections.abc import Callable
from dataclasses import replace

from shepherd_core.bmdb.connection import Connection
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.machine import ProviderId
from shepherd_core.domain.remediation import QUARANTINE, REBOOT, Step, StepKind, Timeouts, provider_steps
from shepherd_core.loops import runner
from shepherd_core.loops.look import Look
from shepherd_core.loops.recoverer import Recoverer
from shepherd_core.loops.runner import RunLimits
from shepherd_core.telemetry import Metric

from tests.conftest import ManualClock
from tests.support import defaults
from tests.support.bmdb.fleet import PROVIDER, Fleet
from tests.support.providers.fake_provider import FakeSteps

MINUTE = 60
TIMEOUTS = replace(defaults.HEALTH, startup_timeout_seconds=30 * MINUTE, heartbeat_timeout_seconds=10 * MINUTE)


class RecoveryEnvironment:
    """A Recoverer with the default policy and limits, unless the test changes them."""

    def __init__(self, fleet: Fleet, clock: ManualClock) -> None:
        self.fleet = fleet
        self.clock = clock
        self.provider = FakeSteps()
        self.policy: str | tuple[Step, ...] = defaults.POLICY
        """As text, or steps that the product does not have."""
        self.takes: dict[StepKind, Callable[[ProviderId, Deadline], None]] = {}
        """How steps are taken for which the provider is not asked."""
        self.limits = defaults.LIMITS
        self.look: Look | None = None
        """With which the Recoverer looks at machines."""

    def begin_with_tickets(self) -> list[str]:
        """Let the policy begin with a step that only tells somebody, and return the machines that it was taken on."""
        told: list[str] = []

        def tell(machine: ProviderId, deadline: Deadline) -> None:
            deadline.confirm()
            told.append(machine)

        ticket = StepKind(name="ticket", reboots=False, loses_agent=False)
        self.takes = {ticket: tell}
        timeouts = Timeouts(boot_wait=0, grace=30 * MINUTE, cooldown=0)
        self.policy = Step(ticket, 1, timeouts), Step(REBOOT, 1, timeouts), Step(QUARANTINE, 1, timeouts)
        return told

    @property
    def loop(self) -> Recoverer:
        """Return the loop as a cold function makes it."""
        policy = defaults.policy(self.policy) if isinstance(self.policy, str) else self.policy
        rules = replace(defaults.RULES, timeouts=TIMEOUTS, policy=policy, limits=self.limits)
        return Recoverer(self.provider, provider_steps(self.provider) | self.takes, rules, self.look)

    def run(self, connection: Connection | None = None, concurrency: int = 10) -> dict[Metric, float]:
        """Run one invocation."""
        return runner.run(
            self.loop,
            PROVIDER,
            connection or self.fleet.connection,
            self.clock,
            RunLimits(concurrency, 60, 60),
            deadline=Deadline(self.clock, 600),
            runtime_info="a test",
        )
