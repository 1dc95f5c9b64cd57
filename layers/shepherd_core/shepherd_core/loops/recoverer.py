"""
The Recoverer: brings unhealthy machines back step by step, and quarantines those that stay unhealthy.

The next step follows from the machine's history; ``rules.remediation`` has the
rules. A step is recorded before it is taken, and its outcome afterwards. If the
function is killed in between, it is unknown whether the step was taken: then it
is not repeated, and the machine is waited for as after any step. Just before a
step the machine's health is checked once more: a machine that reports again, or
was paused, is left alone; if it answers over SSH, only its agent is started anew
(``loops.look``). A step that the provider certainly did not take is not an attempt.
If the provider fails for several machines, it is not asked for the rest.

A step that interrupts must be within the budget (``rules.budget``); else the machine
waits, and is looked at again. After an outage of ours, agents have two minutes to
report before anything is interrupted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from shepherd_core import telemetry
from shepherd_core.bmdb.recovery import budget, remediation
from shepherd_core.bmdb.work.work import Candidates, finish_recovery
from shepherd_core.domain.budget import WHOLE_PROVIDER, Budget, where
from shepherd_core.domain.errors import HeldBack, ShepherdError, TimeLimitExceeded
from shepherd_core.domain.errors.provider import (
    MachineNotFound,
    NotSupported,
    ProviderRefused,
    ProviderUnavailable,
    ProviderUnusable,
)
from shepherd_core.domain.machine import WorkEvent
from shepherd_core.domain.remediation import QUARANTINE, AgentState, LookTarget, NextStep
from shepherd_core.loops.base import Admission, Loop
from shepherd_core.loops.provider_outage import ProviderOutage
from shepherd_core.rules.attempts import healthy_until, looks, past_attempts, uninterrupted
from shepherd_core.rules.budget import BudgetLimits, budgets, permitted
from shepherd_core.rules.policy import possible
from shepherd_core.rules.remediation import next_step
from shepherd_core.telemetry import Metric

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from shepherd_core.bmdb.recovery.remediation import RecoveryRecord, Unneeded
    from shepherd_core.bmdb.session import Session
    from shepherd_core.bmdb.work.work import Work
    from shepherd_core.domain.backoff import Backoff
    from shepherd_core.domain.clock import Deadline, Permission
    from shepherd_core.domain.errors import NoLongerDue
    from shepherd_core.domain.health import HealthTimeouts
    from shepherd_core.domain.machine import ProviderId
    from shepherd_core.domain.provider import Provider
    from shepherd_core.domain.remediation import Step, StepKind, Take
    from shepherd_core.loops.base import Task
    from shepherd_core.loops.look import Look


_WAIT_SECONDS = 300.0
"""After this time a machine that waits for the budget is looked at again: it may have been switched on."""
_OUTAGE_SECONDS = 120.0
"""After an outage of ours, all agents report within about a minute: none waits longer to repeat a heartbeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryRules:
    """The rules of recovery."""

    timeouts: HealthTimeouts
    backoff: Backoff
    """How long to leave a machine alone after a failure."""
    policy: Sequence[Step]
    limits: BudgetLimits
    reset_after_seconds: float
    """How long an agent must report until its machine's policy starts over."""


