"""What a machine's history says of its recovery."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from shepherd_core.domain.machine import WorkEvent
from shepherd_core.domain.remediation import HistoryLine, PastAttempt
from shepherd_core.rules.attempts import all_attempts, healthy_until, outage_reason, past_attempts, uninterrupted

from tests.support import defaults

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = 3600.0
REMEDIATION_POLICY = defaults.policy("reboot:3,power-cycle:2,quarantine")


def at(seconds: float) -> datetime:
    """Return a moment so many seconds after the beginning."""
    return BEGIN + timedelta(seconds=seconds)


def asked(seconds: float, outcome: str) -> PastAttempt:
    """Return a reboot at that time that was "lost" or "accepted", or whose outcome is not on record yet ("begun")."""
    lost = outcome == "lost"
    return PastAttempt(
        "reboot", at(seconds), "ProviderUnavailable: 504" if lost else None, outcome != "begun", unanswered=lost
    )


@pytest.mark.parametrize(
    ("others", "counts"),
    [
        ([], True),
        ([[(60, "lost")]], True),
        ([[(60, "lost"), (120, "lost")]], True),
        ([[(60, "lost")], [(-60, "lost")]], False),
        ([[(1800, "lost")], [(-1800, "lost")]], False),
        ([[(1801, "lost")], [(-60, "lost")]], True),
        ([[(60, "lost")], [(-1801, "lost")]], True),
        ([[(60, "lost")], [(-60, "begun")]], True),
        ([[(60, "lost")], [(-60, "lost")], [(30, "accepted")]], True),
        ([[(60, "lost")], [(-60, "lost")], [(-30, "accepted")]], True),
        ([[(60, "lost")], [(-60, "lost")], [(90, "accepted")], [(-90, "accepted")]], False),
        ([[(60, "lost"), (90, "accepted")], [(-60, "lost"), (91, "accepted")]], False),
        ([[(60, "lost")], [(-60, "lost")], [(30, "begun")]], False),
    ],
)
def test_an_attempt_in_an_outage_of_the_provider_does_not_count(
    others: list[list[tuple[float, str]]], counts: bool
) -> None:
    """If three machines get no answer within a grace, and none a step in between, it is not about the machines."""
    own = asked(0, "lost")
    reason = outage_reason(
        own, [[own], *([asked(*each) for each in attempts] for attempts in others)], REMEDIATION_POLICY
    )
    assert (reason is None) is counts
    assert outage_reason(asked(0, "accepted"), [[own]] * 5, REMEDIATION_POLICY) is None


def lines(*events: tuple[str, str | None, str | None]) -> list[HistoryLine]:
    """Return lines of history an hour apart: event, step, cause."""
    return [HistoryLine(event, at(number * HOUR), step, cause) for number, (event, step, cause) in enumerate(events)]


def test_the_position_is_read_from_the_history() -> None:
    """It is stored nowhere else, so nothing can contradict it."""
    history = lines(
        ("Finished", None, None),  # from before there were policies
        (WorkEvent.ATTEMPTED, "reboot", None),
        (WorkEvent.FINISHED, None, None),
        (WorkEvent.ATTEMPTED, "reboot", None),
        (WorkEvent.FAILED, None, "ProviderRefused: no"),
        (WorkEvent.ATTEMPTED, "power-cycle", None),
    )
    assert past_attempts(history) == [
        PastAttempt("reboot", at(HOUR), None, concluded=True),
        PastAttempt("reboot", at(3 * HOUR), "ProviderRefused: no", concluded=True),
        PastAttempt("power-cycle", at(5 * HOUR)),
    ]


def test_an_attempt_that_does_not_count_is_named_by_the_next() -> None:
    """So that the history says why a machine stays at its step; a step that was not taken changes nothing about it."""
    lost = (WorkEvent.FINISHED, None, "ProviderUnavailable: 504")
    history = lines(
        (WorkEvent.ATTEMPTED, "reboot", None),
        (WorkEvent.FINISHED, None, None),
        (WorkEvent.ATTEMPTED, "reboot", None),
        lost,
        (WorkEvent.ATTEMPTED, "reboot", None),
        (WorkEvent.NOT_TAKEN, "reboot", "ProviderUnavailable: 503"),
        (WorkEvent.ATTEMPTED, "reboot", "the last attempt does not count: …"),
        lost,
    )
    assert [(each.at, each.unanswered) for each in past_attempts(history)] == [(at(0), False), (at(6 * HOUR), True)]
    assert [each.counts for each in all_attempts(history)] == [True, False, False, True]


def test_a_failure_of_later_work_says_nothing_about_an_attempt() -> None:
    """A look that failed by our own fault began no attempt: the one before is still as it was recorded."""
    first, second = UUID(int=1), UUID(int=2)
    history = [
        HistoryLine(WorkEvent.ATTEMPTED, at(0), "reboot", None, first),
        HistoryLine(WorkEvent.FAILED, at(HOUR), None, "SecretMissing: no key", second),
    ]
    assert all_attempts(history) == [PastAttempt("reboot", at(0), session_id=first)]
    history.append(HistoryLine(WorkEvent.FINISHED, at(2 * HOUR), None, None, second))
    assert all_attempts(history) == [PastAttempt("reboot", at(0), concluded=True, session_id=first)]


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
        (60, None, False),
        (60, 60 + HOUR - 1, False),
        (60, 60 + HOUR, True),
        (-9 * HOUR, HOUR - 1, False),  # since the last attempt, which failed, less than an hour
        (-9 * HOUR, HOUR, True),
    ],
)
def test_health_lasts_from_agent_start_or_attempt_to_last_heartbeat(
    started: float | None, heard: float | None, healthy: bool
) -> None:
    """Ten minutes of heartbeats between two faults are no recovery."""
    known = [None if moment is None else at(moment) for moment in (started, heard)]
    found = healthy_until([PastAttempt("reboot", at(0), concluded=True)], known[0], known[1], HOUR)
    assert found == (known[1] if healthy else None)
    assert healthy_until([], known[0], known[1], HOUR) is None, "there is nothing to forget"


LOOKED, ATTEMPTED, NOT_TAKEN = WorkEvent.LOOKED, WorkEvent.ATTEMPTED, WorkEvent.NOT_TAKEN


@pytest.mark.parametrize(
    ("lines", "restarted"),
    [
        ([], False),
        ([(LOOKED, "restart-agent")], True),
        ([(ATTEMPTED, "restart-agent")], True),
        ([(ATTEMPTED, "reboot"), (LOOKED, "restart-agent"), (WorkEvent.FINISHED, None)], True),
        # A look that found it dead, and the step that followed.
        ([(LOOKED, None)], False),
        ([(LOOKED, "restart-agent"), (LOOKED, None), (ATTEMPTED, "reboot"), (WorkEvent.FINISHED, None)], False),
        # The step that followed was certainly not taken.
        ([(LOOKED, "restart-agent"), (LOOKED, None), (ATTEMPTED, "reboot"), (NOT_TAKEN, "reboot")], True),
        ([(ATTEMPTED, "reboot"), (ATTEMPTED, "reboot"), (NOT_TAKEN, "reboot")], False),
        # A step that keeps the agent changes nothing.
        ([(LOOKED, "restart-agent"), (ATTEMPTED, "quarantine")], True),
        ([(ATTEMPTED, "restart-agent"), (ATTEMPTED, "quarantine"), (NOT_TAKEN, "quarantine")], True),
        ([(ATTEMPTED, "reboot"), (ATTEMPTED, "quarantine")], False),
        # The quarantine of a machine that was alive, or was repaired, has ended.
        ([(ATTEMPTED, "reboot"), (WorkEvent.UNQUARANTINED, None)], True),
        ([(WorkEvent.UNQUARANTINED, None), (LOOKED, None), (ATTEMPTED, "reboot")], False),
        ([(WorkEvent.UNQUARANTINED, None), (LOOKED, None), (ATTEMPTED, "reboot"), (NOT_TAKEN, "reboot")], True),
    ],
)
def test_a_machine_was_not_interrupted_since_its_agent_alone_was_restarted(
    lines: Sequence[tuple[WorkEvent, str | None]], restarted: bool
) -> None:
    """It may be healthy although it has no agent on record, so it is looked at."""
    history = [HistoryLine(event, at(number), step) for number, (event, step) in enumerate(lines)]
    assert uninterrupted(history) is restarted
