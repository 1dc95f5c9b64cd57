"""Schedules as in EventBridge: events on time, also while a function is still running, and sometimes twice."""

import itertools
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from simulator.closeable import Closeable
from simulator.lambda_.service import Invocation, LambdaService


class Schedules(Closeable):
    """
    Fires an event for each of *functions* every *interval* seconds, until closed; *functions* may be empty.

    *every* is the number of intervals between events of a function; default 1.
    An event is delivered *twice* with this probability, both times at once;
    nothing is retried. *done* gets each outcome, on a separate thread.
    """

    def __init__(
        self,
        service: LambdaService,
        functions: Sequence[str],
        interval: float,
        *,
        done: Callable[[Invocation], None],
        every: Mapping[str, int],
        twice: float = 0.05,
        seed: int = 0,
    ) -> None:
        """Start."""
        self._service = service
        self._done = done
        self._every = every
        self._twice = twice
        self._chance = random.Random(seed)
        self._closing = threading.Event()
        self._deliveries: list[threading.Thread] = []
        self.duplicates = 0
        """The number of events that were delivered twice."""
        self._thread = threading.Thread(target=self._fire, args=(functions, interval), name="schedules", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Fire no more events, and wait for the invocations under way."""
        self._closing.set()
        self._thread.join()
        for delivery in self._deliveries:
            delivery.join()

    def _fire(self, functions: Sequence[str], interval: float) -> None:
        # Spread over the interval, like schedules that were created one after another.
        for number, function in enumerate(itertools.cycle(functions)):
            if number // len(functions) % self._every.get(function, 1) == 0:
                self._send(function)
            if self._closing.wait(interval / len(functions)):
                break

    def _send(self, function: str) -> None:
        event = {"loop": function, "scheduled_time": datetime.now(UTC).isoformat(), "dry_run": False}
        copies = 2 if self._chance.random() < self._twice else 1
        self.duplicates += copies - 1
        self._deliveries = [delivery for delivery in self._deliveries if delivery.is_alive()]
        for _ in range(copies):
            delivery = threading.Thread(target=self._deliver, args=(function, event), daemon=True)
            delivery.start()
            self._deliveries.append(delivery)

    def _deliver(self, function: str, event: dict[str, object]) -> None:
        self._done(self._service.invoke(function, event))
