"""The timers of a simulated API: one thread runs what is due."""

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable

_log = logging.getLogger(__name__)


class Timers:
    """Runs actions one at a time, each at its time; actions of the same time in the order of entry."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []
        """Exceptions that actions raised."""
        self._changed = threading.Condition()
        self._entries: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._closed = False
        self._running = False
        self._thread = threading.Thread(target=self._run, name="simulated-api-timers", daemon=True)

    def start(self) -> None:
        """Begin to run actions."""
        self._thread.start()

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        """Run *action* once, *seconds* from now. Safe from any thread, also from an action."""
        with self._changed:
            heapq.heappush(self._entries, (time.monotonic() + seconds, next(self._numbers), action))
            self._changed.notify()

    def idle(self) -> bool:
        """Return whether no action runs or waits."""
        with self._changed:
            return not self._running and not self._entries

    def close(self) -> None:
        """Finish the action that is running and drop the others."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while (action := self._next()) is not None:
            try:
                action()
            except Exception as error:  # noqa: BLE001 - kept in ``errors``, which the environment checks at the end
                _log.exception("a delayed action of a simulated API failed")
                self.errors.append(error)

    def _next(self) -> Callable[[], object] | None:
        with self._changed:
            self._running = False
            while not self._closed:
                wait = self._entries[0][0] - time.monotonic() if self._entries else None
                if wait is not None and wait <= 0:
                    self._running = True
                    return heapq.heappop(self._entries)[2]
                self._changed.wait(wait)
        return None
