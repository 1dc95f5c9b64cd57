"""
The part of the long form that the tests run: by a seed that a failure prints, so that each run tries other places.

Where others wait for the tests, they are always the same: a check that fails now
and then is none. ``CHAOS_SEED=N`` runs the sample of a seed again.
"""

from __future__ import annotations

import os
from random import Random
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")

SEED = int(os.environ.get("CHAOS_SEED", 0 if "CI" in os.environ else Random().randrange(1_000_000)))
WHOLE = "CHAOS_WHOLE" in os.environ
"""As `make chaos` sets it: nothing that is ``drawn`` is left out."""


def first(stride: int) -> int:
    """Return the first of the numbers from 1 that are tried, if it is every *stride*-th of them."""
    return 1 + SEED % stride


def drawn(things: Iterable[T], key: object) -> list[T]:
    """Return one of *things*, by the seed and a *key* of the sample's own; all of them where that is wanted."""
    found = list(things)
    return found if WHOLE else [Random(f"{SEED} {key}").choice(found)]
