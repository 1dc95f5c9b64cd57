"""
The sample of the long form that ``make test`` and ``make acceptance`` run.

A random seed draws it, so that each run tries other places; a failure prints the
seed, and ``CHAOS_SEED=N`` draws the same sample again. In CI the seed is always
0, because a check that fails now and then is not trusted.
"""

import os
import time
from collections.abc import Callable, Iterable
from random import Random
from typing import TypeVar

T = TypeVar("T")

SEED = int(os.environ.get("CHAOS_SEED", 0 if "CI" in os.environ else Random().randrange(1_000_000)))
WHOLE = "CHAOS_WHOLE" in os.environ
"""Set by `make chaos`, and where a bug is planted: ``drawn`` returns every case."""
SECONDS = float(os.environ.get("CHAOS_SECONDS", "0"))
"""Set by `make chaos`, for what has no end of its own."""


def chance(key: object) -> Random:
    return Random(f"{SEED} {key}")


def drawn(things: Iterable[T], key: object) -> list[T]:
    """Return one of *things*, chosen by the seed and *key*; all of them if ``WHOLE``."""
    found = list(things)
    return found if WHOLE else [chance(key).choice(found)]


def more(count: int, share: float) -> Callable[..., bool]:
    """Return what says whether to go on: *count* times, and for this share of ``SECONDS``."""
    left, end = iter(range(count)), time.monotonic() + share * SECONDS
    return lambda *_: next(left, None) is not None or time.monotonic() < end
