"""The view that says when machines are due, compared with the rule about gaps between health snapshots."""

from dataclasses import dataclass
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shepherd_core.bmdb.recovery import suspension

from tests.support.bmdb.fleet import HOUR, PROVIDER, Fleet
from tests.support.bmdb.reference.gap_rule import Gap, extended_timeout, required_overdue

MINUTE = 60
HEARTBEAT_TIMEOUT, STARTUP_TIMEOUT = 10 * MINUTE, 30 * MINUTE
MARGIN = 5
"""Seconds that pass meanwhile at most."""

minutes = st.integers(0, 180)
gaps = st.lists(st.builds(lambda long, ago: Gap(long * MINUTE, ago * MINUTE), minutes, minutes), max_size=3)


@dataclass
class Machines:
    """A machine of each kind."""

    reported: UUID
    never_reported: UUID
    not_back: UUID


def planted(fleet: Fleet, late: float, among: list[Gap]) -> Machines:
    """Let there be only these machines and gaps."""
    fleet.empty()
    fleet.open_session()  # records the policy
    machines = Machines(
        fleet.unhealthy_machine(late, late + HOUR), fleet.started_machine(late), fleet.provided_machine()
    )
    fleet.make_overdue(machines.not_back, late)
    for gap in among:
        fleet.sql(
            "INSERT INTO recovery_gaps (provider, began_at, ended_at) VALUES "
            "(:provider, now() - :began * interval '1 second', now() - :ended * interval '1 second')",
            provider=PROVIDER,
            began=gap.began_ago,
            ended=gap.ended_ago,
        )
    return machines


def due(fleet: Fleet) -> dict[UUID, bool]:
    """Return which machines are due for recovery now."""
    now = "due_at <= statement_timestamp()"
    return dict(fleet.sql(f"SELECT machine_id, {now} FROM machine_eligibility WHERE process = 'ShepherdRecovery'"))


def minutes_of(*pairs: tuple[float, float]) -> list[Gap]:
    """Return gaps of so many minutes that ended so many minutes ago."""
    return [Gap(long * MINUTE, ago * MINUTE) for long, ago in pairs]


@pytest.mark.parametrize(
    ("among", "interval", "minutes"),
    [
        # Schedules of up to five minutes change nothing, also if their ticks are late by seconds.
        *((minutes_of((long, 0)), 0, 10) for long in (1, 2, 5)),
        *((minutes_of((long, 0), (5.05, long)), 0, 10) for long in (4.95, 5, 5.02, 5.1, 5.2)),
        # A longer gap counts with the doubt about it.
        *((minutes_of((long, 0)), 0, late) for long, late in ((6, 11.1), (10, 17.5), (15, 25), (60, 70), (1440, 1450))),
        # The last heartbeat before a gap may be an interval older than it, if that is a large part of the timeout.
        *((minutes_of((long, 0)), 4, late) for long, late in ((4, 10), (4.2, 10.12), (5, 11.4), (10, 19.4), (15, 25))),
        # After an outage, agents have time to report again, one by one; after that it counts no more.
        *((minutes_of((1, 0), (120, ago)), 0, 130 + ago) for ago in (0, 1, 9.9)),
        *((minutes_of((1, 0), (120, ago)), 0, 10) for ago in (10.1, 60)),
        # A short outage does not cover up a long one just before, in whatever order they are found.
        (minutes_of((7, 0), (120, 7)), 0, 137),
        (minutes_of((120, 7), (7, 0)), 0, 137),
    ],
)
def test_a_gap_extends_the_heartbeat_timeout(fleet: Fleet, among: list[Gap], interval: int, minutes: float) -> None:
    """A machine is recovered for the heartbeats that it missed outside of gaps, and not too late."""
    for margin in (-MARGIN, MARGIN):
        machine_id = planted(fleet, minutes * MINUTE + margin, among).reported
        fleet.tell_interval(machine_id, interval * MINUTE)
        assert due(fleet)[machine_id] is (margin > 0)


@pytest.mark.parametrize(
    ("among", "minutes"),
    [
        ([], 0),
        (minutes_of((5, 0)), 0),
        (minutes_of((30, 0)), 30),
        (minutes_of((1, 0), (120, 5)), 125),
        (minutes_of((1, 0), (120, 10.1)), 0),
    ],
)
def test_a_machine_that_was_to_come_back_was_overdue_before_the_gap(
    fleet: Fleet, among: list[Gap], minutes: float
) -> None:
    """The function that starts agents may have been down as well."""
    for margin in (-MARGIN, MARGIN):
        machine_id = planted(fleet, minutes * MINUTE + margin, among).not_back
        assert due(fleet)[machine_id] is (margin > 0)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(late=st.integers(1, 300).map(lambda each: each * MINUTE + MINUTE // 2), among=gaps)
def test_the_view_keeps_the_rule_about_gaps(fleet: Fleet, late: int, among: list[Gap]) -> None:
    """The rule is tried on many schedules in tests/unit/rules; the view is what claims read."""
    machines = planted(fleet, late, among)
    found = due(fleet)
    wanted = {
        machines.reported: extended_timeout(HEARTBEAT_TIMEOUT, among),
        machines.never_reported: extended_timeout(STARTUP_TIMEOUT, among),
        machines.not_back: required_overdue(HEARTBEAT_TIMEOUT, among),
    }
    for machine_id, seconds in wanted.items():
        if abs(late - seconds) > MARGIN:
            assert found[machine_id] == (late >= seconds)


def test_every_gap_that_matters_is_recorded(fleet: Fleet) -> None:
    """A snapshot leaves out shorter ones: these must not extend the timeout of any agent, however seldom it reports."""
    recorded, extending = set(), set()
    for seconds in range(4 * MINUTE, 5 * MINUTE, 3):
        machine_id = planted(fleet, HOUR, []).reported
        fleet.tell_interval(machine_id, 4 * MINUTE)  # the longest that does not make the timeout longer
        fleet.sql("UPDATE machine_agent_heartbeat SET agent_heartbeat_at = now() - interval '10 minutes'")
        fleet.sql(
            "INSERT INTO recovery_snapshots SELECT :provider, now() - :gap * interval '1 second'",
            provider=PROVIDER,
            gap=seconds,
        )
        if not due(fleet)[machine_id]:
            extending.add(seconds)
        if suspension.take_health_snapshot(fleet.open_session(), PROVIDER).gaps:
            recorded.add(seconds)
    assert extending <= recorded
    assert max(extending) - min(extending) > 30
    assert len(recorded - extending) <= 2
