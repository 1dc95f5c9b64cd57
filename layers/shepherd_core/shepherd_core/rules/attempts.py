"""
Reads from a machine's history the attempts that count for its next step, and the looks at it.

A machine's position in the policy is never stored. It is computed from the
history since the machine was last healthy for long enough.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from shepherd_core.domain.errors import Fault
from shepherd_core.domain.errors.kinds import FailureKind
from shepherd_core.domain.machine import WorkEvent
from shepherd_core.domain.remediation import STEPS, PastAttempt

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

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
                counts = line.fault is Fault.PROVIDER and _counts(line)  # else the provider was not asked
                attempts[-1] = replace(last, failed=line.kind, concluded=True, counts=counts)
            case WorkEvent.FAILED if last and line.session_id != last.session_id:
                pass
            case WorkEvent.FINISHED | WorkEvent.FAILED if last and not last.concluded:
                concluded = line.event == WorkEvent.FINISHED or line.kind in _ABOUT_THE_MACHINE
                attempts[-1] = replace(last, failed=line.kind, concluded=concluded, counts=_counts(line))
    return [attempt for attempt in attempts if attempt.counts or not attempt.concluded]


def _counts(end: HistoryLine) -> bool:
    """
    Return whether an attempt with this *end* counts: it did not fail, or the failure is about this machine.

    If the provider is to blame, such as for an answer that was lost or for a refusal of our credential, it counts only
    if the provider took steps on other machines before and after. Otherwise an outage of the provider, or an expired
    credential, would bring all unhealthy machines into quarantine.
    """
    return end.fault is not Fault.PROVIDER or end.kind in _ABOUT_THE_MACHINE or end.others_taken


def looks(history: Iterable[HistoryLine], now: datetime, seen: AgentState) -> int:
    """Return how often in the last day a look saw *seen*, and the machine was not interrupted."""
    return sum(
        line.event == WorkEvent.LOOKED
        and line.step is not None
        and line.seen is seen
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
