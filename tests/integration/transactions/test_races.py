from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any
from uuid import UUID

import pytest
from shepherd_core.bmdb.listings import provisioning
from shepherd_core.bmdb.machines import pauses
from shepherd_core.bmdb.work import work
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.domain.errors.bmdb import SerializationConflict, WorkConflict
from shepherd_core.domain.machine import Process

from tests.support.bmdb.fleet import LEVELS, PROVIDER, Fleet, claimed, ids

START, RECOVER = Process.AGENT_START, Process.RECOVERY
WORKERS, ROUNDS = 6, 15


@pytest.fixture(autouse=True, params=LEVELS)
def _level(fleet: Fleet, request: pytest.FixtureRequest) -> Iterator[None]:
    with fleet.isolated(request.param):
        yield


@pytest.mark.parametrize("process", [START, RECOVER])
def test_six_workers_on_three_machines_never_collide(fleet: Fleet, process: Process) -> None:
    machines = [fleet.provided_machine() if process is START else fleet.unhealthy_machine() for _ in range(3)]

    def worker(number: int) -> int:
        session = fleet.open_session(connection=fleet.connect())
        worked = 0
        for round_ in range(ROUNDS):
            try:
                found = claimed(session, process, 1 + number % 2)
            except SerializationConflict:  # five times in a row, without the pauses of a real clock
                continue
            for held in found:
                canceled = round_ % 2 and work.cancel(session, [held])
                assert (canceled or work.fail(session, {held: work.Failure(ShepherdError(), 0)})) == {held.machine_id}
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
            assert (start, starter) == ("Started", ender)
            assert end in ("Failed", "Canceled")
    assert len(fleet.sql("SELECT 1 FROM work_history")) == 2 * worked


@pytest.mark.parametrize("name", ["claim", "start_work"])
def test_a_lock_that_is_not_committed_yet_is_waited_for(fleet: Fleet, name: str) -> None:
    machine_id = fleet.provided_machine()
    first, second = fleet.open_session(), fleet.open_session(connection=fleet.connect())
    begin: dict[str, Callable[[], object]] = {
        "claim": lambda: work.claim(second, START, [machine_id]),
        "start_work": lambda: work.start_work(second, machine_id, "?"),
    }
    with pytest.raises(WorkConflict, match=str(machine_id)) if name == "start_work" else nullcontext():
        assert fleet.behind(lambda: work.lock_machine(first, START, machine_id), begin[name]) == ()
    assert fleet.holders(machine_id) == [first.session_id]


def test_claims_lock_machines_in_one_order(fleet: Fleet) -> None:
    """Given in whatever order: otherwise each may wait for the other."""
    machines = [fleet.provided_machine() for _ in range(20)]
    sessions = [fleet.open_session(connection=fleet.connect()) for _ in range(WORKERS)]

    def claim(number: int) -> list[UUID]:
        return ids(work.claim(sessions[number], START, machines[:: (-1) ** number]))

    with ThreadPoolExecutor(WORKERS) as pool:
        taken = [machine_id for some in pool.map(claim, range(WORKERS)) for machine_id in some]
    assert sorted(taken) == sorted(machines)


def test_a_lock_with_which_nothing_was_begun_leaves_no_trace(fleet: Fleet) -> None:
    """The function may die before it looks: no machine did that, and none is a suspect."""
    machines = [fleet.provided_machine() for _ in range(2)]
    closed, dead = fleet.open_session(), fleet.open_session()
    for session, machine_id in zip((closed, dead), machines, strict=True):
        work.lock_machine(session, START, machine_id)
    closed.close()
    fleet.expire(dead)
    session = fleet.open_session()
    assert fleet.sql("SELECT 1 FROM work_history") == fleet.sql("SELECT 1 FROM work_backoff") == []
    assert set(ids(claimed(session, START))) == set(machines)


def test_one_of_two_concurrent_provisioners_has_the_lock(fleet: Fleet) -> None:
    first, second = (fleet.open_session(connection=fleet.connect()) for _ in range(2))
    fleet.sql("INSERT INTO provisioner_lock (provider) VALUES (:provider)", provider=PROVIDER)
    taken = fleet.behind(
        lambda: first.connection.run("take_lock", provider=PROVIDER, session_id=first.session_id),
        lambda: provisioning.take_lock(second, PROVIDER),
        first.connection,
    )
    assert taken is None
    assert fleet.sql("SELECT session_id FROM provisioner_lock") == [[first.session_id]]


def test_the_same_pause_by_two_at_once_is_one(fleet: Fleet) -> None:
    said: dict[str, Any] = {"owner": "me", "reason": "?", "with_labels": ["role"]}
    first, second = fleet.connect(), fleet.connect()
    made = fleet.behind(lambda: pauses.pause(first, **said), lambda: pauses.pause(second, **said), first)
    assert [each.pause_id for each in pauses.pauses_in_force(first)] == [made]


def test_an_expired_session_that_commits_is_passed_over(fleet: Fleet) -> None:
    """Its statement would fail, and the session that closes would be held up by one that is over."""
    dead, session = (fleet.open_session(connection=fleet.connect()) for _ in range(2))
    fleet.sql("UPDATE sessions SET deadline = now() - interval '1 hour' WHERE session_id = :id", id=dead.session_id)

    def unit() -> None:
        dead.connection.script("SELECT 1 FROM sessions WHERE deadline < now() FOR UPDATE")
        session.close()

    dead.connection.transact(unit)
    assert fleet.sql("SELECT session_id FROM sessions") == [[dead.session_id]]
