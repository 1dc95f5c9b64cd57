from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.machines import lookup
from shepherd_core.bmdb.machines.search import FoundMachine, Search, search
from shepherd_core.bmdb.recovery import budget
from shepherd_core.bmdb.session import Session
from shepherd_core.bmdb.wire import server
from shepherd_core.bmdb.work import work
from shepherd_core.bmdb.work.work import AgentStarted, Failure, Work
from shepherd_core.domain.budget import Brake
from shepherd_core.domain.clock import Deadline, Permission
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.domain.errors.bmdb import SessionExpired
from shepherd_core.domain.errors.machine import SshTimedOut
from shepherd_core.domain.machine import Process, ProviderId
from shepherd_core.domain.remediation import QUARANTINE, REBOOT, Step, StepKind, Timeouts, provider_steps
from shepherd_core.loops.base import Task
from shepherd_core.loops.dry_run import DryRun, dry_run
from shepherd_core.loops.look import Look
from shepherd_core.loops.recoverer import Recoverer
from shepherd_core.loops.runner import RunLimits
from shepherd_core.operator.adopt_forget import ActionOutcome
from shepherd_core.operator.reboot import Reboot
from shepherd_core.recovery import Steps
from shepherd_core.rules.policy import step_of
from shepherd_core.telemetry import Metric

from tests.conftest import ManualClock
from tests.support import defaults
from tests.support.bmdb.fleet import HOUR, PROVIDER, Fleet, claimed, invoke
from tests.support.providers.fake_provider import FakeSteps

MINUTE = 60
TICK_MINUTES = 4
"""Between two runs."""
EARLIER_TICK = """
INSERT INTO ticks (session_id, loop, provider, runtime_info, began_at, ended_at, outcome, counts)
SELECT gen_random_uuid(), 'updater', 'static', 'a test', at, at, 'Succeeded', '{}'
FROM (SELECT now() - interval '3 minutes' AS at) AS x
"""
"""Agents could report since: without it, no machine is interrupted at the first look."""
TIMEOUTS = replace(defaults.HEALTH, startup_timeout_seconds=30 * MINUTE, heartbeat_timeout_seconds=10 * MINUTE)


class RecoveryEnvironment:
    name = PROVIDER
    policy: str | tuple[Step, ...] = defaults.POLICY
    """As text, or steps that the product does not have."""
    failed_policy = ""
    limits = defaults.LIMITS
    after_outage = False
    """No function has reached the BMDB for a while."""
    look: Look | None = None
    """With which the Recoverer looks at machines."""

    def __init__(self, fleet: Fleet, clock: ManualClock) -> None:
        self.fleet = fleet
        self.clock = clock
        self.provider = FakeSteps()
        self.takes: dict[StepKind, Callable[[ProviderId, Permission], None]] = {}
        """How steps are taken for which the provider is not asked."""
        self.reporting: list[UUID] = []
        """The machines that report in each tick."""

    def begin_with_tickets(self) -> list[str]:
        """Let the policy begin with a step that only opens a ticket; return the machines that it was taken on."""
        told: list[str] = []

        def tell(machine: ProviderId, permission: Permission) -> None:
            permission.confirm()
            told.append(machine)

        ticket = StepKind(name="ticket", reboots=False, loses_agent=False)
        self.takes = {ticket: tell}
        timeouts = Timeouts(boot_wait=0, grace=30 * MINUTE, cooldown=0)
        self.policy = Step(ticket, 1, timeouts), Step(REBOOT, 1, timeouts), Step(QUARANTINE, 1, timeouts)
        return told

    @property
    def loop(self) -> Recoverer:
        policy = defaults.policy(self.policy) if isinstance(self.policy, str) else self.policy
        failed = defaults.policy(self.failed_policy) if self.failed_policy else ()
        timeouts = replace(TIMEOUTS, failed_steps=bool(failed))
        rules = replace(defaults.RULES, timeouts=timeouts, policy=policy, failed_policy=failed, limits=self.limits)
        return Recoverer(self.provider, provider_steps(self.provider) | self.takes, rules, self.look)

    def run(self, connection: Connection | None = None, concurrency: int = 10) -> dict[Metric, float]:
        """Run one invocation; unless the test is about an outage, another function reached the BMDB before."""
        if not self.after_outage:
            self.settle()
        used, limits = connection or self.fleet.connection, RunLimits(concurrency, 60, 60)
        return invoke(self.loop, used, self.clock, limits, provider=self.name)

    def begin(self, session: Session) -> tuple[Recoverer, Work, Task]:
        """Claim the unhealthy machine, and begin the work as the runner does; questions are answered at once."""
        (held,) = claimed(session, Process.RECOVERY)
        self.settle()
        loop = self.loop
        loop.admit(session, self.name)

        def ask(asked: object) -> None:
            refusal = loop.answer(session, {held: asked}).get(held, SessionExpired())  # type: ignore[dict-item]
            if refusal is not None:
                raise refusal

        deadline = Deadline(self.clock, 60, session.seconds_left)
        return loop, held, Task(held, deadline, loop.decide(session, [held])[held], ask)

    def settle(self) -> None:
        """Let another function have reached the BMDB a few minutes ago."""
        self.fleet.sql(EARLIER_TICK)

    def dry_run(self) -> DryRun:
        return dry_run(self.loop, self.name, self.fleet.connection, self.clock, RunLimits(10, 60, 60))

    def watch(self, minutes: float, every: float = TICK_MINUTES) -> dict[Metric, float]:
        """Let time pass, run the Recoverer *every* so many minutes and at last, and return the counts of that run."""
        counts: dict[Metric, float] = {}
        while minutes > 0:
            self.fleet.pass_time(min(minutes, every) * MINUTE)
            self.fleet.report(self.reporting)
            counts = self.run()
            minutes -= every
        return counts

    def add_reporting(self, count: int, location: str | None = None) -> None:
        self.reporting += self.fleet.machines(count, started_ago=3 * HOUR, reported_ago=0, location=location)

    def add_unhealthy(self, count: int, location: str | None = None) -> list[UUID]:
        return self.fleet.machines(count, started_ago=3 * HOUR, reported_ago=HOUR, location=location)

    def limited(self) -> dict[str, tuple[int, Brake]]:
        return {each.location: (each.per_hour, each.brake) for each in budget.shown_budgets(self.fleet.connection)}

    def provider_id(self, machine_id: UUID) -> str:
        return str(lookup.show_machine(self.fleet.connection, machine_id).provider_id)


