"""Concurrent workers at each isolation level: each machine has at most one, and none waits for ever."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any
from uuid import UUID

import pytest
from shepherd_core.bmdb.listings import provisioning
from shepherd_core.bmdb.machines import pauses
from shepherd_core.bmdb.work import work
from shepherd_core.domain.errors.bmdb import WorkConflict
from shepherd_core.domain.machine import Process

from tests.support.bmdb.fleet import LEVELS, PROVIDER, Fleet, claimed, ids

START = Process.AGENT_START
WORKERS = 6


@pytest.fixture(autouse=True, params=LEVELS)
def _level(fleet: Fleet, request: pytest.FixtureRequest) -> Iterator[None]:
    with fleet.isolated(request.param):
        yield


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
