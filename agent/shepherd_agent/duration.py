"""Durations that the environment may set."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping


def seconds_from(environment: Mapping[str, str], variable: str, default: float) -> float:
    """
    Return the seconds that *variable* is set to, or *default*.

    Raises:
        Refusal: the variable is set to something that is not a positive number.
    """
    text = environment.get(variable, "") or str(default)
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise Refusal(f"{variable} is {text!r}; wanted: a positive number of seconds")
    return seconds
