"""When the hardware report is due: at first, after every change, and once a day."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .hardware import hardware_report
from .kernel import Kernel
from .wire import encode

if TYPE_CHECKING:
    from collections.abc import Callable

_LOOK_SECONDS = 3600.0
_REPEAT_SECONDS = 86400.0


def encoded_report() -> bytes:
    """Return the AgentHardwareReport of this machine."""
    return encode(hardware_report(Kernel()))


class Inventory:
    """The hardware report that the endpoint should get, and has."""

    def __init__(
        self, collect: Callable[[], bytes] = encoded_report, now: Callable[[], float] = time.monotonic
    ) -> None:
        """Report what *collect* returns; it is asked once an hour at most, by *now* in seconds."""
        self._collect = collect
        self._now = now
        self._current = b""
        self._known = b""
        self._look_at = self._repeat_at = now()

    def report(self) -> bytes:
        """Return the encoded AgentHardwareReport that the endpoint should get, or nothing."""
        now = self._now()
        if now >= self._look_at:
            self._current = self._collect()
            self._look_at = now + _LOOK_SECONDS
        return self._current if self._current != self._known or now >= self._repeat_at else b""

    def reported(self) -> None:
        """Take note that the endpoint has the report, or does not want it."""
        self._known = self._current
        self._repeat_at = self._now() + _REPEAT_SECONDS
