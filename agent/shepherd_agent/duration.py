"""Durations from environment variables."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .refusal import AgentRefusal

if TYPE_CHECKING:
    from collections.abc import Mapping


def seconds_from(environment: Mapping[str, str], variable: str, default: float) -> float:
    """
    Return the value of *variable* in seconds, or *default* if it is not set.

    Raises:
        AgentRefusal: the value is not a positive number.
    """
    text = environment.get(variable, "") or str(default)
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise AgentRefusal(f"{variable} is {text!r}; set it to a positive number of seconds")
    return seconds
