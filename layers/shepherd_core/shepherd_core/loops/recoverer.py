"""
The Recoverer: brings unhealthy machines back step by step, and quarantines those that stay unhealthy.

A machine that answers over SSH is not interrupted (``loops.look``). A step that interrupts
must be within the budget (``rules.budget``); else the machine waits, and is looked at again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING

from shepherd_core import telemetry
from shepherd_core.bmdb.recovery import budget, remediation
from shepherd_core.bmdb.work.work import Candidates
from shepherd_core.domain.budget import WHOLE_PROVIDER, Budget, where
from shepherd_core.domain.clock import Permission
from shepherd_core.domain.errors import HeldBack, NoLongerDue
from shepherd_core.domain.machine import WorkEvent
from shepherd_core.domain.remediation import QUARANTINE, LookTarget, NextStep
from shepherd_core.loops.base import Admission, Loop, log_failure
from shepherd_core.recovery import NotTaken, Outcome, Steps, Taken, position
from shepherd_core.rules.budget import BudgetLimits, budgets, permitted, shown
from shepherd_core.rules.policy import possible
from shepherd_core.rules.remediation import looks, next_step, uninterrupted
from shepherd_core.telemetry import Metric

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from uuid import UUID

    from shepherd_core.bmdb.recovery.remediation import RecoveryRecord
    from shepherd_core.bmdb.session import Session
    from shepherd_core.bmdb.work.work import Work
    from shepherd_core.domain.backoff import Backoff
    from shepherd_core.domain.clock import Deadline
    from shepherd_core.domain.health import HealthTimeouts
    from shepherd_core.domain.provider import Provider
    from shepherd_core.domain.remediation import Step, StepKind, Take
    from shepherd_core.loops.base import Task
    from shepherd_core.loops.look import Look


_WAIT_SECONDS = 300.0
"""After this time a machine that waits for the budget, or for another agent, is looked at again."""
_OUTAGE_SECONDS = 120.0
"""After an outage of ours, all agents report within about a minute: none waits longer to repeat a heartbeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryRules:
    """The rules of recovery."""

    timeouts: HealthTimeouts
    backoff: Backoff
    policy: Sequence[Step]
    limits: BudgetLimits
    reset_after_seconds: float
    """How long an agent must report until its machine's policy starts over."""
    failed_policy: Sequence[Step] = ()
    """For machines that their provider reports as failed for good; empty: nothing is done."""


