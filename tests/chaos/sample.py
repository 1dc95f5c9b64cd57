"""
The sample of the long form that ``make test`` and ``make acceptance`` run.

A random seed draws it, so that each run tries other places; a failure prints the
seed, and ``CHAOS_SEED=N`` draws the same sample again. In CI the seed is always
0, because a check that fails now and then is not trusted.
"""

import os
from collections.abc import Iterable
from random import Random
from typing import TypeVar

T = TypeVar("T")

SEED = int(os.environ.get("CHAOS_SEED", 0 if "CI" in os.environ else Random().randrange(1_000_000)))
WHOLE = "CHAOS_WHOLE" in os.environ
"""Set by `make chaos`: ``drawn`` returns every case."""


def chance(key: object) -> Random:
    """Return what chooses for the test *key*."""
    return Random(f"{SEED} {key}")


def drawn(things: Iterable[T], key: object) -> list[T]:
    """Return one of *things*, chosen by the seed and *key*; all of them if ``WHOLE``."""
    found = list(things)
    return found if WHOLE else [chance(key).choice(found)]
