"""
The floor of the due rows: claims read the due index from there on, and miss no machine by it.

Below it are the places that due rows have left, which an open transaction keeps.
"""

from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest
from shepherd_core.bmdb.machines import due
from shepherd_core.bmdb.session import Session
from shepherd_core.bmdb.work import work
from shepherd_core.domain.machine import Process

from tests.support.bmdb.fleet import HOUR, PROVIDER, Fleet, administrator, ids

START = Process.AGENT_START
FLOOR_AGE = (
    "SELECT extract(epoch FROM clock_timestamp() - greatest(floor, '2000-01-01'))::float8 "
    "FROM due_floors WHERE process = :process"
)
READ = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'machine_due_by_time'"
RAISED = 120
"""Seconds: the floor of a fleet in which nothing is due."""


@pytest.fixture
def session(fleet: Fleet) -> Session:
    """Return a session with a connection of its own."""
    return fleet.open_session(connection=fleet.connect())


def close(fleet: Fleet) -> None:
    """Close the session of a tick, which raises the floor."""
    fleet.open_session(connection=fleet.connect()).close(START, PROVIDER)


def floor_age(fleet: Fleet) -> float:
    """Return how many seconds ago the floor is."""
    return float(fleet.sql(FLOOR_AGE, process=START)[0][0])


def waiting_machine(fleet: Fleet, seconds: float) -> UUID:
    """Return a machine that has been due for an agent start for this many seconds."""
    machine_id = fleet.provided_machine()
    fleet.sql(
        "UPDATE machine_due SET not_before = clock_timestamp() - :s * interval '1 second' "
        "WHERE machine_id = :id AND process = 'ShepherdAgentStart'",
        s=seconds,
        id=machine_id,
    )
    return machine_id


def found(fleet: Fleet) -> list[UUID]:
    """Return the machines that a claim takes."""
    return ids(work.claim(fleet.open_session(connection=fleet.connect()), START, PROVIDER, 10).work)


def test_the_floor_follows_the_time_two_minutes_late(fleet: Fleet) -> None:
    """A statement may commit a due row with its own time in it that late."""
    close(fleet)
    assert RAISED <= floor_age(fleet) < RAISED + HOUR
    fleet.pass_time(HOUR)
    close(fleet)
    assert RAISED <= floor_age(fleet) < RAISED + HOUR


def test_the_floor_stays_below_every_due_row(fleet: Fleet) -> None:
    """A machine may be due for long, as long as nothing may be done to it."""
    machine_id = waiting_machine(fleet, HOUR)
    for _ in range(2):
        close(fleet)
    assert floor_age(fleet) >= HOUR
    assert found(fleet) == [machine_id]


def test_each_process_and_provider_has_its_own_floor(fleet: Fleet) -> None:
    """A session knows only the due rows of its own."""
    machine_id = waiting_machine(fleet, HOUR)
    for process, provider in ((START, "redfish"), (Process.RECOVERY, PROVIDER), (None, None)):
        fleet.open_session(connection=fleet.connect()).close(process, provider)
    assert len(fleet.sql("SELECT 1 FROM due_floors")) == 2
    assert found(fleet) == [machine_id]


def test_a_row_that_was_not_committed_yet_is_found(fleet: Fleet) -> None:
    """The floor is raised by a session that cannot see it."""
    fleet.connection.script("BEGIN")
    machine_id = fleet.sql("INSERT INTO machines DEFAULT VALUES RETURNING machine_id")[0][0]
    fleet.connection.script(f"INSERT INTO machine_provided VALUES ('{machine_id}', '{PROVIDER}', 'late')")
    fleet.connection.run("reschedule", machine_ids=[machine_id])
    close(fleet)
    fleet.connection.script("COMMIT")
    assert found(fleet) == [machine_id]


def test_a_change_makes_a_machine_due_now_and_not_before(fleet: Fleet) -> None:
    """The time since when it has needed an agent is hours ago, below the floor."""
    machine_id = fleet.bare_machine()
    fleet.sql("UPDATE machines SET machine_created_at = clock_timestamp() - interval '5 hours'")
    close(fleet)
    fleet.change(machine_id, f"INSERT INTO machine_provided VALUES ('{machine_id}', '{PROVIDER}', 'old')")
    assert found(fleet) == [machine_id]


@pytest.mark.parametrize("raised", [True, False], ids=["with a floor", "without a floor"])
def test_canceled_work_keeps_its_due_time_although_the_floor_was_raised(
    fleet: Fleet, session: Session, raised: bool
) -> None:
    """While it is claimed, its due row says when the session ends, and the floor passes its due time."""
    machine_id = waiting_machine(fleet, HOUR)
    taken = work.claim(session, START, PROVIDER, 10).work
    if raised:
        close(fleet)
        assert floor_age(fleet) < HOUR
    work.cancel(session, taken)
    assert floor_age(fleet) >= HOUR
    assert found(fleet) == [machine_id]


