"""
The remediation policy's next step for a machine, after the attempts that count.

The power state of the machine is not used: it is often unknown, and being
unhealthy is reason enough. These are pure rules.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from shepherd_core.domain.errors.kinds import FailureKind
from shepherd_core.domain.remediation import QUARANTINE, STEPS, NextStep, PastAttempt, Step
from shepherd_core.rules.attempts import REFUSALS
from shepherd_core.rules.policy import possible, step_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from datetime import datetime

    from shepherd_core.domain.provider import Capability


def next_step(
    policy: Sequence[Step],
    capabilities: Collection[Capability],
    attempts: Sequence[PastAttempt],
    now: datetime,
) -> NextStep:
    """
    Return the step to take on a machine after these *attempts*, oldest first; see ``attempts.past_attempts``.

    It never goes back: a step before the furthest one that was attempted is not
    taken again, even if the policy has changed since.
    """
    counted = [attempt for attempt in attempts if attempt.counts]
    if attempts and not attempts[-1].concluded and (kind := STEPS.get(attempts[-1].step)) not in (None, QUARANTINE):
        step = step_of(policy, kind)
        if (now - attempts[-1].at).total_seconds() < step.timeouts.grace:
            return NextStep(step, max(1, _used(step, counted)), concludes=True)
    taken = {attempt.step for attempt in counted}
    furthest = max((position for position, step in enumerate(policy) if step.name in taken), default=0)
    for step in policy[furthest:]:
        if step.kind in possible(policy, capabilities) and (used := _used(step, counted)) < step.attempts:
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
