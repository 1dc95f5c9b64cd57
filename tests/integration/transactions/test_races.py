"""Concurrent workers: in every interleaving, each machine has at most one worker."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from uuid import UUID

import pytest
from shepherd_core.bmdb.listings import provisioning
from shepherd_core.bmdb.work import work
from shepherd_core.domain.errors.bmdb import WorkConflict
from shepherd_core.domain.machine import Process

from tests.support.bmdb.fleet import HOUR, PROVIDER, Fleet, claimed, ids
from tests.support.waiting import WAIT_SECONDS

START, RECOVER = Process.AGENT_START, Process.RECOVERY
WORKERS, ROUNDS = 6, 15

# A claim looks at pauses first, when its snapshot is taken and before it locks anything. In the database of one test
# this makes a chosen connection wait there, while others change what it has in view.
GATE = """
ALTER VIEW pause_scopes RENAME TO ungated_pauses;
CREATE VIEW pause_scopes AS
    SELECT * FROM ungated_pauses
    UNION ALL
    SELECT NULL, NULL, '', '', NULL, NULL, NULL, NULL
    WHERE CASE current_setting('application_name') WHEN 'gated' THEN pg_advisory_lock_shared(1)::text END = 'open'
"""


@contextmanager
def gated_claim(fleet: Fleet, process: Process, limit: int = 10) -> Iterator[Future[work.Claim]]:
    """Start a claim in another session. Inside the block it has its snapshot and waits; then it continues."""
    fleet.sql(GATE)
    session = fleet.open_session(connection=fleet.connect())
    session.connection.script("SET application_name = 'gated'")
    fleet.sql("SELECT pg_advisory_lock(1)")
    with ThreadPoolExecutor(1) as pool:
        claim = pool.submit(work.claim, session, process, PROVIDER, limit)
        try:
            fleet.wait_until_blocked()
            yield claim
        finally:
            fleet.sql("SELECT pg_advisory_unlock(1)")


@pytest.mark.parametrize("process", [START, RECOVER])
def test_six_workers_on_three_machines_never_collide(fleet: Fleet, process: Process) -> None:
    """The history shows it: on each machine, every start is followed by the end of that same work."""
    machines = [fleet.provided_machine() if process is START else fleet.unhealthy_machine() for _ in range(3)]

    def worker(number: int) -> int:
        session = fleet.open_session(connection=fleet.connect())
        worked = 0
        for round_ in range(ROUNDS):
            for held in work.claim(session, process, PROVIDER, 1 + number % 2).work:
                canceled = round_ % 2 and work.cancel(session, [held])
                assert (canceled or work.fail(session, {held: work.Failure("?", 0)})) == {held.machine_id}
                worked += 1
        session.close()
        return worked

    fleet.connection.run("now")
    with ThreadPoolExecutor(WORKERS) as pool:
        worked = sum(pool.map(worker, range(WORKERS)))

    assert worked >= len(machines)
    for machine_id in machines:
        rows = fleet.sql(
            "SELECT event, session_id FROM work_history WHERE machine_id = :id ORDER BY timestamp", id=machine_id
        )
        for (start, starter), (end, ender) in zip(rows[::2], rows[1::2], strict=True):
            assert start == "Started"
            assert end in ("Failed", "Canceled")
            assert starter == ender
    assert len(fleet.sql("SELECT 1 FROM work_history")) == 2 * worked


def test_concurrent_claims_take_disjoint_sets_without_waiting(fleet: Fleet) -> None:
    """The second claim takes the machines that the first one has not locked, without waiting for it."""
    machines = {fleet.provided_machine() for _ in range(5)}
    first, second = fleet.open_session(), fleet.open_session(connection=fleet.connect())

    def unit() -> list[UUID]:
        mine = ids(work.claim(first, START, PROVIDER, 2).work)
        theirs = ids(work.claim(second, START, PROVIDER, 5).work)  # the first claim is not committed yet
        assert len(mine) == 2
        assert set(mine) | set(theirs) == machines
        assert not set(mine) & set(theirs)
        return mine

    fleet.connection.transact(unit)
    assert claimed(second, START) == []


@pytest.mark.parametrize("first", [START, RECOVER])
@pytest.mark.parametrize("second", [START, RECOVER])
def test_a_machine_that_was_claimed_meanwhile_is_not_claimed_again(
    own_fleet: Fleet, first: Process, second: Process
) -> None:
    """
    It was claimed and committed, by either loop, after the second claim took its snapshot.

    The row lock is free again then, and the work row is not in the snapshot. Only the changed due row shows it.
    """
    machine_id = _overdue_machine(own_fleet)
    with gated_claim(own_fleet, second) as late:
        assert ids(claimed(own_fleet.open_session(), first)) == [machine_id]
    assert late.result(timeout=20).work == ()
    assert own_fleet.events(machine_id) == ["Started"]


def test_a_machine_that_another_process_locked_meanwhile_is_not_claimed(own_fleet: Fleet) -> None:
    """The unique key would not notice: it includes the process."""
    machine_id = own_fleet.provided_machine()
    with gated_claim(own_fleet, START) as late:
        work.start_work(own_fleet.open_session(), machine_id, "?")
    assert late.result(timeout=20).work == ()
    assert len(own_fleet.holders(machine_id)) == 1


def test_a_machine_whose_facts_changed_meanwhile_is_left_alone(own_fleet: Fleet) -> None:
    """The facts in the claim's snapshot are out of date; it must neither take the machine nor postpone it."""
    machine_id = own_fleet.provided_machine()
    with gated_claim(own_fleet, START) as late:
        own_fleet.change(
            machine_id,
            f"INSERT INTO machine_agent_started VALUES ('{machine_id}', now() - interval '1 day', "
            "decode(repeat('5e', 32), 'hex'))",
        )
    assert late.result(timeout=20) == work.Claim((), 0)
    assert ids(claimed(own_fleet.open_session(), RECOVER)) == [machine_id]


