"""Due rows are brought forward when what they were computed from changes: the policy, a location."""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from uuid import UUID

import pytest
from shepherd_core.bmdb.listings import provider_facts
from shepherd_core.bmdb.machines import due
from shepherd_core.bmdb.recovery import suspension
from shepherd_core.bmdb.work import work
from shepherd_core.bmdb.work.work import Failure
from shepherd_core.domain.errors import Fault
from shepherd_core.domain.machine import Process

from tests.support import defaults
from tests.support.bmdb.fleet import HOUR, PROVIDER, Fleet, claimed, ids
from tests.support.waiting import WAIT_SECONDS

START, RECOVER = Process.AGENT_START, Process.RECOVERY
HERE, THERE = "rack 1", "rack 2"
DAY = 24 * HOUR


def due_in(fleet: Fleet, machine_id: UUID) -> float:
    """Return in how many seconds the row for recovery is due; infinity: never."""
    found: float = fleet.sql(
        "SELECT extract(epoch FROM not_before - clock_timestamp())::float8 FROM machine_due "
        "WHERE machine_id = :id AND process = :process",
        id=machine_id,
        process=RECOVER,
    )[0][0]
    return found


def unreached(fleet: Fleet) -> UUID:
    """Return a machine that did not come back, because of an SSH outage at its location."""
    machine_id = fleet.locate(fleet.unhealthy_machine(), HERE)
    session = fleet.open_session(DAY)
    (held,) = claimed(session, RECOVER)
    work.finish_recovery(session, [held], 0, grace_seconds=0)
    (held,) = claimed(session, START)
    work.fail(session, {held: Failure("no answer", DAY, fault=Fault.UNREACHED)})
    suspension.set_ssh_outages(session, PROVIDER, {HERE: "nothing is reached"})
    return machine_id


def test_a_shorter_timeout_reaches_every_machine_at_the_next_snapshot(fleet: Fleet) -> None:
    """Otherwise a timeout of a day that becomes one of ten minutes would hold for another day."""
    fleet.timeouts = replace(defaults.HEALTH, heartbeat_timeout_seconds=DAY)
    machines = [fleet.reporting_machine(60) for _ in range(3)]
    suspension.take_health_snapshot(fleet.open_session(), PROVIDER)
    assert min(due_in(fleet, machine) for machine in machines) > HOUR
    fleet.timeouts = defaults.HEALTH
    suspension.take_health_snapshot(fleet.open_session(), PROVIDER)
    assert max(due_in(fleet, machine) for machine in machines) <= defaults.HEALTH.heartbeat_timeout_seconds
    before = fleet.sql("SELECT * FROM machine_due")
    suspension.take_health_snapshot(fleet.open_session(), PROVIDER)
    assert fleet.sql("SELECT * FROM machine_due") == before, "once is enough"


@pytest.mark.parametrize("longer", ["heartbeat_timeout_seconds", "startup_timeout_seconds"])
def test_a_longer_timeout_moves_no_due_row(fleet: Fleet, longer: str) -> None:
    """The rows are too early then, which the next claim finds."""
    machine = fleet.reporting_machine(60)
    suspension.take_health_snapshot(fleet.open_session(), PROVIDER)
    before = due_in(fleet, machine)
    fleet.timeouts = replace(defaults.HEALTH, **{longer: DAY})
    suspension.take_health_snapshot(fleet.open_session(), PROVIDER)
    assert 0 < due_in(fleet, machine) <= before


def test_due_rows_are_brought_forward_a_bounded_number_at_a_time(fleet: Fleet) -> None:
    """A fleet of 100,000 machines must not be written in one statement."""
    fleet.timeouts = replace(defaults.HEALTH, startup_timeout_seconds=DAY)
    machines = [fleet.started_machine() for _ in range(5)]
    fleet.open_session()
    fleet.sql("UPDATE machine_due SET not_before = not_before + interval '1 day'")
    fleet.timeouts = defaults.HEALTH
    session = fleet.open_session()
    moved = []
    for more in (True, True, False, False):
        assert suspension.bring_forward(session, PROVIDER, rows=2) is more
        moved.append(sum(due_in(fleet, machine) <= 0 for machine in machines))
    assert moved == [2, 4, 5, 5]


