"""
Reads from a machine's history the attempts that count for its next step, and the looks at it.

A machine's position in the policy is never stored. It is computed from the
history since the machine was last healthy for long enough.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from shepherd_core.domain.errors import Fault
from shepherd_core.domain.errors.kinds import FailureKind
from shepherd_core.domain.machine import WorkEvent
from shepherd_core.domain.remediation import RESTART_AGENT, PastAttempt

if TYPE_CHECKING:
    from collections.abc import Iterable
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
