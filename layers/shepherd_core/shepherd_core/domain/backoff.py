"""Backoff: how long to leave a machine alone after a failure, in whole seconds. Pure arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """
    An exponential backoff, in seconds.

    The first failure waits *initial*; each further one waits the last interval
    times *exponent*, rounded up to a whole second, at most *maximum*. Values out of
    range are replaced:

    - *initial* below 1 counts as 1,
    - *maximum* below *initial* (or None) counts as *initial*,
    - *exponent* below 1 (or None) counts as 1: every wait is *initial*.

    ``Backoff(300, 600, 1.2)`` waits 300 360 432 519 600 600 seconds.
    """

    initial: float
    maximum: float | None
    exponent: float | None

    def next(self, last_interval: int | None) -> int:
        """Return the seconds to wait, given the interval before it (None: no failure yet)."""
        initial = max(1, math.ceil(self.initial))
        maximum = max(initial, math.ceil(self.maximum or 0))
        exponent = max(1.0, self.exponent or 1.0)
        if last_interval is None or exponent == 1:
            return initial
        return min(max(1, math.ceil(round(last_interval * exponent, 9))), maximum)
