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
    names = [step.name for step in policy]
    counted = [attempt for attempt in attempts if attempt.counts]
    positions = [names.index(attempt.step) for attempt in counted if attempt.step in names]
    if attempts and not attempts[-1].concluded and (kind := STEPS.get(attempts[-1].step)) not in (None, QUARANTINE):
        step = step_of(policy, kind)
        if (now - attempts[-1].at).total_seconds() < step.timeouts.grace:
            return NextStep(step, max(1, _used(step, counted)), concludes=True)
    furthest = max(positions, default=0)
    for position, step in enumerate(policy):
        if position < furthest or step.kind not in possible(policy, capabilities):
            continue
        if (used := _used(step, counted)) < step.attempts:
            return NextStep(step, used + 1)
    return NextStep(policy[-1], 1, summary=_summary(policy, counted))


def _used(step: Step, attempts: Iterable[PastAttempt]) -> int:
    """Return how many attempts at the step are used up."""
    own = [attempt for attempt in attempts if attempt.step == step.name]
    if any(attempt.failed is FailureKind.NOT_SUPPORTED for attempt in own):
        return step.attempts
    return len(_counted_once(own, step.timeouts.grace))


def _counted_once(attempts: Iterable[PastAttempt], grace: float) -> list[PastAttempt]:
    """Return those of *attempts* at one step that count: failed ones count once within *grace* seconds."""
    counted: list[PastAttempt] = []
    for attempt in attempts:
        if attempt.failed is None or not counted or (attempt.at - counted[-1].at).total_seconds() >= grace:
            counted.append(attempt)
    return counted


def _summary(policy: Sequence[Step], attempts: Sequence[PastAttempt]) -> str:
    graces = {step.name: step.timeouts.grace for step in policy}
    counted = [
        attempt
        for name in dict.fromkeys(attempt.step for attempt in attempts)
        for attempt in _counted_once([each for each in attempts if each.step == name], graces.get(name, 0))
    ]
    parts = [
        f"{beginning} {words}"
        for beginning in ("still unhealthy after", "the provider did not answer", "the provider refused")
        if (words := _times(each.step for each in counted if _outcome(each) == beginning))
    ]
    return "; ".join(parts) or "no step of the policy can be taken"


def _outcome(attempt: PastAttempt) -> str:
    if attempt.failed is None:
        return "still unhealthy after"
    return "the provider refused" if attempt.failed in REFUSALS else "the provider did not answer"


def _times(steps: Iterable[str]) -> str:
    counts = Counter(step for step in steps if step != QUARANTINE.name)
    return ", ".join(f"{step} {number} time{'' if number == 1 else 's'}" for step, number in counts.items())