@pytest.mark.parametrize("process", [START, RECOVER])
def test_a_machine_that_was_canceled_meanwhile_is_not_postponed(own_fleet: Fleet, process: Process) -> None:
    """The late claim's snapshot shows work on it, and would make it wait for a session that has returned it."""
    machine_id = own_fleet.provided_machine() if process is START else own_fleet.unhealthy_machine()
    session = own_fleet.open_session()
    (held,) = claimed(session, process)
    own_fleet.change(machine_id)
    with gated_claim(own_fleet, process) as late:
        work.cancel(session, [held])
    assert late.result(timeout=20) == work.Claim((), 0)
    assert ids(claimed(session, process)) == [machine_id]


@pytest.mark.parametrize("process", [START, RECOVER])
def test_an_operator_and_a_claim_exclude_each_other(fleet: Fleet, process: Process) -> None:
    """While the first is committing, the claim skips the machine; afterwards the machine is locked."""
    machine_id = fleet.provided_machine() if process is START else fleet.unhealthy_machine()
    other = fleet.open_session(connection=fleet.connect())
    session = fleet.open_session()

    def unit() -> work.Work:
        held = work.start_work(session, machine_id, "?")
        assert work.claim(other, process, PROVIDER, 1) == work.Claim((), 0)
        return held

    held = fleet.connection.transact(unit)
    assert claimed(other, process) == []
    assert work.cancel(session, [held]) == {machine_id}
    assert ids(claimed(other, process)) == [machine_id]


def test_a_machine_that_is_just_being_claimed_is_not_taken_by_name(fleet: Fleet) -> None:
    """The claim commits while the other waits for the due row, so its work is not in the other's snapshot."""
    machine_id = fleet.provided_machine()
    session, other = fleet.open_session(), fleet.open_session(connection=fleet.connect())
    with ThreadPoolExecutor(1) as pool:

        def unit() -> Future[work.Work]:
            assert ids(work.claim(session, START, PROVIDER, 1).work) == [machine_id]
            late = pool.submit(work.start_work, other, machine_id, "?")
            fleet.wait_until_blocked()
            return late

        late = fleet.connection.transact(unit)
        with pytest.raises(WorkConflict, match=str(machine_id)):
            late.result(timeout=20)
    assert fleet.holders(machine_id) == [session.session_id]


