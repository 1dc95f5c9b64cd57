"""The agent's life after the takeover."""

from __future__ import annotations

import math
import random
import time
from typing import TYPE_CHECKING

from .endpoint import NotDelivered
from .messages import heartbeat_request
from .refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import NoReturn

    from .endpoint import Endpoint

INTERVAL_VARIABLE = "SHEPHERD_AGENT_HEARTBEAT_SECONDS"
_INTERVAL = 60.0
_JITTER = 0.1
_GROWTH = 1.5
_LONGEST = 5  # intervals: well below the 10 minutes of silence after which a machine is recovered


def interval(environment: Mapping[str, str]) -> float:
    """
    Return the seconds between two heartbeats.

    Raises:
        Refusal: the variable is set to something that is not a positive number.
    """
    text = environment.get(INTERVAL_VARIABLE, "") or str(_INTERVAL)
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise Refusal(f"{INTERVAL_VARIABLE} is {text!r}; wanted: a positive number of seconds")
    return seconds


def pause_after(pause: float, interval: float, *, delivered: bool) -> float:
    """Return the seconds until the next heartbeat: *interval*, or growing from the last *pause* after a failure."""
    return interval if delivered else min(pause * _GROWTH, interval * _LONGEST)


def send_heartbeats(endpoint: Endpoint, machine_id: str, interval: float) -> NoReturn:
    """
    Report to *endpoint* every *interval* seconds until the process is killed, however often that fails.

    The first report waits a part of the interval, so that machines that are taken over
    together do not stay together, and the takeover is on record before it.
    """
    message = heartbeat_request(machine_id)
    pause = interval
    time.sleep(interval * random.uniform(0.2, 1))  # noqa: S311 - spreads load
    while True:
        try:
            endpoint.deliver("heartbeat", message)
        except NotDelivered:
            # There is nobody to tell: that the heartbeat is missing is the message.
            pause = pause_after(pause, interval, delivered=False)
        else:
            pause = pause_after(pause, interval, delivered=True)
        time.sleep(pause * random.uniform(1 - _JITTER, 1 + _JITTER))  # noqa: S311 - spreads load
