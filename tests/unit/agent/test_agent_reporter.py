"""The time that the agent writes on its requests."""

from agent.shepherd_agent.reports.reporter import EndpointClock

YEAR = 365 * 86_400_000


def test_no_time_is_used_twice() -> None:
    """The endpoint takes a request whose time is not later than the last one's for a replay."""
    times = iter([1000, 1000, 500, 3000])
    clock = EndpointClock(lambda: next(times))
    assert [clock.next() for _ in range(4)] == [1000, 1001, 1002, 3000]


def test_a_clock_that_is_wrong_goes_by_the_endpoint() -> None:
    """A machine that was long in the rack may believe that it is 1970, or next year."""
    for wrong in (-YEAR, YEAR):
        now = [YEAR * 50 + wrong]
        clock = EndpointClock(lambda now=now: now[0])  # type: ignore[misc]  # mypy cannot infer lambdas with defaults
        clock.next()
        clock.correct(YEAR * 50)
        assert clock.next() == YEAR * 50
        now[0] += 60_000
        assert clock.next() == YEAR * 50 + 60_000


def test_a_correction_within_the_tolerance_repeats_no_time() -> None:
    """The endpoint may have accepted a request whose answer was lost: its time must not come again."""
    clock = EndpointClock(lambda: 1_000_000)
    assert clock.next() == 1_000_000
    clock.correct(990_000)
    assert clock.next() == 1_000_001
