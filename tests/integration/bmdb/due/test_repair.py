"""
The repair of the due index: contradictions with the facts are found, corrected and reported; valid delays are not.

Rows are corrupted with SQL here, as a defect would. That Shepherd itself never
corrupts one is checked by the invariants (``tests/chaos``) and the tests of locks.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from uuid import UUID

import pytest
from shepherd_core.bmdb.machines import due, pauses
from shepherd_core.bmdb.work import work
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.machine import Process
from shepherd_core.domain.remediation import RESTART_AGENT
from shepherd_core.loops.updater import Updater
from shepherd_core.telemetry import Metric

from tests.conftest import ManualClock, log_lines
from tests.support import defaults
from tests.support.agents.heartbeats import record_heartbeat
from tests.support.bmdb.fleet import HOUR, PROVIDER, Fleet, claimed, ids
from tests.support.bmdb.listings import Listed
from tests.support.waiting import WAIT_SECONDS

DAY = 24 * HOUR
START, RECOVER = Process.AGENT_START, Process.RECOVERY

# What is spoiled, on what kind of machine, what is said of it, and which loop finds the machine again.
SPOILED: dict[str, tuple[str, str, str, Process]] = {
    "due for nothing": ("not_before = NULL", "provided", "it needs ShepherdAgentStart, but is not due for it", START),
    "due for nothing, unhealthy": (
        "not_before = NULL",
        "unhealthy",
        "it needs ShepherdRecovery, but is not due for it",
        RECOVER,
    ),
    "due for another": (
        "not_before = CASE process WHEN 'ShepherdRecovery' THEN clock_timestamp() END",
        "provided",
        "it needs ShepherdAgentStart, but is not due for it",
        START,
    ),
    "due elsewhere": ("provider = 'equinix'", "provided", "its due row has provider equinix", START),
    "due never": ("not_before = 'infinity'", "provided", "it is due for ShepherdAgentStart too late", START),
    "due in an hour": (
        "not_before = clock_timestamp() + interval '1 hour'",
        "provided",
        "it is due for ShepherdAgentStart too late",
        START,
    ),
    "recovery is due in two days": (
        "not_before = clock_timestamp() + interval '2 days'",
        "unhealthy",
        "it is due for ShepherdRecovery too late",
        RECOVER,
    ),
    "its recovery is never checked": (
        "not_before = CASE process WHEN 'ShepherdAgentStart' THEN not_before END",
        "not back",
        "it needs ShepherdRecovery, but is not due for it",
        RECOVER,
    ),
    "recovery of a machine that is not back is due in three days": (
        "not_before = CASE process WHEN 'ShepherdRecovery' THEN now() + interval '3 days' ELSE not_before END",
        "not back",
        "it is due for ShepherdRecovery too late",
        RECOVER,
    ),
    "agent start of a machine that is not back is due in three days": (
        "not_before = CASE process WHEN 'ShepherdAgentStart' THEN now() + interval '3 days' ELSE not_before END",
        "not back",
        "it is due for ShepherdAgentStart too late",
        RECOVER,
    ),
    "its recovery is checked next month": (
        "not_before = CASE process WHEN 'ShepherdRecovery' THEN now() + interval '30 days' ELSE not_before END",
        "not back",
        "it is due for ShepherdRecovery too late",
        RECOVER,
    ),
}


@pytest.fixture
def updater(fleet: Fleet, clock: ManualClock) -> Updater:
    """Return the Updater of a provider that lists nothing."""
    return Updater(Listed(), fleet.connection, clock, 30, HOUR)


def run(updater: Updater) -> float:
    """Return how many machines an invocation has repaired."""
    return updater.run(Deadline(updater.clock, 600), "a test")[Metric.REPAIRED]


def planted(fleet: Fleet, kind: str) -> UUID:
    """Return a machine of a kind, among others."""
    make: dict[str, Callable[[], UUID]] = {
        "provided": fleet.provided_machine,
        "unhealthy": fleet.unhealthy_machine,
        "not back": lambda: not_back(fleet),
    }
    machine_id = make[kind]()
    for _ in range(3):
        fleet.provided_machine()
        fleet.unhealthy_machine()
    return machine_id


def not_back(fleet: Fleet) -> UUID:
    """Return a machine that did not come back after a recovery, with a failed agent start."""
    machine_id = fleet.unhealthy_machine()
    session = fleet.open_session(DAY)
    work.finish_recovery(session, claimed(session, RECOVER), 60, grace_seconds=HOUR)
    fleet.pass_time(61)
    work.fail(session, {each: work.Failure("?", 10 * HOUR) for each in claimed(session, START)})
    fleet.pass_time(HOUR)
    session.close()
    return machine_id


def spoil(fleet: Fleet, machine_id: UUID, how: str) -> None:
    """Change a due row outside of the product's code."""
    fleet.sql(f"UPDATE machine_due SET {how} WHERE machine_id = :id", id=machine_id)


