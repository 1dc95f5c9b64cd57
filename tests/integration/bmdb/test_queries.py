from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from shepherd_core.bmdb.agents import reports
from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.machines import lookup, overview, pauses
from shepherd_core.bmdb.machines.search import Search, matching
from shepherd_core.bmdb.recovery import remediation
from shepherd_core.bmdb.wire import server
from shepherd_core.bmdb.work import history, open_work, work
from shepherd_core.bmdb.work.work import Failure
from shepherd_core.domain.clock import SystemClock
from shepherd_core.domain.errors import ShepherdError, TimeLimitExceeded
from shepherd_core.domain.errors.bmdb import MachineUnknown
from shepherd_core.domain.errors.kinds import FailureKind
from shepherd_core.domain.errors.machine import AgentExited, MalformedAnswer, TakeoverFailed
from shepherd_core.domain.machine import Process
from shepherd_core.domain.records import BadAgent
from shepherd_core.domain.states import State

from shepherdctl.descriptions.conditions import old_transaction
from tests.support.agents.heartbeats import record_heartbeat
from tests.support.bmdb.fleet import HOUR, PROVIDER, Fleet, administrator, claimed
from tests.support.command_line import CommandLine

START = Process.AGENT_START


def test_a_heartbeat_touches_nothing_but_its_row(fleet: Fleet, connection: Connection) -> None:
    """It is the write that the whole fleet causes all the time; it must not wait for a claim either."""
    machine_id = fleet.unhealthy_machine()
    work.start_work(fleet.open_session(), machine_id, "?")
    before = fleet.content()
    fleet.connection.script(
        "BEGIN; UPDATE work SET began_at = began_at; UPDATE machine_provided SET provider_id = provider_id"
    )
    now = SystemClock().time_of_day()
    heartbeat = reports.Heartbeat(machine_id=machine_id, public_key=bytes.fromhex("5e" * 32), signed_at=now)
    assert reports.accept_heartbeat(fleet.connect(), heartbeat)
    fleet.connection.roll_back()
    assert {table for table, rows in fleet.content().items() if rows != before[table]} == {"machine_agent_heartbeat"}
    assert fleet.sql("SELECT clock_timestamp() - agent_heartbeat_at < interval '1 minute' FROM machine_agent_heartbeat")


def test_the_list_shows_what_machines_need_and_what_blocks_them(fleet: Fleet, connection: Connection) -> None:
    failed = fleet.provided_machine("failing")
    session = fleet.open_session()
    (held,) = claimed(session, START, provider="failing")
    work.fail(session, {held: Failure(ShepherdError("no luck"), 600)})
    machines = {
        "bare": fleet.bare_machine(),
        "unhealthy": fleet.unhealthy_machine(),
        "failed": failed,
        "paused": fleet.provided_machine(),
        "in work": fleet.provided_machine(),
    }
    pause_id = pauses.pause(connection, owner="me", reason="?", machine_id=machines["paused"])
    pauses.pause(connection, owner="me", reason="?", machine_id=machines["unhealthy"], seconds=-1)
    work.start_work(session, machines["in work"], "?")
    gone = fleet.bare_machine()
    fleet.sql("INSERT INTO machine_tombstone VALUES (:id, 'Released', 'static', 'machine-9', 'me', '?')", id=gone)
    rows = {machine.machine_id: machine for machine in matching(connection)}
    assert set(rows) == set(machines.values())
    columns = ("provider", "needs", "backing_off", "being_worked_on", "pause_ids")
    assert {
        name: tuple(getattr(rows[machine_id], column) for column in columns) for name, machine_id in machines.items()
    } == {
        "bare": (None, None, False, False, []),
        "unhealthy": ("static", "ShepherdRecovery", False, False, []),
        "failed": ("failing", START, True, False, []),
        "paused": ("static", START, False, False, [pause_id]),
        "in work": ("static", START, False, True, []),
    }


def test_a_search_by_state_finds_each_machine_once(fleet: Fleet, connection: Connection) -> None:
    """It examines 500 machines one by one, and finds the rest at once."""
    fleet.sql("INSERT INTO machines SELECT gen_random_uuid(), now() FROM generate_series(1, 600)")
    fleet.sql("INSERT INTO machine_creation_intent SELECT machine_id, 'static', NULL, now() FROM machines")
    found = [each.machine_id for each in matching(connection, Search(states=(State.CREATING,)))]
    assert (len(found), len(set(found))) == (600, 600)


