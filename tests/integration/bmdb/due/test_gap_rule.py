"""The view that says when machines are due, compared with the rule about gaps between health snapshots."""

from dataclasses import dataclass
from uuid import UUID

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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


def planted(fleet: Fleet, late: int, among: list[Gap]) -> Machines:
    """Let there be only these machines and gaps."""
    fleet.empty()
    fleet.open_session()  # records the policy
    machines = Machines(
        fleet.unhealthy_machine(late, late + HOUR), fleet.started_machine(late), fleet.provided_machine()
    )
    fleet.change(
        machines.not_back,
        f"INSERT INTO machine_grace VALUES ('{machines.not_back}', now() - interval '1 day', "
        f"now() - {late} * interval '1 second')",
        f"INSERT INTO work_backoff VALUES ('{machines.not_back}', 'ShepherdAgentStart', now(), '?', 60)",
    )
    for gap in among:
        fleet.sql(
            "INSERT INTO recovery_gaps (provider, began_at, ended_at) VALUES "
            "(:provider, now() - :began * interval '1 second', now() - :ended * interval '1 second')",
            provider=PROVIDER,
            began=gap.began_ago,
            ended=gap.ended_ago,
        )
    return machines


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(late=st.integers(1, 300).map(lambda each: each * MINUTE + MINUTE // 2), among=gaps)
def test_the_view_keeps_the_rule_about_gaps(fleet: Fleet, late: int, among: list[Gap]) -> None:
    """The rule is tried on many schedules in tests/unit/rules; the view is what claims read."""
    machines = planted(fleet, late, among)
    due = dict(
        fleet.sql(
            "SELECT machine_id, due_at <= statement_timestamp() FROM machine_due_at WHERE process = 'ShepherdRecovery'"
        )
    )
    wanted = {
        machines.reported: extended_timeout(HEARTBEAT_TIMEOUT, among),
        machines.never_reported: extended_timeout(STARTUP_TIMEOUT, among),
        machines.not_back: required_overdue(HEARTBEAT_TIMEOUT, among),
    }
    for machine_id, seconds in wanted.items():
        if abs(late - seconds) > MARGIN:
            assert due[machine_id] == (late >= seconds)
