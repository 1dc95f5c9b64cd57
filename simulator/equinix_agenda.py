"""What the simulated Equinix API does later: one thread that acts when the time has come."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)


class Agenda:
    """Runs actions one after the other, each not before its time; of equal times, the first entered first."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []
        """What the actions raised."""
        self._changed = threading.Condition()
        self._entries: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="equinix-agenda", daemon=True)

    def start(self) -> None:
        """Begin to act."""
        self._thread.start()

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        """Run *action* once, *seconds* from now. Safe from any thread, also from an action."""
        with self._changed:
            heapq.heappush(self._entries, (time.monotonic() + seconds, next(self._numbers), action))
            self._changed.notify()

    def close(self) -> None:
        """Finish the action at hand and forget the others."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while (action := self._next()) is not None:
            try:
                action()
            except Exception as error:  # noqa: BLE001 - the world goes on; its maker asks for the errors
                _log.exception("the simulated Equinix API could not change a device")
                self.errors.append(error)

    def _next(self) -> Callable[[], object] | None:
        with self._changed:
            while not self._closed:
                wait = self._entries[0][0] - time.monotonic() if self._entries else None
                if wait is not None and wait <= 0:
                    return heapq.heappop(self._entries)[2]
                self._changed.wait(wait)
        return None