def test_it_is_shown_from_when_silence_makes_a_machine_unhealthy(fleet: Fleet, connection: Connection) -> None:
    shown = lookup.show_machine(connection, fleet.reporting_machine(60))
    assert shown.unhealthy_at is not None
    assert shown.agent_heartbeat_at is not None
    assert shown.unhealthy_at - shown.agent_heartbeat_at == timedelta(minutes=10)


def test_a_reboot_is_shown_of_its_machine_alone(fleet: Fleet, connection: Connection) -> None:
    rebooted, other = fleet.started_machine(), fleet.started_machine()
    fleet.sql("INSERT INTO machine_rebooted VALUES (:id, now(), now())", id=rebooted)
    assert [lookup.show_machine(connection, each).rebooted_at is None for each in (rebooted, other)] == [False, True]


def test_a_machine_is_found_by_what_operators_see(fleet: Fleet, connection: Connection) -> None:
    """Whole names win: machine-1 is not machine-10."""
    machine_id, other = fleet.provided_machine(), fleet.provided_machine()
    fleet.sql("UPDATE machine_provided SET provider_id = 'machine-10' WHERE machine_id = :machine", machine=other)
    fleet.sql(
        "UPDATE machine_provided SET provider_ip_address = '2001:db8::A' WHERE machine_id = :machine",
        machine=machine_id,
    )
    for name in (str(machine_id), str(machine_id).upper(), str(machine_id)[:18], "Machine-1", "2001:DB8::a"):
        assert lookup.find_machine(connection, name) == machine_id
    assert lookup.find_machine(connection, "MACHINE-10") == other
    fleet.sql("UPDATE machine_provided SET provider_id = 'rack7-3' WHERE machine_id = :machine", machine=other)
    assert lookup.find_machine(connection, "rack") == other


@pytest.mark.parametrize("name", ["", "no such machine", "%", "_", "\\", "________-"])
def test_a_name_that_matches_no_machine_is_refused(fleet: Fleet, connection: Connection, name: str) -> None:
    """Acting on the wrong machine is worse than asking again; patterns are not expanded."""
    fleet.provided_machine()
    with pytest.raises(MachineUnknown, match="no machine matches"):
        lookup.find_machine(connection, name)


def test_an_ambiguous_name_is_refused(fleet: Fleet, connection: Connection) -> None:
    machines = [fleet.locate(fleet.provided_machine(), "fra") for _ in range(12)]
    with pytest.raises(MachineUnknown, match="more than one machine matches 'mach'") as refused:
        lookup.find_machine(connection, "mach")
    lines = str(refused.value).splitlines()[1:]
    assert f"  machine-1 ({machines[0]}) at fra" in lines
    assert (len(lines), lines[-1]) == (11, "  and more")


def plant_history(fleet: Fleet, days: float, rows: int = 1) -> UUID:
    """Return a machine with nothing but history, this many days ago, one second per row."""
    machine_id = uuid4()
    fleet.sql(
        "INSERT INTO work_history (machine_id, process, event, timestamp) SELECT :id, 'ShepherdRecovery', 'Started', "
        f"now() - interval '{days} days' - n * interval '1 second' FROM generate_series(1, {rows}) n",
        id=machine_id,
    )
    return machine_id


def test_old_history_is_deleted_in_parts_oldest_first(fleet: Fleet, connection: Connection) -> None:
    """A retention that is set after years must not delay an invocation."""
    plant_history(fleet, days=40, rows=1100)
    newer, young = plant_history(fleet, days=31), plant_history(fleet, days=29)
    assert history.delete_old_history(connection, days=30) == 1000
    assert fleet.sql("SELECT 1 FROM work_history WHERE machine_id = :id", id=newer)
    assert history.delete_old_history(connection, days=30) == 101
    assert fleet.sql("SELECT machine_id FROM work_history") == [[young]]
    assert history.delete_old_history(connection, days=30) == 0


@pytest.mark.parametrize(("failing", "running", "bad"), [(3, 0, True), (2, 0, False), (9, 1, False)])
def test_an_agent_that_fails_alike_on_three_machines_is_bad(
    fleet: Fleet, failing: int, running: int, bad: bool
) -> None:
    """One machine less may be chance; and what runs elsewhere is not the agent's fault."""
    machines = fleet.machines(failing + 2)
    fleet.machines(1 + running, started_ago=60)
    fleet.sql(f"UPDATE machine_agent_started SET agent_sha256 = CASE WHEN {running} = 0 THEN 'other' ELSE 'ab12' END")
    session = fleet.open_session()
    failures = [AgentExited("status 7")] * failing + [MalformedAnswer("?"), TimeLimitExceeded()]
    for error in failures:
        if isinstance(error, TakeoverFailed):
            error.agent_sha256 = "ab12"
    works = {held.machine_id: held for held in claimed(session, START)}
    work.fail(session, {works[each]: Failure(error, 60) for each, error in zip(machines, failures, strict=True)})
    found = remediation.bad_agents(fleet.connection)
    assert found == ([BadAgent("ab12", FailureKind.AGENT_EXITED, failing)] if bad else [])


