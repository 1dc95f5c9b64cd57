"""The fence: what is no longer a session's own, it cannot end, however the moments fall."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from shepherd_core.bmdb import work
from shepherd_core.bmdb.work import AgentStarted, Failure
from shepherd_core.errors import SessionExpired
from shepherd_core.machine import Process

from tests.integration.fleet import HOUR, PROVIDER, claimed

if TYPE_CHECKING:
    from collections.abc import Callable

    from shepherd_core.bmdb.session import Session

    from tests.integration.fleet import Fleet

START, RECOVER = Process.AGENT_START, Process.RECOVERY
KEY = bytes(range(32))
MOMENT = 0.4
"""Seconds: long enough to begin something within it, short enough to wait for its end."""


@pytest.fixture
def session(fleet: Fleet) -> Session:
    """Return a session that lives for long."""
    return fleet.open_session()


def ends() -> dict[str, Callable[[Session, list[work.Work]], set[object]]]:
    """Return the ways to end several works of an agent start."""
    return {
        "finish_agent_start": lambda session, held: set(
            work.finish_agent_start(session, {each: AgentStarted(KEY, "host key") for each in held})
        ),
        "finish": lambda session, held: set(work.finish(session, held)),
        "fail": lambda session, held: set(
            work.fail(session, {each: Failure("no luck", 60, "host key") for each in held})
        ),
        "cancel": lambda session, held: set(work.cancel(session, held)),
    }


@pytest.mark.parametrize("name", ends())
def test_work_that_was_lost_is_not_ended_and_the_rest_is(fleet: Fleet, session: Session, name: str) -> None:
    """A batch ends what it can; for a machine that somebody else took, it must not write a thing."""
    lost, kept = fleet.provided_machine(), fleet.provided_machine()
    held = claimed(session, START)
    fleet.sql("DELETE FROM work WHERE machine_id = :id", id=lost)
    (due,) = fleet.sql("SELECT not_before, revision FROM machine_due WHERE machine_id = :id", id=lost)

    assert ends()[name](session, held) == {kept}
    assert fleet.events(lost) == ["Started"]
    assert fleet.tags(lost) == set()
    assert fleet.sql("SELECT machine_id FROM work_backoff WHERE machine_id = :id", id=lost) == []
    assert fleet.sql("SELECT not_before, revision FROM machine_due WHERE machine_id = :id", id=lost) == [due]
    assert len(fleet.events(kept)) == 2


@pytest.mark.parametrize("name", ends())
def test_work_ends_once(fleet: Fleet, session: Session, name: str) -> None:
    """Whoever comes second is told that it was not his to end."""
    machine_id = fleet.provided_machine()
    held = claimed(session, START)
    assert ends()[name](session, held) == {machine_id}
    for other in ends().values():
        assert other(session, held) == set()
    assert len(fleet.events(machine_id)) == 2


@pytest.mark.parametrize("name", ends())
def test_work_of_another_session_cannot_be_ended(fleet: Fleet, session: Session, name: str) -> None:
    """Twins know each other's machines by name."""
    machine_id = fleet.provided_machine()
    held = claimed(session, START)
    assert ends()[name](fleet.open_session(), held) == set()
    assert fleet.holders(machine_id) == [session.session_id]
    assert fleet.events(machine_id) == ["Started"]


def test_a_lost_recovery_drops_no_tags(fleet: Fleet, session: Session) -> None:
    """They may belong to an agent that was started since."""
    machine_id = fleet.silent_machine()
    held = claimed(session, RECOVER)
    fleet.sql("DELETE FROM work")
    assert work.finish_recovery(session, held, 60) == set()
    assert fleet.tags(machine_id) == {"agent_started", "agent_heartbeat"}


def held_for_a_moment(fleet: Fleet, moment: float = MOMENT) -> tuple[Session, work.Work]:
    """Return a session whose deadline comes soon, with a connection of its own, and the machine that it holds."""
    machine_id = fleet.provided_machine()
    session = fleet.open_session(connection=fleet.connect())
    (held,) = claimed(session, START)
    assert held.machine_id == machine_id
    fleet.sql("UPDATE sessions SET deadline = clock_timestamp() + :s * interval '1 second'", s=moment)
    return session, held