@pytest.mark.parametrize("what", SPOILED)
def test_a_due_row_that_contradicts_the_facts_is_repaired_and_reported(
    fleet: Fleet, updater: Updater, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    """The machine would wait without end and unnoticed; after the repair its loop finds it at once."""
    how, kind, said, process = SPOILED[what]
    machine_id = planted(fleet, kind)
    assert due.inconsistencies(fleet.connection, PROVIDER) == {}
    spoil(fleet, machine_id, how)
    assert run(updater) == 1
    lines = log_lines(capsys)
    (line,) = [line for line in lines if line["level"] == "ERROR"]
    assert (line["machine_id"], line["wrong"]) == (str(machine_id), said)
    assert machine_id in ids(claimed(fleet.open_session(), process))
    assert run(updater) == 0


def test_a_machine_without_a_due_row_gets_one(fleet: Fleet) -> None:
    """Claims read nothing but due rows."""
    machine_id = planted(fleet, "provided")
    fleet.sql("DELETE FROM machine_due WHERE machine_id = :id", id=machine_id)
    assert due.repair(fleet.connection, PROVIDER) == {machine_id: "it has no due row"}
    assert machine_id in ids(claimed(fleet.open_session(), START))


def test_a_due_row_without_a_machine_is_deleted(fleet: Fleet) -> None:
    """It would be the first row of every claim, and no claim moves it."""
    machine_id = planted(fleet, "provided")
    fleet.sql("DELETE FROM machine_provided WHERE machine_id = :id", id=machine_id)
    assert due.repair(fleet.connection, PROVIDER) == {machine_id: "it has a due row, but is not provided"}
    assert fleet.sql("SELECT 1 FROM machine_due WHERE machine_id = :id", id=machine_id) == []


def test_due_rows_of_other_providers_are_not_repaired(fleet: Fleet) -> None:
    """The metric and the alarm are those of the machine's own provider."""
    machine_id = fleet.provided_machine("equinix")
    spoil(fleet, machine_id, "not_before = NULL")
    assert due.repair(fleet.connection, PROVIDER) == {}
    assert list(due.repair(fleet.connection, "equinix")) == [machine_id]


def test_a_dry_run_shows_what_would_be_repaired(fleet: Fleet, updater: Updater) -> None:
    """And it changes nothing."""
    machine_id = planted(fleet, "provided")
    spoil(fleet, machine_id, "not_before = NULL")
    before = fleet.sql("SELECT * FROM machine_due ORDER BY machine_id, process")
    wrong = {"machine_id": machine_id, "wrong": "it needs ShepherdAgentStart, but is not due for it"}
    assert updater.plan(Deadline(updater.clock, 60))["repairs"] == [wrong]
    assert fleet.sql("SELECT * FROM machine_due ORDER BY machine_id, process") == before
    assert run(updater) == 1


def test_a_range_of_a_large_fleet_is_examined_from_any_id_on(fleet: Fleet) -> None:
    """A different range each time, so that all machines are examined in the end; and never more at once."""
    fleet.sql("INSERT INTO machines SELECT FROM generate_series(1, 700)")
    fleet.sql("INSERT INTO machine_provided SELECT machine_id, 'static', machine_id::text FROM machines")
    fleet.sql(
        "INSERT INTO machine_due SELECT machine_id, process, 'static', NULL "
        "FROM machines, unnest(ARRAY['ShepherdAgentStart', 'ShepherdRecovery']) AS process"
    )
    machines = [row[0] for row in fleet.sql("SELECT machine_id FROM machines ORDER BY machine_id")]
    for start in (0, 100, 300):
        found = due.inconsistencies(fleet.connection, PROVIDER, machines[start])
        assert sorted(found) == sorted([*machines, *machines][start : start + 500])
    assert len(due.repair(fleet.connection, PROVIDER, machines[0])) == 500
    assert sorted(due.repair(fleet.connection, PROVIDER, machines[500])) == machines[500:]


@pytest.mark.parametrize("when", ["before it is judged again", "while it is judged"])
def test_a_row_that_is_being_changed_is_not_reported(fleet: Fleet, when: str) -> None:
    """The first result may be out of date; the facts are evaluated again under the lock."""
    machine_id = planted(fleet, "provided")
    spoil(fleet, machine_id, "not_before = NULL")
    concurrent = fleet.connect()
    with ThreadPoolExecutor(1) as pool:

        def change() -> Future[dict[UUID, str]]:
            concurrent.run("lock_due_rows", machine_ids=[machine_id])
            late = pool.submit(due.repair, fleet.connection, PROVIDER)
            fleet.wait_until_blocked()
            if when == "while it is judged":
                concurrent.run("reschedule", machine_ids=[machine_id])
            else:
                concurrent.script(f"DELETE FROM machine_due WHERE machine_id = '{machine_id}'")
                concurrent.script(f"DELETE FROM machine_provided WHERE machine_id = '{machine_id}'")
            return late

        assert concurrent.transact(change).result(WAIT_SECONDS) == {}


def _nothing(fleet: Fleet) -> None:
    fleet.provided_machine()


def _worked_on(fleet: Fleet) -> None:
    fleet.provided_machine()
    session = fleet.open_session(3 * DAY)
    assert claimed(session, START)
    session.renew()


def _in_backoff(fleet: Fleet) -> None:
    fleet.provided_machine()
    session = fleet.open_session()
    work.fail(session, {each: work.Failure("?", 3 * DAY) for each in claimed(session, START)})


def _passed_over(fleet: Fleet) -> None:
    machine_id = fleet.provided_machine()
    pauses.pause(fleet.connection, owner="me", reason="?", machine_id=machine_id)
    assert claimed(fleet.open_session(), START) == []


def _paused_no_more(fleet: Fleet) -> None:
    _passed_over(fleet)
    fleet.sql("DELETE FROM pauses")


def _settles(fleet: Fleet) -> None:
    fleet.unhealthy_machine()
    session = fleet.open_session()
    work.finish_recovery(session, claimed(session, RECOVER), 3 * DAY, grace_seconds=6 * DAY, kind=RESTART_AGENT)
    assert claimed(session, RECOVER) == []  # without a failed agent start it is never overdue


def _reports(fleet: Fleet) -> None:
    machine_id = fleet.unhealthy_machine()
    assert record_heartbeat(fleet.connection, machine_id)
    day = replace(defaults.HEALTH, heartbeat_timeout_seconds=DAY - 1)
    assert claimed(fleet.open_session(), RECOVER, timeouts=day) == []


def _taken_back_end_of_a_suspension(fleet: Fleet) -> None:
    fleet.unhealthy_machine()
    fleet.sql("INSERT INTO recovery_suspensions VALUES ('static', '', now() - interval '2 hours', now(), '?')")
    assert claimed(fleet.open_session(), RECOVER) == []
    fleet.sql("UPDATE recovery_suspensions SET ended_at = NULL")


def _grace_that_starts_over(fleet: Fleet) -> None:
    not_back(fleet)
    fleet.sql("INSERT INTO recovery_suspensions VALUES ('static', '', now() - interval '2 hours', now(), '?')")
    assert claimed(fleet.open_session(), RECOVER) == []
    fleet.sql("UPDATE recovery_suspensions SET ended_at = NULL")


def _in_doubt_after_a_gap(fleet: Fleet) -> None:
    not_back(fleet)
    fleet.sql(
        "INSERT INTO recovery_gaps (provider, began_at, ended_at) VALUES ('static', now() - interval '2 days', now())"
    )
    longest = replace(defaults.HEALTH, startup_timeout_seconds=DAY, heartbeat_timeout_seconds=DAY)
    assert claimed(fleet.open_session(), RECOVER, timeouts=longest) == []


def _installed(fleet: Fleet) -> None:
    machine_id = fleet.unhealthy_machine()
    fleet.request_installation(machine_id, 1)
    fleet.report_installation(machine_id, 1)
    spoil(fleet, machine_id, "not_before = NULL")


LEGITIMATE = {
    "nothing": _nothing,
    "a session that works on it": _worked_on,
    "a backoff": _in_backoff,
    "a pause": _passed_over,
    "a pause that somebody deleted": _paused_no_more,
    "a settle time": _settles,
    "a heartbeat": _reports,
    "a suspension that begins again": _taken_back_end_of_a_suspension,
    "a grace that starts over": _grace_that_starts_over,
    "a gap between snapshots": _in_doubt_after_a_gap,
    "a machine that needs nothing": _installed,
}


@pytest.mark.parametrize("reason", LEGITIMATE)
def test_a_row_that_is_later_for_a_reason_is_left_as_it_is(fleet: Fleet, reason: str) -> None:
    """An alarm that goes off in a healthy fleet would be ignored."""
    LEGITIMATE[reason](fleet)
    before = fleet.sql("SELECT * FROM machine_due")
    assert due.repair(fleet.connection, PROVIDER) == {}
    assert fleet.sql("SELECT * FROM machine_due") == before
