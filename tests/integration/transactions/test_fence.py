"""Sessions: alive until their deadline; behind the fence, none ends work that it has lost, in any interleaving."""

from collections.abc import Callable
from typing import TypeVar

import pytest
from shepherd_core.bmdb.session import Session
from shepherd_core.bmdb.work import work
from shepherd_core.domain.errors.bmdb import SessionExpired
from shepherd_core.domain.machine import Process

from tests.conftest import ManualClock
from tests.support.bmdb.fleet import HOUR, MOMENT, Fleet, claimed, ids
from tests.support.bmdb.work_ends import ENDS, End

T = TypeVar("T")

START = Process.AGENT_START

each_end = pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)


@each_end
def test_only_work_that_was_not_lost_is_ended(fleet: Fleet, session: Session, end: End) -> None:
    """A batch ends what it can; for a machine that another session took over, it must write nothing."""
    lost, kept = end.due_machine(fleet), end.due_machine(fleet)
    held = claimed(session, end.process)
    fleet.sql("DELETE FROM work WHERE machine_id = :id", id=lost)
    before = fleet.rows_of(lost)
    assert end.end(session, held) == {kept}
    assert (fleet.rows_of(lost), fleet.events(kept)) == (before, ["Started", end.event])


def held_for_a_moment(
    fleet: Fleet, moment: float = MOMENT, end: End = ENDS["end_undone (failed)"]
) -> tuple[Session, work.Work]:
    """Return a session whose deadline is near, with its own connection, and the machine that it has claimed."""
    machine_id = end.due_machine(fleet)
    session = fleet.open_session(connection=fleet.connect())
    (held,) = claimed(session, end.process)
    assert held.machine_id == machine_id
    fleet.die_in(moment, session)
    return session, held


@each_end
def test_an_end_that_waited_beyond_the_deadline_writes_nothing(fleet: Fleet, end: End) -> None:
    """A statement may begin in time and get its locks too late; it must compare the deadline after that."""
    session, held = held_for_a_moment(fleet, end=end)
    before = fleet.rows_of(held.machine_id)
    lock = "UPDATE sessions SET fence = fence"
    assert fleet.held_up(lock, lambda: end.end(session, [held]), lambda: fleet.wait_until_dead(session)) == set()
    assert fleet.rows_of(held.machine_id) == before


@each_end
def test_an_end_that_races_with_the_reaper_writes_nothing(fleet: Fleet, end: End) -> None:
    """The session was reaped while its commit was on its way: the machine belongs to the next session."""
    session, held = held_for_a_moment(fleet, end=end)
    fleet.wait_until_dead(session)

    def unit() -> Session:
        successor = fleet.open_session(seconds=3 * HOUR)
        assert end.end(session, [held]) == set()
        return successor

    successor = fleet.connection.transact(unit)
    fleet.pass_time(HOUR)  # the backoff after a death
    taken = claimed(successor, end.process)
    assert fleet.events(held.machine_id) == ["Started", "Expired", "Started"]
    assert end.end(successor, taken) == {held.machine_id}


def test_a_session_that_is_being_renewed_is_not_reaped(fleet: Fleet) -> None:
    """Others still see the old deadline, which has passed, but the renewal came in time and is being committed."""
    session, held = held_for_a_moment(fleet, 2 * MOMENT)

    def unit() -> None:
        session.renew()
        fleet.wait_until_dead(session)
        fleet.open_session()

    session.connection.transact(unit)
    assert fleet.events(held.machine_id) == ["Started"]
    assert work.cancel(session, [held]) == {held.machine_id}


@each_end
def test_a_session_that_is_committing_is_not_reaped(fleet: Fleet, end: End) -> None:
    """Its commit came in time; reaping must neither wait for it nor end its other work."""
    session, held = held_for_a_moment(fleet, 2 * MOMENT, end)
    other = fleet.bare_machine()
    work.start_work(session, other, "?")

    def unit() -> None:
        assert end.end(session, [held]) == {held.machine_id}
        fleet.wait_until_dead(session)
        fleet.open_session()  # which waits for nothing

    session.connection.transact(unit)
    assert (fleet.events(held.machine_id), fleet.events(other)) == (["Started", end.event], ["Started"])
    fleet.open_session()
    assert fleet.events(other) == ["Started", "Expired"]


def fenced_off(fleet: Fleet, session: Session, second: Callable[[], T]) -> T:
    """Raise the fence of a session to 2, and return the result of *second*, which waits until that is committed."""
    connection = fleet.connect()
    return fleet.behind(
        lambda: connection.run("fence_session", session_id=session.session_id, fence=2), second, connection
    )


def test_a_claim_that_waited_for_the_fence_claims_nothing(fleet: Fleet) -> None:
    """Its owner has already read what it claimed; the work would have no end."""
    machine_id = fleet.provided_machine()
    session = fleet.open_session()
    with pytest.raises(SessionExpired):
        fenced_off(fleet, session, lambda: work.claim(session, START, [machine_id]))
    assert fleet.holders(machine_id) == []


def test_a_fence_that_comes_late_does_not_lower_it(fleet: Fleet) -> None:
    """It may have been sent before the connection broke, and arrive after the one that was sent again."""
    session = fleet.open_session()
    fenced_off(fleet, session, lambda: fleet.connection.run("fence_session", session_id=session.session_id, fence=1))
    assert fleet.sql("SELECT fence FROM sessions") == [[2]]


def test_a_renewal_moves_the_deadline(fleet: Fleet, clock: ManualClock) -> None:
    """The BMDB's deadline counts from now, and ours from before the request: never later than the BMDB's."""
    session = fleet.open_session(seconds=60)
    assert session.renew_interval == 20  # two renewals may be lost before it expires
    clock.now += 50
    fleet.pass_time(50)
    assert session.seconds_left() == 10
    session.renew()
    assert session.seconds_left() == 60
    assert fleet.sql("SELECT deadline - clock_timestamp() BETWEEN '59 s' AND '60 s' FROM sessions") == [[True]]


def test_reaping_is_bounded_and_continues(fleet: Fleet) -> None:
    """After an outage, opening a session must stay fast; and every expired session is reaped in the end."""
    machines = [fleet.provided_machine() for _ in range(25)]
    for _ in machines:
        claimed(fleet.open_session(), START, 1)
    fleet.pass_time(3600)
    swept = []
    for _ in range(3):
        session = fleet.open_session()
        swept.append(25 - len(fleet.sql("SELECT 1 FROM work")))
    assert swept == [20, 25, 25]
    fleet.pass_time(30)
    assert set(ids(claimed(session, START))) == set(machines)


def test_a_session_that_has_just_expired_is_not_deleted_yet(fleet: Fleet) -> None:
    """A claim of it may still be committing; without its session, that work would vanish from history."""
    dead = fleet.open_session(seconds=60)
    for ago, left in ((110, [[dead.session_id]]), (10, [])):
        fleet.pass_time(ago)
        fleet.open_session().close()
        assert fleet.sql("SELECT session_id FROM sessions") == left


def test_a_session_is_renewed_during_a_slow_call(fleet: Fleet, clock: ManualClock) -> None:
    session = fleet.open_session(seconds=3)
    clock.now += 2

    def slow() -> str:
        fleet.wait_until("(SELECT deadline - created_at > interval '3.1 seconds' FROM sessions)")
        return "listing"

    assert (session.run_renewing(slow), session.seconds_left()) == ("listing", 3)
