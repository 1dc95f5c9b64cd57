import pytest
from shepherd_core.domain.clock import Deadline, Permission, SystemClock
from shepherd_core.domain.errors import NoLongerDue, TimeLimitExceeded
from shepherd_core.domain.errors.bmdb import SessionExpired

from tests.conftest import ManualClock


def test_the_time_that_is_left_shrinks_until_there_is_none(clock: ManualClock) -> None:
    """No effect begins without any: a reboot that begins too late happens under the hands of the next worker."""
    deadline = Deadline(clock, 10)
    assert (deadline.left(), deadline.left(at_most=2)) == (10, 2)
    assert (deadline.within(3).left(), deadline.within(30).left()) == (3, 10)
    deadline.check()
    clock.now += 9
    assert (deadline.left(), deadline.left(at_most=2)) == (1, 1)
    clock.now += 1
    for refused in (deadline.left, deadline.check):
        with pytest.raises(TimeLimitExceeded):
            refused()
    clock.now += 2
    assert (deadline.remaining(), deadline.overdue(2), deadline.overdue(2.5)) == (-2, True, False)


def test_no_effect_begins_when_the_session_is_over(clock: ManualClock) -> None:
    """The work may have been given to another, although this one has time left."""
    session_ends = clock.now + 5
    deadline = Deadline(clock, 10, session_left=lambda: session_ends - clock.now)
    clock.now += 4
    deadline.check()
    clock.now += 1
    with pytest.raises(SessionExpired):
        deadline.check()
    assert deadline.left() == 5, "only effects are fenced: what is under way may still be read to its end"


def test_a_part_stands_behind_the_same_fence_or_its_own(clock: ManualClock) -> None:
    fenced = Deadline(clock, 10, session_left=lambda: 0)
    with pytest.raises(SessionExpired):
        fenced.within(5).check()
    with pytest.raises(SessionExpired):
        Deadline(clock, 10).within(5, session_left=lambda: 0).check()
    Deadline(clock, 10).within(5).check()


@pytest.mark.parametrize(
    ("requests", "asked", "interrupted"),
    [("", 0, False), ("d", 1, False), ("dd", 2, False), ("a", 1, True), ("da", 2, True), ("daada", 2, True)],
)
def test_permission_is_asked_until_a_request_may_be_accepted(
    clock: ManualClock, requests: str, asked: int, interrupted: bool
) -> None:
    """A machine that was switched off must be switched on again, even if it reported last of all."""
    questions: list[int] = []
    permission = Permission(Deadline(clock, 10), lambda: questions.append(1))
    for outcome in requests:
        permission.confirm()
        if outcome == "d":  # declined; otherwise it may have been accepted
            permission.declined()
    assert (len(questions), permission.interrupted) == (asked, interrupted)


def test_no_interruption_without_permission_time_and_session(clock: ManualClock) -> None:
    """And none is counted, so that the step is no attempt."""

    def refuse() -> None:
        raise NoLongerDue

    for deadline, ask, refusal in (
        (Deadline(clock, 10), refuse, NoLongerDue),
        (Deadline(clock, 0), None, TimeLimitExceeded),
        (Deadline(clock, 10, session_left=lambda: 0), None, SessionExpired),
    ):
        permission = Permission(deadline, ask)
        with pytest.raises(refusal):
            permission.confirm()
        assert not permission.interrupted


def test_the_clock_of_this_machine_goes_forward_and_waits() -> None:
    """It is the one place that sleeps; what is not positive is no wait, and no error."""
    clock = SystemClock()
    before = clock.monotonic()
    clock.sleep(0)
    clock.sleep(-1)
    clock.sleep(0.001)
    assert clock.monotonic() - before >= 0.001
