"""
The remediation policy: which step comes next, and when a machine is quarantined. Pure rules over the history.

A policy is data: steps in order, from gentle to violent, each with a number of
attempts; the last is quarantine. A machine's position in the policy is never
stored. It is computed from the history since the machine was last healthy for
long enough. The power state of the machine is not used: it is often unknown,
and being unhealthy is reason enough.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from shepherd_core.domain.machine import WorkEvent
from shepherd_core.domain.remediation import (
    QUARANTINE,
    RESTART_AGENT,
    STEPS,
    HistoryLine,
    NextStep,
    PastAttempt,
    Step,
    Timeouts,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from datetime import datetime

    from shepherd_core.domain.provider import Capability
    from shepherd_core.domain.remediation import StepKind

_REFUSALS = ("ProviderRefused: ", "MachineNotFound: ", "NotSupported: ")
"""How causes begin that are about one machine; all others are about the provider, or about Shepherd."""
LOOK_RUNS = "it answers over SSH and its agent runs: its reports get lost"
LOOK_ENDED = "it answers over SSH and its agent has ended"
LOOK_INSTALLS = "it answers over SSH and an installation goes on"
MAX_RESTARTS = 3
"""How often in a day an agent that has ended is started anew, before the policy goes on."""
MAX_WAITS = 24
"""How often in a day an installation is waited for, before the agent is started anew."""
_DAY_SECONDS = 86_400
_UNANSWERED = 3
"""The provider has an outage if it does not answer about this many machines."""
MAX_ATTEMPTS = 100
"""Of all steps together: as many attempts as are read from the history."""
_MAX_SECONDS = 86_400 * 7


def parse_policy(text: str, timeouts: Timeouts) -> tuple[Step, ...]:
    """
    Return the policy that *text* describes, such as ``reboot:3,power-cycle:2,quarantine``.

    A step is written as its name, the number of attempts, and the timeouts that
    differ from *timeouts*, in seconds:
    ``reinstall:1:boot-wait=900:grace=7200:cooldown=86400``.

    Raises:
        ValueError: *text* is not a policy; the message says what is wrong.
    """
    steps: list[Step] = []
    for part in text.split(","):
        name, *options = (word.strip() for word in part.split(":"))
        if name not in STEPS:
            message = f"{name!r} is not a step; use {', '.join(STEPS)}"
            raise ValueError(message)
        steps.append(_step(STEPS[name], options, timeouts))
    names = [step.name for step in steps]
    if len(set(names)) < len(names):
        twice = max(names, key=names.count)
        message = f"{twice} appears more than once; write {twice}:{names.count(twice)} for several attempts"
        raise ValueError(message)
    if names[-1] != QUARANTINE.name:
        message = f"the policy must end with {QUARANTINE.name}, which may appear only once"
        raise ValueError(message)
    if len(names) == 1:
        message = f"the policy must have a step before {QUARANTINE.name}"
        raise ValueError(message)
    if sum(step.attempts for step in steps) > MAX_ATTEMPTS:
        message = f"the policy may have at most {MAX_ATTEMPTS} attempts in all"
        raise ValueError(message)
    return tuple(steps)


def _step(kind: StepKind, options: Sequence[str], timeouts: Timeouts) -> Step:
    attempts = 1
    seconds = {"boot-wait": timeouts.boot_wait if kind.reboots else 0.0}
    seconds |= {"grace": timeouts.grace, "cooldown": timeouts.cooldown}
    for option in options:
        key, equals, value = option.partition("=")
        if kind is QUARANTINE:
            message = f"{kind.name} takes no options, but has {option!r}"
            raise ValueError(message)
        if not equals and key.isdecimal() and 1 <= int(key) <= MAX_ATTEMPTS:
            attempts = int(key)
        elif key in seconds and value.isdecimal() and int(value) <= _MAX_SECONDS:
            seconds[key] = float(value)
        else:
            message = (
                f"{option!r} of {kind.name} is neither a number of attempts, 1 to {MAX_ATTEMPTS}, nor boot-wait=, "
                "grace= or cooldown= with whole seconds, at most a week"
            )
            raise ValueError(message)
    own = Timeouts(boot_wait=seconds["boot-wait"], grace=seconds["grace"], cooldown=seconds["cooldown"])
    return Step(kind, attempts, own)


def possible(policy: Iterable[Step], capabilities: Collection[Capability]) -> tuple[StepKind, ...]:
    """Return the steps of *policy* before quarantine that a provider with these *capabilities* can take."""
    return tuple(
        step.kind for step in policy if step.kind is not QUARANTINE and step.kind.needs in {None, *capabilities}
    )


def past_attempts(history: Iterable[HistoryLine]) -> list[PastAttempt]:
    """Return the attempts that count since the policy last started over, oldest first; see ``all_attempts``."""
    return [attempt for attempt in all_attempts(history) if attempt.counts]


def all_attempts(history: Iterable[HistoryLine]) -> list[PastAttempt]:
    """
    Return the attempts since the policy last started over, oldest first; *history* is in its order.

    A step that was not taken does not count, unless the provider refused it for this machine: otherwise a machine
    that is always refused would never reach the next step. An attempt that failed after its request was sent is not
    concluded: the step may have been taken. Work of a later session that fails before it begins an attempt says nothing
    about the one before. Lines with the same time may come in any order.
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
                if line.cause is not None and (number := _last_that_counts(attempts)) is not None:
                    attempts[number] = replace(attempts[number], counts=False)
                attempts.append(PastAttempt(line.step, line.at, session_id=line.session_id))
            case WorkEvent.NOT_TAKEN if last:
                refused = (line.cause or "").startswith(_REFUSALS)
                attempts[-1] = replace(last, failed=line.cause, concluded=True, refused=True, counts=refused)
            case WorkEvent.FAILED if last and line.session_id != last.session_id:
                pass
            case WorkEvent.FINISHED | WorkEvent.FAILED if last and not last.concluded:
                cause = last.failed or line.cause
                lost = cause is not None and not cause.startswith(_REFUSALS)
                concluded = line.event == WorkEvent.FINISHED or not lost
                attempts[-1] = replace(last, failed=cause, concluded=concluded, unanswered=lost)
    return attempts