def test_penalties_are_listed_as_they_end(fleet: Fleet, connection: Connection) -> None:
    for minutes in (3, 1, 2):
        fleet.sql(
            "INSERT INTO capacity_penalties (provider, capacity_id, until, kind, cause) "
            "VALUES ('static', :place, now() + :minutes * interval '1 minute', 'provider-refused', '?')",
            place=str(minutes),
            minutes=minutes,
        )
    assert [each.capacity_id for each in open_work.penalties(connection, 2)] == ["1", "2"]


def test_the_latest_failures_are_the_examples(fleet: Fleet, connection: Connection) -> None:
    machines = [fleet.quarantine(fleet.provided_machine()) for _ in range(5)]
    for hours, machine_id in enumerate(reversed(machines)):
        ago = "UPDATE machine_quarantine SET quarantined_at = now() - :hours * interval '1 hour' WHERE machine_id = :id"
        fleet.sql(ago, hours=hours, id=machine_id)
    (found,) = overview.failures(connection)
    assert found.examples == [str(machine_id) for machine_id in reversed(machines[2:])]


def test_a_machine_in_quarantine_is_counted_once_if_it_reports(fleet: Fleet) -> None:
    fleet.machines(3, started_ago=HOUR, reported_ago=0)
    reporting, silent = fleet.machines(2, started_ago=HOUR)
    for machine in (reporting, silent):
        fleet.quarantine(machine)
    fleet.pass_time(60)
    record_heartbeat(fleet.connection, reporting)
    (found,) = overview.unsteady(fleet.connection)
    assert (found.provider, found.recovered_often, found.reports_again) == (PROVIDER, 0, 1)
    assert found.quarantined_since is not None


# A transaction that somebody leaves open, which keeps PostgreSQL from removing dead rows.

END = "an administrator ends it with SELECT pg_terminate_backend(42)"
END_PREPARED = "an administrator ends it with COMMIT PREPARED or ROLLBACK PREPARED"


@pytest.mark.parametrize("begin", ["BEGIN ISOLATION LEVEL REPEATABLE READ", "BEGIN; SELECT pg_current_xact_id()"])
def test_an_open_transaction_is_found_by_its_pid(fleet: Fleet, begin: str) -> None:
    with administrator(fleet.settings) as somebody:
        for statement in begin.split("; "):
            somebody.run(statement)
        (pid,) = somebody.run("SELECT pg_backend_pid()")[0]
        found = server.oldest_transaction(fleet.connection, 0)
        assert found is not None
        assert found.seconds > 0
        assert found == server.Transaction("open", pid, "postgres", "", "idle in transaction", found.seconds)
        assert server.oldest_transaction(fleet.connection, 60) is None
        somebody.run("ROLLBACK")
    assert server.oldest_transaction(fleet.connection, 0) is None


def test_status_says_that_it_cannot_see_the_transactions_of_others(fleet: Fleet) -> None:
    with administrator(fleet.settings) as somebody:
        somebody.run('CREATE ROLE "blind" LOGIN')
        try:
            for grant in ("SELECT ON ALL TABLES IN SCHEMA public", "USAGE ON SCHEMA public"):
                somebody.run(f'GRANT {grant} TO "blind"')
            shepherdctl = CommandLine(fleet.settings.model_copy(update={"bmdb_user": "blind", "bmdb_roles": None}))
            assert shepherdctl.load("status", status=3)["sees_all_transactions"] is False
            said = " ".join(shepherdctl("status").stderr.split())
            assert 'not shown; an administrator can change that: GRANT pg_read_all_stats TO "blind"' in said
        finally:
            somebody.run('DROP OWNED BY "blind"')
            somebody.run('DROP ROLE "blind"')


@pytest.mark.parametrize(
    ("kind", "application", "told"),
    [
        ("open", "psql", ("a transaction of alice (psql) has been open for 11 min, and slows every claim", END)),
        ("open", "", ("a transaction of alice has been open for 11 min, and slows every claim", END)),
        (
            "prepared",
            "night",
            ("the transaction 'night' of alice was prepared 11 min ago, and slows every claim", END_PREPARED),
        ),
    ],
)
def test_an_old_transaction_is_told_with_its_end(kind: str, application: str, told: tuple[str, str]) -> None:
    assert old_transaction(server.Transaction(kind, 42, "alice", application, None, 660)) == told
