import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

WAIT_SECONDS = 20
"""Time after which nobody expects it any more, however slow the computer is."""


def eventually(condition: Callable[[], T], what: object = "it did not happen", seconds: float = WAIT_SECONDS) -> T:
    """Return what *condition* returns as soon as that is true; fail with *what* if it never is."""
    end = time.monotonic() + seconds
    pause = 0.002
    while not (result := condition()):
        assert time.monotonic() < end, what
        time.sleep(pause)
        pause = min(1.5 * pause, 0.03)  # a look at all processes takes 10 ms, which is taken from what it waits for
    return result