def looks(history: Iterable[HistoryLine], now: datetime, seen: str) -> int:
    """Return how often in the last day a look saw this, and the machine was not interrupted."""
    return sum(
        line.event == WorkEvent.LOOKED
        and line.step is not None
        and line.cause == seen
        and (now - line.at).total_seconds() < _DAY_SECONDS
        for line in history
    )


def uninterrupted(history: Iterable[HistoryLine]) -> bool:
    """
    Return whether no step interrupted the machine since its agent's facts were deleted; *history* is in its order.

    A restart of the agent and the end of a quarantine delete the facts alone: the agent may run, and may install.
    """
    restarted = before = False
    for line in history:
        match line.event:
            case WorkEvent.UNQUARANTINED:
                restarted = True
            case WorkEvent.LOOKED if line.step is not None:
                restarted = True
            case WorkEvent.ATTEMPTED:
                before, restarted = restarted, line.step == RESTART_AGENT.name
            case WorkEvent.NOT_TAKEN:
                restarted = before
    return restarted


def _last_that_counts(attempts: Sequence[PastAttempt]) -> int | None:
    return max((number for number, attempt in enumerate(attempts) if attempt.counts), default=None)


def outage_reason(attempt: PastAttempt, others: Iterable[Sequence[PastAttempt]], policy: Sequence[Step]) -> str | None:
    """
    Return why *attempt*, the last of its machine, does not count, or None if it does.

    It does not if its answer was lost in an outage of the provider: at least three machines had an attempt without an
    answer within a grace of it, and the provider accepted no step in between. *others* are the attempts of all machines
    around that time, this one's included. Otherwise an outage of hours would bring them all into quarantine.
    """
    if not attempt.unanswered:
        return None
    grace = max(step.timeouts.grace for step in policy)
    machines = [
        [each for each in attempts if abs((each.at - attempt.at).total_seconds()) <= grace] for attempts in others
    ]
    accepted = [each.at for attempts in machines for each in attempts if each.accepted]
    begin = max((at for at in accepted if at <= attempt.at), default=None)
    end = min((at for at in accepted if at > attempt.at), default=None)
    unanswered = sum(
        any(
            each.unanswered and (begin is None or each.at > begin) and (end is None or each.at < end)
            for each in attempts
        )
        for attempts in machines
    )
    if unanswered < _UNANSWERED:
        return None
    return f"the last attempt does not count: the provider did not answer about {unanswered} machines"


@dataclass(frozen=True, slots=True)
class Standing:
    """What of a machine's past counts for its next step."""

    attempts: Sequence[PastAttempt]
    """Those that count, oldest first."""
    healthy_until: datetime | None
    """Until when the machine was healthy, if its policy starts over."""
    uncounted: str | None
    """Why the last attempt does not count; None: it does."""


