"""The schedule of the hardware report: at the start, after every change, and once a day."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ..wire import encode
from .kernel import Kernel
from .report import hardware_report

if TYPE_CHECKING:
    from collections.abc import Callable

_COLLECT_SECONDS = 3600.0
_REPEAT_SECONDS = 86400.0


def encoded_report() -> bytes:
    """Return the AgentHardwareReport of this machine."""
    return encode(hardware_report(Kernel()))


class Inventory:
    """The current hardware report, and the one that the endpoint has."""

    def __init__(
        self, collect: Callable[[], bytes] = encoded_report, now: Callable[[], float] = time.monotonic
    ) -> None:
        """*collect* returns the report and is called once an hour at most; *now* returns the time in seconds."""
        self._collect = collect
        self._now = now
        self._current = b""
        self._known = b""
        self._collect_at = self._repeat_at = now()

    def report(self) -> bytes:
        """Return the encoded AgentHardwareReport to send; empty if none is due."""
        now = self._now()
        if now >= self._collect_at:
            self._current = self._collect()
            self._collect_at = now + _COLLECT_SECONDS
        return self._current if self._current != self._known or now >= self._repeat_at else b""

    def reported(self) -> None:
        """Record that the endpoint has accepted or refused the report."""
        self._known = self._current
        self._repeat_at = self._now() + _REPEAT_SECONDS
