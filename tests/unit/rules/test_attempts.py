"""What a machine's history says of its recovery."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID

import pytest
from shepherd_core.bmdb.recovery.remediation import RecoveryRecord
from shepherd_core.domain.errors import SecretMissing, SecretUnavailable, ShepherdError, TimeLimitExceeded
from shepherd_core.domain.errors.kinds import FailureKind
from shepherd_core.domain.errors.machine import SshAuthenticationFailed
from shepherd_core.domain.errors.provider import (
    MachineNotFound,
    NotSupported,
    ProviderForbidden,
    ProviderNotAsked,
    ProviderRefused,
    ProviderUnavailable,
    ProviderUnusable,
)
from shepherd_core.domain.machine import WorkEvent
from shepherd_core.domain.remediation import AgentState, HistoryLine, PastAttempt
from shepherd_core.recovery import position
from shepherd_core.rules.remediation import looks, past_attempts, uninterrupted

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = 3600.0
line = partial(HistoryLine, UUID(int=1))


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def lines(*events: tuple[WorkEvent, str | None, ShepherdError | None], others_taken: bool = False) -> list[HistoryLine]:
    return [
        line(
            event,
            at(number * HOUR),
            step,
            kind=None if error is None else error.kind,
            fault=None if error is None else error.fault,
            others_taken=others_taken,
        )
        for number, (event, step, error) in enumerate(events)
    ]


def test_the_position_is_read_from_the_history() -> None:
    history = lines(
        (WorkEvent.FINISHED, None, None),  # from before there were policies
        (WorkEvent.ATTEMPTED, "reboot", None),
        (WorkEvent.FINISHED, None, None),
        (WorkEvent.ATTEMPTED, "reboot", None),
        (WorkEvent.FAILED, None, ProviderRefused("no")),
        (WorkEvent.ATTEMPTED, "power-cycle", None),
    )
    assert past_attempts(history) == [
        PastAttempt("reboot", at(HOUR), None, concluded=True),
        PastAttempt("reboot", at(3 * HOUR), FailureKind.PROVIDER_REFUSED, concluded=True),
        PastAttempt("power-cycle", at(5 * HOUR)),
    ]


ATTEMPTED, NOT_TAKEN, FINISHED = WorkEvent.ATTEMPTED, WorkEvent.NOT_TAKEN, WorkEvent.FINISHED
FAILED = WorkEvent.FAILED


@pytest.mark.parametrize(
    ("end", "error", "alone", "among_others"),
    [
        (FINISHED, None, True, True),
        # It refuses this machine.
        (NOT_TAKEN, ProviderRefused("422"), True, True),
        (NOT_TAKEN, MachineNotFound("404"), True, True),
        (NOT_TAKEN, NotSupported(), True, True),
        (FAILED, ProviderRefused("422"), True, True),
        # It may refuse or not answer about every machine.
        (NOT_TAKEN, ProviderForbidden("403"), False, True),
        (NOT_TAKEN, ProviderUnusable("401"), False, True),
        (NOT_TAKEN, ProviderUnavailable("503"), False, True),
        (FINISHED, ProviderUnavailable("504"), False, True),
        (FAILED, ProviderUnusable("401"), False, True),
        # It was not asked.
        (NOT_TAKEN, ProviderNotAsked(), False, False),
        (NOT_TAKEN, TimeLimitExceeded(), False, False),
        (NOT_TAKEN, SshAuthenticationFailed(), False, False),
        (NOT_TAKEN, None, False, False),
        # We failed after it was asked.
        (FAILED, TimeLimitExceeded(), True, True),
        (FAILED, SecretUnavailable(), True, True),
    ],
)
def test_a_providers_failure_counts_if_it_serves_other_machines(
    end: WorkEvent, error: ShepherdError | None, alone: bool, among_others: bool
) -> None:
    """An outage or our credential brings no machine into quarantine, and no machine waits for ever."""
    for others_taken, counts in ((False, alone), (True, among_others)):
        history = lines((WorkEvent.ATTEMPTED, "reboot", None), (end, "reboot", error), others_taken=others_taken)
        assert [each.counts for each in past_attempts(history) if each.counts] == [True] * counts
        # A machine whose release got no answer may be gone, and only another request tells.
        lost = lines((ATTEMPTED, "release", None), (end, "release", error), others_taken=others_taken)
        if (end, type(error)) == (FINISHED, ProviderUnavailable):
            assert past_attempts(lost) == []
        if type(error) is ProviderRefused and end is NOT_TAKEN:
            assert [each.counts for each in past_attempts(lost)] == [True]


def test_an_attempt_of_unknown_outcome_is_returned_though_uncounted() -> None:
    history = lines((WorkEvent.ATTEMPTED, "reboot", None), (FAILED, None, ProviderUnusable("401")))
    (found,) = past_attempts(history)
    assert (found.counts, found.concluded) == (False, False)


def test_a_failure_of_later_work_says_nothing_about_an_attempt() -> None:
    """A look that failed by our own fault began no attempt: the one before is still as it was recorded."""
    first, second = UUID(int=1), UUID(int=2)
    failed = SecretMissing("no key")
    history = [
        line(WorkEvent.ATTEMPTED, at(0), "reboot", session_id=first),
        line(FAILED, at(HOUR), kind=failed.kind, fault=failed.fault, session_id=second),
    ]
    assert past_attempts(history) == [PastAttempt("reboot", at(0), session_id=first)]
    history.append(line(FINISHED, at(2 * HOUR), session_id=second))
    assert past_attempts(history) == [PastAttempt("reboot", at(0), concluded=True, session_id=first)]


def test_the_last_days_looks_are_counted_by_their_findings() -> None:
    """An agent that ended does not count as an installation; nor does a look that was followed by a step."""
    day = 24 * HOUR

    def look(hours: float, seen: AgentState | None, step: str | None = "restart-agent") -> HistoryLine:
        return line(WorkEvent.LOOKED, at(hours * HOUR), step, seen=seen)

    history = [
        look(0, AgentState.ENDED),
        look(1, AgentState.ENDED),
        look(2, AgentState.INSTALLS, "await-installation"),
        look(3, AgentState.ENDED, None),
        look(4, None, None),
        look(5, AgentState.ENDED),
    ]
    assert looks(history, at(day)) == {AgentState.INSTALLS: 1, AgentState.ENDED: 2}


@pytest.mark.parametrize("event", [WorkEvent.HEALTHY, WorkEvent.UNQUARANTINED])
def test_the_policy_starts_over_after_health_and_after_quarantine(event: WorkEvent) -> None:
    """What was mended, or mended itself, is a new fault when it comes back."""
    history = lines(
        (WorkEvent.ATTEMPTED, "reboot", None), (event, None, None), (WorkEvent.ATTEMPTED, "power-cycle", None)
    )
    assert [attempt.step for attempt in past_attempts(history)] == ["power-cycle"]


@pytest.mark.parametrize(
    ("started", "heard", "healthy"),
    [
        (None, None, False),
        (None, 60 + HOUR, False),  # its agent is being restarted
        (60, None, False),
        (60, 60 + HOUR - 1, False),
        (60, 60 + HOUR, True),
        (-9 * HOUR, HOUR - 1, False),  # since the last attempt, which failed, less than an hour
        (-9 * HOUR, HOUR, True),
    ],
)
def test_health_lasts_until_the_last_heartbeat(started: float | None, heard: float | None, healthy: bool) -> None:
    """Ten minutes of heartbeats between two faults are no recovery."""
    known = [None if moment is None else at(moment) for moment in (started, heard)]
    attempt = line(WorkEvent.ATTEMPTED, at(0), "reboot")
    past = RecoveryRecord(
        UUID(int=1), at(HOUR), known[0], known[1], None, "", None, None, None, failed=False, history=[attempt]
    )
    assert position(past, HOUR) == (([], known[1]) if healthy else ([PastAttempt("reboot", at(0))], None))
    assert position(replace(past, history=[]), HOUR) == ([], None), "there is nothing to forget"


LOOKED = WorkEvent.LOOKED


@pytest.mark.parametrize(
    ("event", "step", "restarted"),
    [
        (LOOKED, "restart-agent", True),
        (ATTEMPTED, "restart-agent", True),
        (LOOKED, None, False),
        (ATTEMPTED, "quarantine", False),
        (WorkEvent.UNQUARANTINED, None, True),
    ],
)
def test_agent_restarts_interrupt_no_machine(event: WorkEvent, step: str | None, restarted: bool) -> None:
    """It may be healthy although it has no agent on record, so it is looked at."""
    history = [line(LOOKED, at(0), None), line(event, at(1), step), line(LOOKED, at(3), None)]
    assert [uninterrupted(history, rebooted_at) for rebooted_at in (None, at(0), at(1), at(2))] == [
        restarted,
        restarted,
        False,
        False,
    ]