class Recoverer(Loop[Outcome]):
    """Takes one step on each unhealthy machine, and does not wait: the Initializer starts agents later."""

    name = "recoverer"
    metrics = (Metric.NO_LONGER_DUE, Metric.HELD_BACK, Metric.NOT_TAKEN, Metric.FOUND_ALIVE)

    _settled: bool
    """Whether agents had time to report since an outage of ours; as ``admit`` read it."""

    def __init__(
        self, provider: Provider, takes: Mapping[StepKind, Take], rules: RecoveryRules, look: Look | None = None
    ) -> None:
        """Take steps with an effect outside as *takes* says; *look* before the provider is asked (None: do not)."""
        self.backoff = rules.backoff
        self._provider = provider
        self._takes = takes
        self._rules = rules
        self.timeouts = rules.timeouts
        self._look = look
        self._steps = Steps(takes, rules.backoff, provider)
        self._budgets: Mapping[str, Budget] = {}

    def admit(self, session: Session, provider: str) -> Admission:
        """Read the fleet, and judge the budgets. Every machine that may need recovery is admitted, to be looked at."""
        fleet = budget.read_fleet(session, provider)
        figures = {each.location: each for each in fleet if each.location is not None}
        self._settled = fleet[0].settled
        self._budgets = budgets(figures, self._rules.limits, was_silent=fleet[0].silent)
        limited = shown(self._budgets, figures)
        if limited or fleet[0].limited:
            budget.show_budgets(session, provider, limited)
        for location, each in limited.items():
            facts = {"steps_per_hour": each.per_hour, "brake": each.brake, "reason": each.reason}
            telemetry.warning("recovery limited", where=where(location), **facts)
        counts = {
            Metric.RECOVERY_LIMITED: len(limited),
            Metric.DEAD: sum(each.dead for each in figures.values()),
            Metric.QUARANTINED: fleet[0].quarantined,
            Metric.NO_ACCESS: fleet[0].no_access,
        }
        reasons = tuple(f"{where(location)}: {each.reason}" for location, each in limited.items())
        found = sorted((each for at in fleet for each in at.candidates), key=lambda each: -each.due_seconds)
        return Admission(Candidates(tuple(found), len(found)), reasons, counts)

    def prepare(self, deadline: Deadline) -> None:  # noqa: ARG002 - nothing takes time
        """Log the steps that the provider cannot take, and give the provider another chance."""
        self._steps = Steps(self._takes, self._rules.backoff, self._provider)
        for policy in (self._rules.policy, self._rules.failed_policy):
            for step in policy[:-1]:
                if step.kind not in possible(policy, self._provider.capabilities):
                    telemetry.warning("remediation step skipped: the provider cannot take it", step=step.name)

    def decide(self, session: Session, works: Sequence[Work]) -> Mapping[Work, NextStep]:
        """Choose each machine's next step."""
        records = remediation.recovery_records(session, works)
        failing = any(past.failed_agent for past in records.values())
        bad = remediation.bad_agents(session.connection) if failing else []
        decisions = {}
        for work, past in records.items():
            attempts, until = position(past, self._rules.reset_after_seconds)
            policy = (past.failed and self._rules.failed_policy) or self._rules.policy
            decision = next_step(policy, self._provider.capabilities, attempts, past.now)
            failed = past.failed_agent, past.failed_kind
            decisions[work] = replace(
                decision,
                healthy_until=until,
                look=self._target(work, past) if decision.interrupts else None,
                failed=past.failed,
                location=past.location,
                confirmed=_confirmed(past),
                bad_agent=next((each for each in bad if (each.agent_sha256, each.kind) == failed), None),
            )
        return decisions

    def _target(self, work: Work, past: RecoveryRecord) -> LookTarget | None:
        """Return where to look at a machine; None: it is not known, or there is no agent to look for."""
        if self._look is None or past.address is None or work.host_key is None:
            return None
        # One that failed at its provider may have run before, and may run still: what the provider says may be wrong.
        if past.started_at is None and not past.failed and not uninterrupted(past.history, past.rebooted_at):
            return None
        return LookTarget(past.address, work.host_key, looks(past.history, past.now))

    def answer(self, session: Session, asked: Mapping[Work, NextStep | None]) -> Mapping[Work, Exception | None]:
        """Record the steps that are about to be taken; None asks whether the machine may still be interrupted."""
        answers: dict[Work, Exception | None] = dict.fromkeys(work for work, step in asked.items() if step is None)
        if answers:
            answers |= remediation.no_longer_due(session, self._provider.name, list(answers))
        if steps := {work: step for work, step in asked.items() if step is not None}:
            asking = {work: step for work, step in steps.items() if step.interrupts}
            ready = {work.machine_id: each.location for work, each in asking.items() if self._may_interrupt(each)}
            permit = partial(permitted, ready, self._budgets, limits=self._rules.limits)
            recorded = remediation.permit_attempts(session, self._provider.name, steps, permit)
            answers |= {work: self._held_back(each) for work, each in asking.items()} | dict.fromkeys(recorded)
        return answers

    def _may_interrupt(self, decision: NextStep) -> bool:
        """Return whether agents had time to report, also after an outage of ours."""
        return self._settled or decision.confirmed

    def _held_back(self, decision: NextStep) -> HeldBack:
        if not self._may_interrupt(decision):
            return HeldBack("agents have two minutes to report after an outage of ours", _OUTAGE_SECONDS)
        tight, at = min(
            ((self._budgets.get(at, Budget(0)), at) for at in (decision.location, WHOLE_PROVIDER)),
            key=lambda each: (each[0].per_hour, each[0].brake is None),
        )
        reason = f", because {tight.reason}" if tight.brake else ""
        return HeldBack(f"the budget of {where(at)}, {tight.per_hour} an hour, is used up{reason}", _WAIT_SECONDS)

    def work_on(self, task: Task) -> Outcome:
        """Take the step that was decided, unless a look or the budget speaks against it."""
        work, decision = task.work, task.decision
        if decision.bad_agent is not None:
            return NotTaken(HeldBack(str(decision.bad_agent), _WAIT_SECONDS))
        try:
            if decision.look is not None and self._look is not None:
                decision = self._look.before(decision, decision.look, task.deadline)
            if not decision.concludes:
                task.ask(decision)
        except Exception as error:  # noqa: BLE001 - it is committed, and logged if it is a failure
            return NotTaken(error)
        told = {"machine_id": work.machine_id, "decision": str(decision), "looked": decision.looked}
        telemetry.info("remediation step", **told)
        return self._steps.take(work, decision, Permission(task.deadline, partial(task.ask, None)))

    def finish(self, session: Session, done: Mapping[Work, Outcome]) -> set[UUID]:
        """Commit what came of the steps."""
        quarantined: dict[Work, str] = {}
        for work, outcome in done.items():
            if isinstance(outcome, Taken):
                if outcome.decision.step.kind is QUARANTINE:
                    quarantined[work] = outcome.decision.summary
            elif isinstance(outcome.error, NoLongerDue):
                telemetry.info("work no longer needed", machine_id=work.machine_id, reason=outcome.error)
            else:
                log_failure(work, outcome.error, self.backoff.next(work.last_interval_seconds))
        ended = self._steps.finish(session, {work: each for work, each in done.items() if work not in quarantined})
        return ended | remediation.quarantine(session, quarantined) if quarantined else ended

    def counted_as(self, result: Outcome) -> Collection[Metric]:
        """Return what the outcome of a step is counted as."""
        if isinstance(result, Taken):
            return (Metric.FINISHED, Metric.FOUND_ALIVE) if result.decision.alive else (Metric.FINISHED,)
        if isinstance(result.error, NoLongerDue):
            return (Metric.HELD_BACK if isinstance(result.error, HeldBack) else Metric.NO_LONGER_DUE,)
        not_taken = isinstance(result, NotTaken) and result.recorded
        return (Metric.FAILED, Metric.NOT_TAKEN) if not_taken else (Metric.FAILED,)


def _confirmed(past: RecoveryRecord) -> bool:
    """Return whether a look since its last heartbeat and step found the machine dead, two minutes ago or more."""
    since = past.last_heartbeat_at or past.started_at
    return any(
        line.step is None
        and (since is None or line.at > since)
        and (past.now - line.at).total_seconds() >= _OUTAGE_SECONDS
        for line in takewhile(lambda line: line.event == WorkEvent.LOOKED, reversed(past.history))
    )
