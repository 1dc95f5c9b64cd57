"""Sessions: alive until their deadline, and what happens to their work when they expire."""

from shepherd_core.domain.machine import Process

from tests.conftest import ManualClock
from tests.support.bmdb.fleet import Fleet, claimed, ids

START = Process.AGENT_START


def test_a_renewal_moves_the_deadline(fleet: Fleet, clock: ManualClock) -> None:
    """The BMDB's deadline counts from now, and ours from before the request: never later than the BMDB's."""
    session = fleet.open_session(seconds=60)
    assert session.renew_interval == 20  # two renewals may be lost before it expires
    clock.now += 50
    fleet.pass_time(50)
    assert session.seconds_left() == 10
    session.renew()
    assert session.seconds_left() == 60
    left = "SELECT extract(epoch FROM deadline - clock_timestamp()) FROM sessions"
    assert 59 < float(fleet.sql(left)[0][0]) <= 60


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

    assert session.run_renewing(slow) == "listing"
    assert session.seconds_left() == 3