def test_canceled_work_hides_no_machine_that_has_been_due_for_longer(fleet: Fleet, session: Session) -> None:
    """There is no floor in the first tick, which leaves suspects for later and may do nothing with what it claimed."""
    suspect = waiting_machine(fleet, 2 * HOUR)
    fleet.sql(
        "INSERT INTO work_backoff (machine_id, process, until, cause, deaths) VALUES (:id, :process, now(), '?', 1)",
        id=suspect,
        process=START,
    )
    machine_id = waiting_machine(fleet, HOUR)
    taken = work.claim(session, START, PROVIDER, 10).work
    assert ids(taken) == [machine_id]
    work.cancel(session, taken)
    for _ in range(2):
        session = fleet.open_session(connection=fleet.connect())
        assert ids(work.claim(session, START, PROVIDER, 10, suspects=True).work) == [suspect]
        session.close(START, PROVIDER)


@pytest.mark.parametrize("raised", [True, False], ids=["with a floor", "without a floor"])
def test_a_session_that_cannot_see_a_canceled_machine_does_not_raise_the_floor(
    fleet: Fleet, session: Session, raised: bool
) -> None:
    """It waits for the row of the floor, and finds another revision than in its snapshot."""
    machine_id = waiting_machine(fleet, HOUR)
    if raised:
        close(fleet)
    taken = work.claim(session, START, PROVIDER, 10).work
    session.connection.script("BEGIN")
    session.connection.run(
        "cancel",
        process=START,
        machine_ids=[machine_id],
        not_befores=[taken[0].due_at],
        session_id=session.session_id,
        fence=0,
    )
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(close, fleet)
        fleet.wait_until_blocked()
        session.connection.script("COMMIT")
        closing.result()
    assert found(fleet) == [machine_id]


def test_a_clock_that_is_set_back_lowers_the_floor(fleet: Fleet) -> None:
    """As after a failover; due rows are written with the new time."""
    close(fleet)
    fleet.pass_time(-HOUR)
    assert floor_age(fleet) < 0
    close(fleet)
    assert RAISED <= floor_age(fleet) < HOUR


def test_a_row_below_the_floor_is_repaired(fleet: Fleet) -> None:
    """It was written by hand, or in a transaction that lasted longer than ours can."""
    close(fleet)
    machine_id = waiting_machine(fleet, HOUR)
    assert found(fleet) == []
    wrong = {machine_id: "it is due for ShepherdAgentStart below the floor"}
    assert due.repair(fleet.connection, PROVIDER) == wrong
    assert found(fleet) == [machine_id]


@pytest.mark.parametrize("times", [4, 8])
def test_a_claim_reads_as_much_beside_an_open_transaction_however_often_machines_moved(
    own_fleet: Fleet, times: int
) -> None:
    """PostgreSQL keeps the old versions of due rows for it; without the floor, a claim reads them all."""
    fleet, machines = own_fleet, 50
    with administrator(fleet.settings) as somebody:
        somebody.run("ALTER TABLE machine_due SET (autovacuum_enabled = false)")  # its figures could change the plan
    for _ in range(machines):
        fleet.provided_machine()
    fleet.sql("UPDATE machine_due SET not_before = now() + interval '1 day' WHERE not_before IS NOT NULL")
    with administrator(fleet.settings) as somebody:
        somebody.run("BEGIN ISOLATION LEVEL REPEATABLE READ")
        somebody.run("SELECT count(*) FROM machines")
        for ago in range(times, 0, -1):
            for at in (f"now() - interval '{ago} hours'", "now() + interval '1 day'"):
                fleet.sql(f"UPDATE machine_due SET not_before = {at} WHERE not_before IS NOT NULL")
        without = entries_read(fleet)
        close(fleet)
        with_floor = entries_read(fleet)
        somebody.run("ROLLBACK")
    assert without >= times * machines
    assert with_floor < machines  # of other connections, the server counts late


def entries_read(fleet: Fleet) -> int:
    """Return how many entries of the index a claim reads that finds nothing."""
    connection = fleet.connect()
    session = fleet.open_session(connection=connection)
    connection.script("SET enable_seqscan = off; SET enable_bitmapscan = off")  # the table is small
    before = fleet.sql(READ)[0][0]
    assert work.claim(session, START, PROVIDER, 10).examined == 0
    connection.script("SELECT pg_stat_force_next_flush()")
    connection.run("now")
    return int(fleet.sql(READ)[0][0] - before)