@pytest.mark.parametrize("name", ends())
def test_an_end_that_waited_beyond_the_deadline_writes_nothing(fleet: Fleet, name: str) -> None:
    """A statement that began in time may get its locks too late; it must look at the clock when it has them."""
    session, held = held_for_a_moment(fleet)
    fleet.connection.script("BEGIN; UPDATE machine_due SET revision = revision")
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(ends()[name], session, [held])
        fleet.wait_until_blocked()
        fleet.wait_until_dead(session)
        fleet.connection.script("COMMIT")
        assert ended.result(timeout=20) == set()
    assert fleet.events(held.machine_id) == ["Started"]
    assert fleet.tags(held.machine_id) == set()


def test_an_old_transaction_does_not_make_a_session_younger(fleet: Fleet) -> None:
    """now() is the start of the transaction, which may lie before a deadline that has long passed."""
    session, held = held_for_a_moment(fleet)
    begins: list[Callable[[], object]] = [
        session.poke,
        lambda: work.claim(session, START, PROVIDER, 1),
        lambda: work.start_work(session, Process.ACCESS, held.machine_id),
    ]

    def unit() -> None:
        session.connection.run("now")
        fleet.wait_until_dead(session)
        for end in ends().values():
            assert end(session, [held]) == set()
        for begin in begins:
            with pytest.raises(SessionExpired):
                begin()

    session.connection.transact(unit)
    assert fleet.events(held.machine_id) == ["Started"]


@pytest.mark.parametrize("name", ends())
def test_an_end_that_meets_the_sweep_writes_nothing(fleet: Fleet, name: str) -> None:
    """Declared dead while its commit was on its way: the machine is the heir's, and stays his."""
    session, held = held_for_a_moment(fleet)
    fleet.connection.script("BEGIN; UPDATE machine_due SET revision = revision")
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(ends()[name], session, [held])
        fleet.wait_until_blocked()
        fleet.wait_until_dead(session)
        heir = fleet.open_session(seconds=3 * HOUR, connection=fleet.connect())
        fleet.connection.script("COMMIT")
        assert ended.result(timeout=20) == set()
    fleet.pass_time(HOUR)  # the due row waits at the deadline that the session had when it claimed
    (taken,) = claimed(heir, START)
    assert fleet.events(held.machine_id) == ["Started", "Expired", "Started"]
    assert work.finish_agent_start(heir, {taken: AgentStarted(KEY, None)}) == {held.machine_id}


def test_a_session_that_is_just_being_kept_alive_is_not_swept_up(fleet: Fleet) -> None:
    """Its old deadline has passed for everybody else, but the sign of life came in time and is being committed."""
    session, held = held_for_a_moment(fleet, 1.5)

    def unit() -> None:
        session.poke()
        fleet.wait_until_dead(session)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(fleet.open_session).result(timeout=20)

    session.connection.transact(unit)
    assert fleet.events(held.machine_id) == ["Started"]
    assert work.finish(session, [held]) == {held.machine_id}


def test_a_session_that_is_just_committing_is_not_swept_up(fleet: Fleet) -> None:
    """Its commit came in time; the sweep must neither wait for it nor end its other work."""
    session, held = held_for_a_moment(fleet, 1.5)
    other = fleet.provided_machine()
    work.start_work(session, START, other)

    def unit() -> None:
        assert work.finish(session, [held]) == {held.machine_id}
        fleet.wait_until_dead(session)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(fleet.open_session).result(timeout=20)

    session.connection.transact(unit)
    assert fleet.events(held.machine_id) == ["Started", "Finished"]
    assert fleet.events(other) == ["Started"]
    fleet.open_session()
    assert fleet.events(other) == ["Started", "Expired"]


def test_sessions_that_open_together_sweep_up_once(fleet: Fleet) -> None:
    """Both see the dead session; one takes it, the other neither waits nor writes history again."""
    session, held = held_for_a_moment(fleet)
    fleet.wait_until_dead(session)
    twin = fleet.connect()

    def unit() -> None:
        fleet.open_session()
        fleet.open_session(connection=twin)

    fleet.connection.transact(unit)
    assert fleet.events(held.machine_id) == ["Started", "Expired"]
