"""
The remediation policy's next step for a machine, after the attempts that its history holds. Pure rules.

A machine's position in the policy is never stored. The power state of a machine is not used:
it is often unknown, and being unhealthy is reason enough.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from shepherd_core.domain.errors import Fault
from shepherd_core.domain.errors.kinds import FailureKind
from shepherd_core.domain.machine import WorkEvent
from shepherd_core.domain.remediation import QUARANTINE, RELEASE, RESTART_AGENT, STEPS, NextStep, PastAttempt, Step
from shepherd_core.rules.policy import possible, step_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from datetime import datetime

    from shepherd_core.domain.provider import Capability
    from shepherd_core.domain.remediation import AgentState, HistoryLine

_ABOUT_THE_MACHINE = {FailureKind.PROVIDER_REFUSED, FailureKind.MACHINE_NOT_FOUND, FailureKind.NOT_SUPPORTED}
"""Answers of the provider that are about one machine."""
REFUSALS = {*_ABOUT_THE_MACHINE, FailureKind.PROVIDER_FORBIDDEN, FailureKind.PROVIDER_UNUSABLE}
"""All answers with which the provider refuses a step."""
_DAY_SECONDS = 86_400


def past_attempts(history: Iterable[HistoryLine]) -> list[PastAttempt]:
    """
    Return the attempts since the policy last started over that count or may be under way; both oldest first.

    An attempt that failed after its request was sent is not concluded: the step may have been taken. If a later session
    fails before it begins an attempt, that says nothing about the last attempt. Lines with the same time may come in
    any order.
    """
    attempts: list[PastAttempt] = []
    restarted = False
    for line in history:
        last = attempts[-1] if attempts else None
        match line.event:
            case WorkEvent.LOOKED:
                restarted = line.step is not None
            case WorkEvent.FINISHED | WorkEvent.FAILED if restarted:  # it ends no attempt
                restarted = False
            case WorkEvent.HEALTHY | WorkEvent.UNQUARANTINED:
                attempts = []
            case WorkEvent.ATTEMPTED if line.step is not None:
                restarted = False
                attempts.append(PastAttempt(line.step, line.at, session_id=line.session_id))
            case WorkEvent.NOT_TAKEN if last:
                counts = line.fault is Fault.PROVIDER and _counts(line, last)  # else the provider was not asked
                attempts[-1] = replace(last, failed=line.kind, concluded=True, counts=counts)
            case WorkEvent.FAILED if last and line.session_id != last.session_id:
                pass
            case WorkEvent.FINISHED | WorkEvent.FAILED if last and not last.concluded:
                concluded = line.event == WorkEvent.FINISHED or line.kind in _ABOUT_THE_MACHINE
                attempts[-1] = replace(last, failed=line.kind, concluded=concluded, counts=_counts(line, last))
    return [attempt for attempt in attempts if attempt.counts or not attempt.concluded]


def _counts(end: HistoryLine, attempt: PastAttempt) -> bool:
    """
    Return whether an *attempt* with this *end* counts: it did not fail, or the failure is about this machine.

    If the provider is to blame, as for a lost answer or a refusal of our credential, it counts only if the provider
    took steps on other machines before and after: else its outage would bring all unhealthy machines into quarantine.
    For a release it never counts: the machine may be gone, which only another request tells.
    """
    if end.fault is not Fault.PROVIDER or end.kind in _ABOUT_THE_MACHINE:
        return True
    return end.others_taken and attempt.step != RELEASE.name


def looks(history: Iterable[HistoryLine], now: datetime) -> Counter[AgentState | None]:
    """Return what looks saw in the last day, and how often, after which the machine was not interrupted."""
    return Counter(
        line.seen
        for line in history
        if line.event == WorkEvent.LOOKED and line.step and (now - line.at).total_seconds() < _DAY_SECONDS
    )


def uninterrupted(history: Iterable[HistoryLine], rebooted_at: datetime | None) -> bool:
    """
    Return whether the machine was left alone when it lost its agent's facts: the agent may still run, or install.

    So do a restart of the agent and the end of a quarantine. *rebooted_at*: when it was interrupted last.
    """
    return any(
        (line.event == WorkEvent.UNQUARANTINED or line.step == RESTART_AGENT.name)
        and (rebooted_at is None or line.at > rebooted_at)
        for line in history
    )


def next_step(
    policy: Sequence[Step],
    capabilities: Collection[Capability],
    attempts: Sequence[PastAttempt],
    now: datetime,
) -> NextStep:
    """
    Return the step to take on a machine after these *attempts*, oldest first.

    It never goes back: a step before the furthest that was attempted is not taken again, even if the policy changed.
    A step whose outcome is unknown is waited for; a release is asked for again.
    """
    taken_kinds = possible(policy, capabilities)
    counted = [attempt for attempt in attempts if attempt.counts]
    if attempts and not attempts[-1].concluded and (kind := STEPS.get(attempts[-1].step)) not in (None, QUARANTINE):
        step = step_of(policy, kind)
        if kind is RELEASE and kind in taken_kinds:
            return NextStep(step, min(max(1, _used(step, counted)), step.attempts))  # the same attempt again
        if kind is not RELEASE and (now - attempts[-1].at).total_seconds() < step.timeouts.grace:
            return NextStep(step, max(1, _used(step, counted)), concludes=True)
    taken = {attempt.step for attempt in counted}
    furthest = max((position for position, step in enumerate(policy) if step.name in taken), default=0)
    for step in policy[furthest:]:
        if step.kind in taken_kinds and (used := _used(step, counted)) < step.attempts:
            return NextStep(step, used + 1)
    return NextStep(policy[-1], 1, summary=_summary(policy, counted))


def _used(step: Step, attempts: Iterable[PastAttempt]) -> int:
    """Return how many attempts at the step are used up."""
    if any(each.step == step.name and each.failed is FailureKind.NOT_SUPPORTED for each in attempts):
        return step.attempts
    return len(_counted_once(attempts, step.name, step.timeouts.grace))


def _counted_once(attempts: Iterable[PastAttempt], step: str, grace: float) -> list[PastAttempt]:
    """Return those of *attempts* at this *step* that count: failed ones count once within *grace* seconds."""
    counted: list[PastAttempt] = []
    for each in (attempt for attempt in attempts if attempt.step == step):
        if each.failed is None or not counted or (each.at - counted[-1].at).total_seconds() >= grace:
            counted.append(each)
    return counted


def _summary(policy: Iterable[Step], attempts: Sequence[PastAttempt]) -> str:
    """Return what used up the policy, for people."""
    graces = {step.name: step.timeouts.grace for step in policy}
    tried = Counter(
        (_outcome(each), name)
        for name in dict.fromkeys(attempt.step for attempt in attempts if attempt.step != QUARANTINE.name)
        for each in _counted_once(attempts, name, graces.get(name, 0))
    )
    parts = (
        f"{outcome} " + ", ".join(f"{step} {n} time{'s' * (n > 1)}" for (of, step), n in tried.items() if of == outcome)
        for outcome in sorted({outcome for outcome, _ in tried})
    )
    return "; ".join(parts) or "no step of the policy can be taken"


def _outcome(attempt: PastAttempt) -> str:
    if attempt.failed is None:
        return "still unhealthy after"
    return "the provider refused" if attempt.failed in REFUSALS else "the provider did not answer"
