"""The environment of the Recoverer's tests: machines of the BMDB, and a provider that has them all."""

from dataclasses import replace

from shepherd_core.bmdb.connection import Connection
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.remediation import Step
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
        self.limits = defaults.LIMITS
        self.look: Look | None = None
        """With which the Recoverer looks at machines."""

    @property
    def loop(self) -> Recoverer:
        """Return the loop as a cold function makes it."""
        policy = defaults.policy(self.policy) if isinstance(self.policy, str) else self.policy
        rules = replace(defaults.RULES, timeouts=TIMEOUTS, policy=policy, limits=self.limits)
        return Recoverer(self.provider, rules, self.look)

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