def unanswered_since(histories: Iterable[Sequence[HistoryLine]], policy: Sequence[Step]) -> datetime | None:
    """Return since when the attempts on other machines matter for these; None: no answer to a last attempt was lost."""
    lasts = [attempts[-1] for each in histories if (attempts := past_attempts(each))]
    lost = [last.at for last in lasts if last.unanswered]
    return min(lost) - timedelta(seconds=max(step.timeouts.grace for step in policy)) if lost else None


def standing(
    history: Iterable[HistoryLine],
    started_at: datetime | None,
    last_heartbeat_at: datetime | None,
    *,
    policy: Sequence[Step],
    reset_after_seconds: float,
    others: Iterable[Sequence[PastAttempt]],
) -> Standing:
    """Return what counts of a machine's *history*; *others* are as for ``outage_reason``."""
    attempts = past_attempts(history)
    until = healthy_until(attempts, started_at, last_heartbeat_at, reset_after_seconds)
    if until is not None:
        return Standing([], until, None)
    uncounted = outage_reason(attempts[-1], others, policy) if attempts else None
    return Standing(attempts if uncounted is None else attempts[:-1], None, uncounted)


def healthy_until(
    attempts: Sequence[PastAttempt],
    started_at: datetime | None,
    last_heartbeat_at: datetime | None,
    reset_after_seconds: float,
) -> datetime | None:
    """
    Return until when the machine was healthy, if that was long enough for its policy to start over; else None.

    It is healthy from the start of its agent, or from the last attempt if that
    is later, to its last heartbeat. None also if there are no *attempts* to forget.
    """
    if not attempts or started_at is None or last_heartbeat_at is None:
        return None
    since = max(started_at, attempts[-1].at)
    return last_heartbeat_at if (last_heartbeat_at - since).total_seconds() >= reset_after_seconds else None


def next_step(
    policy: Sequence[Step],
    capabilities: Collection[Capability],
    provider: str,
    attempts: Sequence[PastAttempt],
    now: datetime,
) -> NextStep:
    """
    Return the step to take on a machine after these *attempts*, oldest first.

    It never goes back: a step before the furthest one that was attempted is not
    taken again, even if the policy has changed since.
    """
    names = [step.name for step in policy]
    positions = [names.index(attempt.step) for attempt in attempts if attempt.step in names]
    if attempts and not attempts[-1].concluded and (kind := STEPS.get(attempts[-1].step)) not in (None, QUARANTINE):
        step = step_of(policy, kind)
        if (now - attempts[-1].at).total_seconds() < step.timeouts.grace:
            return NextStep(step, _used(step, attempts), concludes=True)
    furthest = max(positions, default=0)
    skipped = []
    for position, step in enumerate(policy):
        if position < furthest or step.kind is QUARANTINE:
            continue
        needed = step.kind.needs
        if needed is not None and needed not in capabilities:
            if position > furthest or not positions:
                skipped.append((step.name, f"the provider {provider} cannot {needed} machines"))
            continue
        if (used := _used(step, attempts)) < step.attempts:
            return NextStep(step, used + 1, skipped=tuple(skipped))
    return NextStep(policy[-1], 1, skipped=tuple(skipped), summary=_summary(policy, attempts))


def step_of(policy: Sequence[Step], kind: StepKind) -> Step:
    """Return the step of this *kind*; if *policy* has none, one with the timeouts of its first step."""
    return next((step for step in policy if step.kind is kind), Step(kind, 1, policy[0].timeouts))


def _used(step: Step, attempts: Iterable[PastAttempt]) -> int:
    """Return how many attempts at the step are used up."""
    own = [attempt for attempt in attempts if attempt.step == step.name]
    if any((attempt.failed or "").startswith("NotSupported: ") for attempt in own):
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
        for beginning, outcome in (
            ("still unhealthy after", (False, False)),
            ("the provider did not answer", (False, True)),
            ("the provider refused", (True, False)),
        )
        if (words := _times(each.step for each in counted if (each.refused, each.unanswered) == outcome))
    ]
    return "; ".join(parts) or "no step of the policy can be taken"


def _times(steps: Iterable[str]) -> str:
    counts = Counter(step for step in steps if step != QUARANTINE.name)
    return ", ".join(f"{step} {number} time{'' if number == 1 else 's'}" for step, number in counts.items())