class Recoverer(Loop[NextStep]):
    """Takes one step on each unhealthy machine, and does not wait: the Initializer starts agents later."""

    name = "recoverer"

    def __init__(
        self, provider: Provider, takes: Mapping[StepKind, Take], rules: RecoveryRules, look: Look | None = None
    ) -> None:
        """
        Take the steps of the policy; *takes* says how those are taken that have an effect outside.

        *look* at each machine before a step for which the provider is asked; None: do not.
        """
        self.backoff = rules.backoff
        self._provider = provider
        self._takes = takes
        self._rules = rules
        self.timeouts = rules.timeouts
        self._look = look
        self._outage = ProviderOutage()
        self._budgets: Mapping[str, Budget] = {}
        self._settled = True
        self.guard = self

    def admit(self, session: Session, provider: str) -> Admission:
        """Read the fleet, and judge the budgets. Every machine that may need recovery is admitted, to be looked at."""
        fleet = budget.read_fleet(session, provider)
        self._settled, self._budgets = (
            fleet.settled,
            budgets(fleet.figures, self._rules.limits, was_silent=fleet.silent),
        )
        limited = {location: each for location, each in self._budgets.items() if each.brake}
        if limited or fleet.limited:
            budget.show_budgets(session, provider, limited)
        for location, each in limited.items():
            telemetry.warning(
                "recovery limited",
                where=where(location),
                steps_per_hour=each.per_hour,
                brake=each.brake,
                reason=each.reason,
            )
        counts = {
            Metric.RECOVERY_LIMITED: len(limited),
            Metric.DEAD: sum(each.dead for each in fleet.figures.values()),
            Metric.QUARANTINED: fleet.quarantined,
            Metric.NO_ACCESS: fleet.no_access,
        }
        reasons = tuple(f"{where(location)}: {each.reason}" for location, each in sorted(limited.items()))
        return Admission(Candidates(fleet.candidates, len(fleet.candidates)), reasons, counts)

    def prepare(self, deadline: Deadline) -> None:  # noqa: ARG002 - nothing takes time
        """Log the steps that the provider cannot take, and give the provider another chance."""
        self._outage = ProviderOutage()
        steps = possible(self._rules.policy, self._provider.capabilities)
        for step in self._rules.policy[:-1]:
            if step.kind not in steps:
                telemetry.warning("remediation step skipped: the provider cannot take it", step=step.name)

    def decide(self, session: Session, works: Sequence[Work]) -> Mapping[Work, NextStep]:
        """Choose each machine's next step. Record that it will be attempted, unless a look comes first."""
        rules, provider = self._rules, self._provider
        decisions: dict[Work, NextStep] = {}
        records = remediation.recovery_records(session, works)
        for work, past in records.items():
            attempts = past_attempts(past.history)
            until = healthy_until(attempts, past.started_at, past.last_heartbeat_at, rules.reset_after_seconds)
            counted = attempts if until is None else []
            decision = next_step(rules.policy, provider.capabilities, provider.name, counted, past.now)
            look = self._target(work, past) if decision.step.kind.needs and not decision.concludes else None
            decisions[work] = replace(
                decision,
                healthy_until=until,
                look=look,
                location=past.location,
                confirmed=_confirmed(past),
            )
        at_once = {work: each for work, each in decisions.items() if not each.interrupts}
        recorded = self.record(session, at_once)
        return {work: each for work, each in decisions.items() if work not in at_once or work in recorded}

    def record(self, session: Session, decisions: Mapping[Work, NextStep]) -> Mapping[Work, ShepherdError | None]:
        """Record that these steps will be attempted; those that interrupt must be within the budget."""
        asked = {work: each for work, each in decisions.items() if each.interrupts}
        others = {work: each for work, each in decisions.items() if work not in asked}
        answers: dict[Work, ShepherdError | None] = {}
        if others:
            answers |= dict.fromkeys(remediation.record_attempts(session, others))
        if asked:
            ready = {work.machine_id: each.location for work, each in asked.items() if self._settled or each.confirmed}

            def permit(steps: Mapping[str, tuple[int, int]]) -> set[UUID]:
                return permitted(ready, self._budgets, steps, self._rules.limits)

            taken = set(remediation.permit_attempts(session, self._provider.name, asked, permit))
            answers |= {
                work: None if work in taken else self._held_back(each, ready=work.machine_id in ready)
                for work, each in asked.items()
            }
        return answers

    def _held_back(self, decision: NextStep, *, ready: bool) -> HeldBack:
        if not ready:
            return HeldBack("agents have two minutes to report after an outage of ours", _OUTAGE_SECONDS)
        near, whole = (self._budgets.get(at, Budget(0)) for at in (decision.location, WHOLE_PROVIDER))
        tight, at = min(
            (near, decision.location),
            (whole, WHOLE_PROVIDER),
            key=lambda each: (each[0].per_hour, each[0].brake is None),
        )
        reason = f", because {tight.reason}" if tight.brake else ""
        return HeldBack(f"the budget of {where(at)}, {tight.per_hour} an hour, is used up{reason}", _WAIT_SECONDS)

    def _target(self, work: Work, past: RecoveryRecord) -> LookTarget | None:
        """
        Return where to look at a machine; None: it is not known, or there is no agent to look for.

        A restart of the agent, or the end of a quarantine, deletes the agent's facts but not the agent. It may run
        although the Initializer could not start another one, as during an installation.
        """
        if self._look is None or past.address is None or work.host_key is None:
            return None
        if past.started_at is None and not uninterrupted(past.history):
            return None
        before = partial(looks, past.history, past.now)
        return LookTarget(
            past.address,
            work.host_key,
            restarts=before(AgentState.ENDED),
            waits=before(AgentState.INSTALLS),
        )

    def work_on(self, task: Task) -> NextStep:
        """Take the step that was decided. The provider is asked at most once for a step that it accepts."""
        work = task.work
        decision: NextStep = task.decision
        permission = task.permission
        assert permission is not None  # the runner gives one where there is a guard
        if decision.look is not None and self._look is not None:
            decision = self._look.before(decision, decision.look, task.deadline)
            task.found_alive = decision.alive
        if decision.interrupts or decision.alive:
            try:
                task.record(decision)
            except (TimeLimitExceeded, HeldBack):
                task.keeps_host_key = True  # the attempt may be recorded, but nothing was done
                raise
        telemetry.info(
            "remediation step",
            machine_id=work.machine_id,
            decision=str(decision),
            skipped=decision.skipped,
            looked=decision.looked,
        )
        try:
            if decision.concludes or decision.step.kind not in self._takes:
                permission.confirm()
            else:
                self._take(decision.step.kind, work.provider_id, permission)
        except Exception as error:
            if not (decision.concludes or decision.alive or permission.interrupted):
                task.not_taken = decision.step.name
                task.keeps_host_key = True  # nothing was done
                raise
            if decision.concludes or decision.alive or not isinstance(error, ProviderUnavailable):
                raise
            # The step may have been taken: ask again only after the grace, as if it was.
            telemetry.warning("remediation step: no answer", machine_id=work.machine_id, cause=error)
            return replace(decision, lost_answer=error)
        return decision

    def _take(self, kind: StepKind, provider_id: ProviderId | None, permission: Permission) -> None:
        """Take a step, unless it needs the provider and the provider has an outage."""
        if provider_id is None:
            message = "the machine is not provided: it has no provider id"
            raise MachineNotFound(message)
        if kind.needs is None:
            self._takes[kind](provider_id, permission)
            return
        self._outage.check()
        permission.deadline.check()
        try:
            self._takes[kind](provider_id, permission)
        except (ProviderUnavailable, ProviderUnusable) as error:
            self._outage.failed(error)
            raise
        except (ProviderRefused, NotSupported, MachineNotFound):
            self._outage.answered()
            raise
        self._outage.answered()

    def no_longer_due(self, session: Session, works: Sequence[Work]) -> Mapping[Work, NoLongerDue]:
        """Return the machines that report again, or must not be recovered for another reason."""
        return remediation.no_longer_due(session, self._provider.name, works)

    def end_unneeded(self, session: Session, unneeded: Mapping[Work, Unneeded]) -> set[UUID]:
        """End the work on machines that are no longer due; nothing was done to them."""
        return remediation.end_unneeded(session, unneeded)

    def finish(self, session: Session, done: Mapping[Work, NextStep]) -> set[UUID]:
        """Delete the facts of lost agents, so that the machines need an agent start; or quarantine machines."""
        quarantined = {work: each.summary for work, each in done.items() if each.step.kind is QUARANTINE}
        ended: set[UUID] = set()
        if quarantined:
            ended |= remediation.quarantine(session, quarantined)
            for work, cause in quarantined.items():
                if work.machine_id in ended:
                    telemetry.warning("machine quarantined", machine_id=work.machine_id, cause=cause)
        for step in {each.step for work, each in done.items() if work not in quarantined}:
            ended |= finish_recovery(
                session,
                [work for work, each in done.items() if each.step == step],
                step.timeouts.boot_wait,
                grace_seconds=step.timeouts.grace,
                cooldown_seconds=step.timeouts.cooldown,
                kind=step.kind,
                lost_answers={work: each.lost_answer for work, each in done.items() if each.lost_answer is not None},
            )
        return ended


def _confirmed(past: RecoveryRecord) -> bool:
    """
    Return whether an earlier look, two minutes ago or more, found the machine dead: so it had time to report.

    Looks before its last step say nothing: it may have come back since.
    """
    others = (line.at for line in past.history if line.event != WorkEvent.LOOKED)
    since = max((at for at in (past.started_at, past.last_heartbeat_at, *others) if at is not None), default=None)
    return any(
        line.event == WorkEvent.LOOKED
        and line.step is None
        and (since is None or line.at > since)
        and (past.now - line.at).total_seconds() >= _OUTAGE_SECONDS
        for line in past.history
    )
