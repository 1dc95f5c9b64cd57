"""What is recorded about machines outside of work, and what people ask about them."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from shepherd_core.bmdb import queries, work
from shepherd_core.bmdb.work import Failure
from shepherd_core.errors import MachineUnknown
from shepherd_core.machine import Process

from tests.integration.fleet import claimed

if TYPE_CHECKING:
    from shepherd_core.bmdb.connection import Connection

    from tests.integration.fleet import Fleet

START = Process.AGENT_START


def test_a_heartbeat_is_recorded_for_a_started_agent_alone(fleet: Fleet, connection: Connection) -> None:
    """The tag of an agent that was never started would keep the Initializer away."""
    started, provided = fleet.started_machine(), fleet.provided_machine()
    assert queries.record_heartbeat(connection, started)
    assert queries.record_heartbeat(connection, started)
    assert not queries.record_heartbeat(connection, provided)
    assert not queries.record_heartbeat(connection, uuid4())
    assert fleet.sql("SELECT machine_id FROM machine_agent_heartbeat") == [[started]]


def test_a_heartbeat_touches_nothing_but_its_row(fleet: Fleet, connection: Connection) -> None:
    """It is the one write that the whole fleet causes all the time; it must not wait for a claim either."""
    machine_id = fleet.silent_machine()
    before = fleet.sql("SELECT * FROM machine_due")
    fleet.connection.script("BEGIN; UPDATE machine_due SET revision = revision")
    assert queries.record_heartbeat(fleet.connect(), machine_id)
    fleet.connection.roll_back()
    assert fleet.sql("SELECT * FROM machine_due") == before
    assert fleet.sql("SELECT clock_timestamp() - agent_heartbeat_at < interval '1 minute' FROM machine_agent_heartbeat")


def test_machines_are_listed_page_by_page(fleet: Fleet, connection: Connection) -> None:
    """Each once, in a stable order, whatever comes between."""
    machines = sorted(fleet.provided_machine() for _ in range(5))
    pages = []
    after = None
    while page := queries.list_machines(connection, after=after, limit=2):
        pages.append([machine["machine_id"] for machine in page])
        after = pages[-1][-1]
    assert pages == [machines[:2], machines[2:4], machines[4:]]


def test_the_list_tells_what_each_machine_needs_and_what_keeps_it(fleet: Fleet, connection: Connection) -> None:
    """The first thing that an operator looks at."""
    failed = fleet.provided_machine("failing")
    session = fleet.open_session()
    (held,) = claimed(session, START, provider="failing")
    work.fail(session, {held: Failure("no luck", 600)})
    machines = {
        "bare": fleet.bare_machine(),
        "silent": fleet.silent_machine(),
        "failed": failed,
        "paused": fleet.provided_machine(),
        "in work": fleet.provided_machine(),
    }
    queries.pause(connection, owner="me", reason="?", machine_id=machines["paused"])
    queries.pause(connection, owner="me", reason="?", machine_id=machines["silent"], seconds=-1)
    work.start_work(session, Process.ACCESS, machines["in work"])
    rows = {machine["machine_id"]: machine for machine in queries.list_machines(connection)}
    columns = ("provider", "process", "backing_off", "being_worked_on", "paused")
    assert {name: tuple(rows[machine_id][column] for column in columns) for name, machine_id in machines.items()} == {
        "bare": (None, None, None, False, False),
        "silent": ("static", "ShepherdRecovery", None, False, False),
        "failed": ("failing", START, True, False, False),
        "paused": ("static", START, None, False, True),
        "in work": ("static", START, None, True, False),
    }
    assert [machine["machine_id"] for machine in queries.list_machines(connection, provider="failing")] == [failed]


def test_one_machine_is_shown_with_everything(fleet: Fleet, connection: Connection) -> None:
    """Who works on it, and what went wrong before."""
    machine_id = fleet.provided_machine()
    session = fleet.open_session(seconds=2 * 3600)
    (held,) = claimed(session, START)
    work.fail(session, {held: Failure("no luck", 60, "host key")})
    fleet.pass_time(60)
    claimed(session, START)
    shown = queries.show_machine(connection, machine_id)
    assert (shown["needs"], shown["provider_id"], shown["host_key"]) == (START, "machine-1", "host key")
    assert [(backoff["cause"], backoff["last_interval_seconds"]) for backoff in shown["backoffs"]] == [("no luck", 60)]
    assert [(each["process"], each["component_name"]) for each in shown["work"]] == [(START, "test")]


def test_an_unknown_machine_is_said_to_be_unknown(connection: Connection) -> None:
    """An operator mistypes."""
    with pytest.raises(MachineUnknown):
        queries.show_machine(connection, uuid4())


def test_history_is_told_newest_first(fleet: Fleet, connection: Connection) -> None:
    """The last thing that happened is what people look for; the limit cuts off the past."""
    machine_id = fleet.provided_machine()
    session = fleet.open_session()
    (held,) = claimed(session, START)
    work.fail(session, {held: Failure("no luck", 60)})
    events = queries.history(connection, machine_id)
    assert [(event["event"], event["failed_cause"]) for event in events] == [("Failed", "no luck"), ("Started", None)]
    assert {event["session_id"] for event in events} == {session.session_id}
    assert queries.history(connection, machine_id, limit=1) == events[:1]


def test_people_name_a_machine_by_the_beginning_of_its_id_or_by_its_provider_id(
    fleet: Fleet, connection: Connection
) -> None:
    """Whatever they have on the screen."""
    machine_id = fleet.provided_machine()
    fleet.provided_machine()
    for name in (str(machine_id), str(machine_id).upper(), str(machine_id)[:18], "machine-1"):
        assert queries.machine_named(connection, name) == machine_id


@pytest.mark.parametrize("name", ["", "machine-", "no such machine", "%", "_", "\\", "________-"])
def test_a_name_that_is_not_one_machines_is_refused(fleet: Fleet, connection: Connection, name: str) -> None:
    """Acting on the wrong machine is worse than asking again; nobody's pattern is taken for a name."""
    fleet.provided_machine()
    with pytest.raises(MachineUnknown, match="no machine is called"):
        queries.machine_named(connection, name)


def test_an_ambiguous_name_is_refused(fleet: Fleet, connection: Connection) -> None:
    """The first that comes is not the one that was meant."""
    for last in (1, 2):
        fleet.sql(f"INSERT INTO machines VALUES ('00000000-0000-4000-8000-00000000000{last}')")
    with pytest.raises(MachineUnknown, match="more than one machine is called '0000'"):
        queries.machine_named(connection, "0000")


def test_a_forgotten_host_key_is_gone(fleet: Fleet, connection: Connection) -> None:
    """After a reinstall, the next contact is a first one."""
    machine_id = fleet.provided_machine()
    fleet.sql("INSERT INTO machine_host_key VALUES (:id, 'pinned', now())", id=machine_id)
    assert queries.forget_host_key(connection, machine_id)
    assert not queries.forget_host_key(connection, machine_id)
    assert claimed(fleet.open_session(), START)[0].host_key is None


def test_the_time_of_day_is_the_databases(fleet: Fleet, connection: Connection) -> None:
    """All times in the BMDB are compared with it."""
    before, after = fleet.sql("SELECT clock_timestamp()")[0][0], queries.now(connection)
    assert before < after < fleet.sql("SELECT clock_timestamp()")[0][0]