class OneMachine(RecoveryEnvironment):
    """An unhealthy machine, and one that reports, without which nothing would be heard."""

    host_key: str | None = "ssh-ed25519 AAAA"
    """What the machine shows when its agent is started."""

    def __init__(self, fleet: Fleet, clock: ManualClock) -> None:
        super().__init__(fleet, clock)
        self.healthy = fleet.reporting_machine()
        self.reporting = [self.healthy]
        self.machine = fleet.unhealthy_machine()

    def lines(
        self, machine_id: UUID | None = None, process: Process = Process.RECOVERY
    ) -> list[tuple[str, str | None, str | None]]:
        rows = self.fleet.sql(
            "SELECT event, step, coalesce(seen, kind, failed_cause) FROM work_history "
            "WHERE machine_id = :id AND process = :process ORDER BY timestamp",
            id=machine_id or self.machine,
            process=process,
        )
        return [(event, step, cause) for event, step, cause in rows]

    def take_elsewhere(self) -> None:
        self.fleet.sql(
            "INSERT INTO work_history (machine_id, process, event, step) "
            "VALUES (:id, 'ShepherdRecovery', 'Finished', 'reboot')",
            id=self.healthy,
        )

    def start_agent(self, *, fails: bool = False, error: ShepherdError | None = None) -> bool:
        """Do the Initializer's work on the machine; False: it is not due for that."""
        session = self.fleet.open_session()
        found = [held for held in claimed(session, Process.AGENT_START) if held.machine_id == self.machine]
        if found and (fails or error):
            work.fail(session, {found[0]: Failure(error or SshTimedOut("no answer"), 300)})
        elif found:
            work.finish_agent_start(session, {found[0]: AgentStarted(bytes(32), self.host_key)})
        session.close()
        return bool(found)

    def seen(self, machine_id: UUID) -> FoundMachine:
        return search(self.fleet.connection, Search(machine_ids=(machine_id,)), None, 1).machines[0]

    def take(
        self,
        machine: UUID | FoundMachine,
        kind: StepKind = REBOOT,
        connection: Connection | None = None,
        seen_at: datetime | None = None,
    ) -> ActionOutcome:
        assert isinstance(self.policy, str)
        policy, used = defaults.policy(self.policy), connection or self.fleet.connection
        step = Reboot(
            provider=self.provider,
            connection=used,
            clock=self.clock,
            step=step_of(policy, kind),
            steps=Steps(provider_steps(self.provider), defaults.RULES.backoff),
            reset_after_seconds=defaults.RULES.reset_after_seconds,
            machine_seconds=60,
            session_seconds=60,
        )
        seen = self.seen(machine) if isinstance(machine, UUID) else machine
        (outcome,) = step.carry_out([seen], seen_at or server.now(used), "ana: new mainboard", "a test")
        return outcome
