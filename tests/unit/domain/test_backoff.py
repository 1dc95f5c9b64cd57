import pytest
from hypothesis import given
from hypothesis import strategies as st
from shepherd_core.domain.backoff import Backoff


def series(policy: Backoff, failures: int, last: int | None = None) -> list[int]:
    intervals = []
    for _ in range(failures):
        last = policy.next(last)
        intervals.append(last)
    return intervals


@pytest.mark.parametrize(
    ("policy", "last", "expected"),
    [
        (Backoff(60, 120, 1.1), None, [60, 66, 73, 81, 90, 99, 109, 120, 120]),
        (Backoff(1, 120, 2), 2, [4, 8, 16, 32, 64, 120]),
        (Backoff(1, 120, 2), 0, [1]),
        (Backoff(60, 120, 1.5), 5000, [120]),  # a lower maximum takes effect at once
        (Backoff(300, 14_400, 1.2), None, [300, 360, 432, 519, 623, 748]),
        (Backoff(300, 600, 1.2), None, [300, 360, 432, 519, 600, 600]),
        # Without growth, it is always the first, whatever another policy left behind.
        *((Backoff(30, 120, exponent), 77, [30, 30, 30]) for exponent in (None, 1, 0.5, 0, -3)),
        # What is out of range is clamped.
        (Backoff(0, 10, 2), None, [1, 2, 4]),
        (Backoff(-5, 10, 2), None, [1, 2, 4]),
        (Backoff(0.2, 10, 2), None, [1, 2, 4]),
        (Backoff(1.2, 10, 2), None, [2, 4, 8]),
        (Backoff(60, 10, 2), None, [60, 60, 60]),
        (Backoff(60, None, 2), None, [60, 60, 60]),
        (Backoff(60, 99.5, 2), None, [60, 100, 100]),
        (Backoff(1, None, None), None, [1, 1, 1]),
    ],
)
def test_intervals_grow_as_in_the_worked_examples(policy: Backoff, last: int | None, expected: list[int]) -> None:
    """Every factor is rounded up, so that a small one grows too; and what floats add is not taken for a second."""
    assert series(policy, len(expected), last) == expected


@given(
    st.floats(-10, 1e6),
    st.none() | st.floats(-10, 1e6),
    st.none() | st.floats(-10, 10),
    st.none() | st.integers(0, 10**7),
)
def test_an_interval_is_whole_seconds_within_its_bounds(
    initial: float, maximum: float | None, exponent: float | None, last: int | None
) -> None:
    interval = Backoff(initial, maximum, exponent).next(last)
    assert type(interval) is int
    assert 1 <= interval <= max(1, initial + 1, (maximum or 0) + 1)
