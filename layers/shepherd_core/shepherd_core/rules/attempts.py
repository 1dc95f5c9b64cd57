"""
Reads from a machine's history the attempts that count for its next step, and the looks at it.

A machine's position in the policy is never stored. It is computed from the
history since the machine was last healthy for long enough.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from shepherd_core.domain.machine import WorkEvent
from shepherd_core.domain.remediation import STEPS, HistoryLine, PastAttempt, Step

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

_REFUSALS = ("ProviderRefused: ", "MachineNotFound: ", "NotSupported: ")
"""How causes begin that are about one machine; all others are about the provider, or about Shepherd."""
_DAY_SECONDS = 86_400
_UNANSWERED = 3
"""The provider has an outage if it does not answer about this many machines."""


def past_attempts(history: Iterable[HistoryLine]) -> list[PastAttempt]:
    """Return the attempts that count since the policy last started over, oldest first; see ``all_attempts``."""
    return [attempt for attempt in all_attempts(history) if attempt.counts]


def all_attempts(history: Iterable[HistoryLine]) -> list[PastAttempt]:
    """
    Return the attempts since the policy last started over, oldest first; *history* is oldest first.

    A step that was not taken does not count, unless the provider refused it for this machine: otherwise a machine
    that is always refused would never reach the next step. An attempt that failed after its request was sent is not
    concluded: the step may have been taken. If a later session fails before it begins an attempt, that says nothing
    about the last attempt. Lines with the same time may come in any order.
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


def _last_that_counts(attempts: Sequence[PastAttempt]) -> int | None:
    return max((number for number, attempt in enumerate(attempts) if attempt.counts), default=None)


def looks(history: Iterable[HistoryLine], now: datetime, seen: str) -> int:
    """Return how often in the last day a look saw *seen*, and the machine was not interrupted."""
    return sum(
        line.event == WorkEvent.LOOKED
        and line.step is not None
        and line.cause == seen
        and (now - line.at).total_seconds() < _DAY_SECONDS
        for line in history
    )


def uninterrupted(history: Iterable[HistoryLine]) -> bool:
    """
    Return whether no step interrupted the machine since its agent's facts were deleted; *history* is oldest first.

    A restart of the agent and the end of a quarantine delete only the facts: the agent may still run or install.
    """
    restarted = before = False
    for line in history:
        match line.event:
            case WorkEvent.UNQUARANTINED:
                restarted = True
            case WorkEvent.LOOKED if line.step is not None:
                restarted = True
            case WorkEvent.ATTEMPTED:
                before, kind = restarted, STEPS.get(line.step or "")
                if kind is None or kind.loses_agent:
                    restarted = kind is not None and not kind.reboots
            case WorkEvent.NOT_TAKEN:
                restarted = before
    return restarted


@dataclass(frozen=True, slots=True)
class Standing:
    """The part of a machine's past that decides its next step."""

    attempts: Sequence[PastAttempt]
    """Those that count, oldest first."""
    healthy_until: datetime | None
    """Until when the machine was healthy, if its policy starts over."""
    uncounted: str | None
    """Why the last attempt does not count; None: it does."""


def unanswered_since(histories: Iterable[Sequence[HistoryLine]], policy: Sequence[Step]) -> datetime | None:
    """Return from when attempts on other machines matter for these; None if all their last attempts were answered."""
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


def outage_reason(attempt: PastAttempt, others: Iterable[Sequence[PastAttempt]], policy: Sequence[Step]) -> str | None:
    """
    Return why *attempt*, the last of its machine, does not count, or None if it does.

    It does not count if its answer was lost in an outage of the provider. Otherwise an outage of hours would bring all
    machines into quarantine. It is an outage if at least three machines had an unanswered attempt within one grace of
    this one, and the provider accepted no step in between. *others* are the attempts of all machines around that time,
    including this one's.
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