def test_a_conflict_of_two_workers_has_one_winner(fleet: Fleet) -> None:
    """The second one waits for the commit of the first, and gets a WorkConflict."""
    machine_id = fleet.bare_machine()
    sessions = [fleet.open_session(connection=fleet.connect()) for _ in range(2)]

    def start(number: int) -> Callable[[], work.Work]:
        return lambda: work.start_work(sessions[number], machine_id, "?")

    with ThreadPoolExecutor(1) as pool:

        def unit() -> Future[work.Work]:
            start(0)()
            late = pool.submit(start(1))
            fleet.wait_until_blocked()
            return late

        late = sessions[0].connection.transact(unit)
        with pytest.raises(WorkConflict):
            late.result(timeout=20)
    assert fleet.holders(machine_id) == [sessions[0].session_id]


def _overdue_machine(fleet: Fleet) -> UUID:
    """Return a machine that did not come back: both loops need it."""
    fleet.watch(PROVIDER)
    return fleet.make_overdue(fleet.provided_machine(), 4 * HOUR)


def test_concurrent_claims_do_not_wait_for_machines_that_did_not_come_back(fleet: Fleet) -> None:
    """One takes the machine, and the other one goes on with what is left."""
    machine_id = _overdue_machine(fleet)
    first, second = (fleet.open_session(connection=fleet.connect()) for _ in range(2))

    def unit() -> list[list[UUID]]:
        sessions = (first, second)  # the second claim begins while the first one has its locks
        return [ids(work.claim(each, RECOVER, PROVIDER, 1).work) for each in sessions]

    assert first.connection.transact(unit) == [[machine_id], []]


def test_a_machine_in_another_claims_hands_takes_no_place(fleet: Fleet) -> None:
    """A dry run or a claim of the Initializer may hold the longest due machines for as long as it takes."""
    held = [_overdue_machine(fleet) for _ in range(3)]
    free = fleet.unhealthy_machine()
    dry_run, recoverer = (fleet.open_session(connection=fleet.connect()) for _ in range(2))

    def unit() -> list[UUID]:
        assert set(ids(work.claim(dry_run, START, PROVIDER, 10).work)) == set(held)
        return ids(work.claim(recoverer, RECOVER, PROVIDER, 1).work)

    assert dry_run.connection.transact(unit) == [free]


def test_of_two_provisioners_that_take_the_lock_at_once_one_has_it(fleet: Fleet) -> None:
    """The second one waits for the first, and then sees that it is alive."""
    first, second = (fleet.open_session(connection=fleet.connect()) for _ in range(2))
    with ThreadPoolExecutor(1) as pool:

        def unit() -> Future[object]:
            first.connection.run("create_provisioner_lock", provider=PROVIDER)
            first.connection.run("lock_provisioner_row", provider=PROVIDER)
            first.connection.run("take_lock", provider=PROVIDER, session_id=first.session_id)
            late: Future[object] = pool.submit(provisioning.take_lock, second, PROVIDER)
            fleet.wait_until_blocked()
            return late

        fleet.sql("INSERT INTO provisioner_lock (provider) VALUES (:provider)", provider=PROVIDER)
        assert first.connection.transact(unit).result(WAIT_SECONDS) is None
    assert fleet.sql("SELECT session_id FROM provisioner_lock") == [[first.session_id]]


def test_an_expired_session_that_is_committing_is_not_deleted_nor_waited_for(fleet: Fleet) -> None:
    """Its statement would fail, and the session that closes would be held up by one that is over."""
    dead, session = (fleet.open_session(connection=fleet.connect()) for _ in range(2))
    fleet.sql("UPDATE sessions SET deadline = now() - interval '1 hour' WHERE session_id = :id", id=dead.session_id)

    def unit() -> None:
        dead.connection.run("lock_live_session", session_id=dead.session_id)
        session.close()

    dead.connection.transact(unit)
    assert fleet.sql("SELECT session_id FROM sessions") == [[dead.session_id]]