def test_a_timeout_that_becomes_shorter_again_reaches_every_machine(fleet: Fleet) -> None:
    """The pass for the time before ended just then, and left out those that it had brought forward already."""
    fleet.timeouts = replace(defaults.HEALTH, heartbeat_timeout_seconds=DAY)
    first, _ = sorted(fleet.reporting_machine(60) for _ in range(2))
    suspension.take_health_snapshot(fleet.open_session(), PROVIDER)
    fleet.timeouts = replace(defaults.HEALTH, heartbeat_timeout_seconds=6 * HOUR)
    session, other = fleet.open_session(connection=fleet.connect()), fleet.connect()
    assert suspension.bring_forward(session, PROVIDER, rows=1)
    assert claimed(session, RECOVER) == []
    assert 5 * HOUR < due_in(fleet, first) < 6 * HOUR
    fleet.timeouts = defaults.HEALTH
    with ThreadPoolExecutor(1) as pool:

        def shorten() -> Future[bool]:
            fleet.open_session(connection=other)
            last = pool.submit(suspension.bring_forward, session, PROVIDER, 5)
            fleet.wait_until_blocked()
            return last

        other.transact(shorten).result(WAIT_SECONDS)
    suspension.take_health_snapshot(fleet.open_session(), PROVIDER)
    assert due_in(fleet, first) <= defaults.HEALTH.heartbeat_timeout_seconds


def test_a_snapshot_sets_aside_what_an_ssh_outage_holds(fleet: Fleet) -> None:
    """A thousand such machines would hide those behind them from the circuit breaker."""
    machine = unreached(fleet)
    assert due_in(fleet, machine) <= 0
    suspension.take_health_snapshot(fleet.open_session(), PROVIDER)
    assert due_in(fleet, machine) == float("inf")
    assert due.inconsistencies(fleet.connection, PROVIDER) == {}, "the repair leaves it there"


@pytest.mark.parametrize("moved", [True, False])
def test_a_machine_that_leaves_the_place_of_an_ssh_outage_is_due_at_once(fleet: Fleet, moved: bool) -> None:
    """Otherwise only the repair would find it, after hours in a large fleet, and with an alarm."""
    machine = unreached(fleet)
    session = fleet.open_session(DAY)
    assert claimed(session, RECOVER) == []
    assert due_in(fleet, machine) == float("inf")
    assert provider_facts.begin(session, PROVIDER, None)
    (known,) = provider_facts.known(session.connection, PROVIDER, everything=True)
    now = replace(known.facts, location=THERE if moved else HERE, address="192.0.2.1")
    assert provider_facts.write(session, PROVIDER, [provider_facts.FactsChange(known, now)])
    assert ids(claimed(session, RECOVER)) == ([machine] if moved else [])


def test_a_dry_run_that_ignores_suspensions_waits_for_no_due_row(fleet: Fleet) -> None:
    """It has locked other rows already, so that waiting could be a deadlock."""
    machine = unreached(fleet)
    assert claimed(fleet.open_session(), RECOVER) == []
    initializer = fleet.connect()

    def hold() -> None:
        initializer.run("lock_due_rows", machine_ids=[machine])

        def unit() -> None:
            session.connection.script("SET LOCAL lock_timeout = 200")
            suspension.ignore_suspensions(session, PROVIDER)

        session = fleet.open_session()
        fleet.connection.dry_run(unit)

    initializer.transact(hold)


def test_machines_without_an_agent_take_no_place_in_the_sample(fleet: Fleet) -> None:
    """A quarter of the fleet may be waited for; the shares are those of the machines that could report."""
    for _ in range(8):
        fleet.sql(
            "INSERT INTO machine_grace VALUES (:id, now() - interval '2 hours', now() - interval '1 hour')",
            id=(waited_for := fleet.provided_machine()),
        )
        fleet.change(waited_for)
    for _ in range(2):
        fleet.reporting_machine(1)
    session = fleet.open_session()
    rows = session.run(
        "take_health_snapshot",
        provider=PROVIDER,
        sample=2,
        start="80000000-0000-0000-0000-000000000000",
        skipped_locations=[],
    )
    assert [number for figure, *_, number, _ in rows if figure == "reporting"] == [2]
