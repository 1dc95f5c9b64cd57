"""
How far recovery goes, step by step, and when it stops: pure rules over a machine's history.

A ladder is data: rungs, each a step that is taken some times, from the gentle
to the violent; the last is quarantine. Where a machine stands is never stored,
but computed from what its history says since it was last healthy for a while.
The power state of a machine is no part of it: it is often unknown, and to be
silent is reason enough.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from shepherd_core.domain.machine import Capability, WorkEvent
from shepherd_core.domain.remediation import HistoryLine, NextStep, PastAttempt, Step, StepName, Timeouts

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from datetime import datetime

_REFUSALS = ("ProviderRefused: ", "MachineNotFound: ", "NotSupported: ")
"""How causes begin that are about one machine; all others are about the provider, or us."""
MOST_ATTEMPTS = 100
"""On all rungs together: so many are read from the history."""


NEEDS = {
    StepName.REBOOT: Capability.REBOOT,
    StepName.POWER_CYCLE: Capability.POWER_CYCLE,
    StepName.REINSTALL: Capability.REINSTALL,
}


def parse_policy(text: str, waits: Timeouts | None = None) -> tuple[Step, ...]:
    """
    Return the ladder that *text* describes, as ``reboot:3,power-cycle:2,quarantine``; *waits* where it says nothing.

    A rung is a step, how often it is taken, and the seconds that it has of its
    own: ``reinstall:1:settle=900:grace=7200:cooldown=86400``.

    Raises:
        ValueError: it is no ladder; says what was wanted.
    """
    rungs: list[Step] = []
    for part in text.split(","):
        name, *rest = (word.strip() for word in part.split(":"))
        if name not in list(StepName):
            message = f"{name!r} is no step: {', '.join(StepName)} are"
            raise ValueError(message)
        rungs.append(_rung(StepName(name), rest, waits or Timeouts()))
    steps = [rung.step for rung in rungs]
    if len(set(steps)) < len(steps):
        twice = max(steps, key=steps.count)
        message = f"{twice} is there more than once: say how often with {twice}:{steps.count(twice)}"
        raise ValueError(message)
    if steps[-1] is not StepName.QUARANTINE or StepName.QUARANTINE in steps[:-1]:
        message = f"the last step was wanted to be {StepName.QUARANTINE}, and no other"
        raise ValueError(message)
    if len(steps) == 1:
        message = f"a step before {StepName.QUARANTINE} was wanted"
        raise ValueError(message)
    if sum(rung.attempts for rung in rungs) > MOST_ATTEMPTS:
        message = f"at most {MOST_ATTEMPTS} attempts in all were wanted"
        raise ValueError(message)
    return tuple(rungs)


def _rung(step: StepName, words: Sequence[str], waits: Timeouts) -> Step:
    attempts = 1
    values = {"settle": 0.0 if step is StepName.RESTART_AGENT else waits.settle}
    values |= {"grace": waits.grace, "cooldown": waits.cooldown}
    for word in words:
        name, equals, value = word.partition("=")
        if step is StepName.QUARANTINE:
            message = f"{step} was wanted without {word!r}: it is the end"
            raise ValueError(message)
        if not equals and name.isdecimal() and 1 <= int(name) <= MOST_ATTEMPTS:
            attempts = int(name)
        elif name in values and value.isdecimal() and int(value) <= 86_400 * 7:
            values[name] = float(value)
        else:
            message = (
                f"{word!r} of {step} is neither a number of attempts, 1 to {MOST_ATTEMPTS}, nor settle=, grace= or "
                "cooldown= with whole seconds, at most a week"
            )
            raise ValueError(message)
    return Step(step, attempts, Timeouts(**values))


DEFAULT = "reboot:3,power-cycle:2,quarantine"


def possible(ladder: Iterable[Step], capabilities: Collection[Capability]) -> tuple[StepName, ...]:
    """Return the steps of the *ladder* before quarantine that a provider with these *capabilities* can take."""
    return tuple(
        rung.step
        for rung in ladder
        if rung.step is not StepName.QUARANTINE and NEEDS.get(rung.step) in {None, *capabilities}
    )


def past_attempts(history: Iterable[HistoryLine]) -> list[PastAttempt]:
    """
    Return the attempts since the bottom, oldest first, from the lines of a machine's history in their order.

    A step that was not taken is no attempt, unless the provider refused it for this machine: else a machine that is
    always refused would never get to the next rung. Lines of one moment may come in any order.
    """
    taken: list[PastAttempt] = []
    dropped: set[int] = set()
    for line in history:
        match line.event:
            case WorkEvent.HEALTHY | WorkEvent.UNQUARANTINED:
                taken, dropped = [], set()
            case WorkEvent.ATTEMPTED if line.rung is not None:
                taken.append(PastAttempt(line.rung, line.at))
            case WorkEvent.NOT_TAKEN if taken:
                last = taken.pop()
                if not (line.cause or "").startswith(_REFUSALS):
                    dropped.add(len(taken))
                taken.append(PastAttempt(last.step, last.at, line.cause, concluded=True, refused=True))
            case WorkEvent.FINISHED | WorkEvent.FAILED if taken and not taken[-1].concluded:
                last = taken.pop()
                taken.append(PastAttempt(last.step, last.at, line.cause, concluded=True))
    return [attempt for number, attempt in enumerate(taken) if number not in dropped]


def healthy_until(
    taken: Sequence[PastAttempt], started_at: datetime | None, heard_at: datetime | None, reset_after_seconds: float
) -> datetime | None:
    """
    Return until when the machine was healthy for so long that its ladder begins at the bottom again; None: not so.

    It is healthy from the start of its agent, or the last attempt if that is
    later, to its last heartbeat. None also if there is nothing to forget.
    """
    if not taken or started_at is None or heard_at is None:
        return None
    since = max(started_at, taken[-1].at)
    return heard_at if (heard_at - since).total_seconds() >= reset_after_seconds else None


def next_step(
    ladder: Sequence[Step],
    capabilities: Collection[Capability],
    provider: str,
    taken: Sequence[PastAttempt],
    now: datetime,
) -> NextStep:
    """
    Return what is to be done about a machine after the attempts that were *taken*, oldest first.

    It never goes down: a rung below the highest that was taken is not taken any
    more, also when the ladder is another than it was.
    """
    steps = [rung.step.value for rung in ladder]
    heights = [steps.index(attempt.step) for attempt in taken if attempt.step in steps]
    if taken and not taken[-1].concluded and taken[-1].step in steps:
        rung = ladder[steps.index(taken[-1].step)]
        if rung.step is not StepName.QUARANTINE and (now - taken[-1].at).total_seconds() < rung.waits.grace:
            return NextStep(rung, _used(rung, taken), concludes=True)
    highest = max(heights, default=0)
    skipped = []
    for height, rung in enumerate(ladder):
        if height < highest or rung.step is StepName.QUARANTINE:
            continue
        needed = NEEDS.get(rung.step)
        if needed is not None and needed not in capabilities:
            if height > highest or not heights:
                skipped.append((rung.step, f"the provider {provider} cannot {needed} machines"))
            continue
        if (used := _used(rung, taken)) < rung.attempts:
            return NextStep(rung, used + 1, skipped=tuple(skipped))
    return NextStep(ladder[-1], 1, skipped=tuple(skipped), told=_told(taken))


def _used(rung: Step, taken: Iterable[PastAttempt]) -> int:
    """Return how many attempts at the rung count; those that failed count once in the time that each is given."""
    used, last = 0, None
    for attempt in taken:
        if attempt.step != rung.step:
            continue
        if attempt.failed is not None:
            if attempt.failed.startswith("NotSupported: "):
                return rung.attempts
            if last is not None and (attempt.at - last).total_seconds() < rung.waits.grace:
                continue
        used, last = used + 1, attempt.at
    return used


def _told(taken: Sequence[PastAttempt]) -> str:
    parts = [
        f"{beginning} {words}"
        for beginning, refused in (("still silent after", False), ("the provider refused", True))
        if (words := _counted(attempt.step for attempt in taken if attempt.refused is refused))
    ]
    return "; ".join(parts) or "there is nothing else that could be done"


def _counted(steps: Iterable[str]) -> str:
    counts = Counter(step for step in steps if step != StepName.QUARANTINE)
    return ", ".join(f"{step} {number} time{'' if number == 1 else 's'}" for step, number in counts.items())
