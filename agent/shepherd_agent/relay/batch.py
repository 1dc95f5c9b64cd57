"""Passes on the heartbeats that a relay has collected, in batches, and gives each its answer."""

from __future__ import annotations

import asyncio
import math
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from ..reports.endpoint import CONTENT_TYPE, NotDelivered
from ..wire import field, fields, integer

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..reports.endpoint import Endpoint

_POST_SECONDS = 6.0
"""Time limit for the answer to a batch. Agents wait for two seconds longer, then they report directly."""
_AWAY_SECONDS = 10.0
"""For so long after a failed batch, heartbeats are refused at once."""
_MOST_ENTRIES, _MOST_BYTES = 500, 1_000_000  # as much as the endpoint takes in one batch
_MOST_BATCHES = 4
"""Batches that are on their way at once."""


class Away(Exception):
    """The heartbeat was not passed on, or its answer did not come."""


class RelayedAnswer(NamedTuple):
    """The endpoint's answer to one heartbeat."""

    status: int
    time: int
    body: bytes
    mac: bytes


class Batches:
    """Collects heartbeats and passes them on. Belongs to one event loop."""

    def __init__(self, make_endpoint: Callable[[], Endpoint]) -> None:
        """*make_endpoint* is called once for each batch that may be on its way at the same time."""
        self._endpoints = [make_endpoint() for _ in range(_MOST_BATCHES)]
        for endpoint in self._endpoints:
            endpoint.seconds = min(endpoint.seconds, _POST_SECONDS)
        self._threads = ThreadPoolExecutor(_MOST_BATCHES)
        self._waiting: list[tuple[bytes, asyncio.Future[RelayedAnswer]]] = []
        self._bytes = 0
        self._due = math.inf
        """When to send the waiting heartbeats: the earliest time that one of them allows; -inf: as soon as possible."""
        self._timer: asyncio.TimerHandle | None = None
        self._away_until = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    def add(
        self, machine_id: bytes, time: int, signature: bytes, body: bytes, seconds: float
    ) -> asyncio.Future[RelayedAnswer]:
        """
        Add a heartbeat to the next batch, and return the future of its answer.

        It waits for at most *seconds* for others. The future raises Away if there is no answer.

        Raises:
            Away: the endpoint did not answer a moment ago, or too much is waiting.
        """
        loop = asyncio.get_running_loop()
        entry = field(1, machine_id) + integer(2, time) + field(3, signature) + field(4, body)
        encoded = field(1, entry)
        if loop.time() < self._away_until:
            raise Away("the endpoint does not answer")
        if len(self._waiting) >= _MOST_ENTRIES or self._bytes + len(encoded) > _MOST_BYTES:
            self._send()
            if self._waiting:
                raise Away("too many heartbeats are waiting")
        future: asyncio.Future[RelayedAnswer] = loop.create_future()
        self._waiting.append((encoded, future))
        self._bytes += len(encoded)
        if loop.time() + seconds < self._due:
            self._due = loop.time() + seconds
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(self._due, self._send)
        return future

    def _send(self) -> None:
        """Pass on what is waiting, as soon as one of the endpoints is free."""
        self._due = -math.inf
        if not self._endpoints:
            return
        task = asyncio.get_running_loop().create_task(self._pass_on(self._endpoints.pop(), self._take()))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _take(self) -> list[tuple[bytes, asyncio.Future[RelayedAnswer]]]:
        """Return the waiting heartbeats, and begin the next batch."""
        entries, self._waiting, self._bytes, self._due = self._waiting, [], 0, math.inf
        if self._timer is not None:
            self._timer.cancel()
        return entries

    async def _pass_on(self, endpoint: Endpoint, entries: list[tuple[bytes, asyncio.Future[RelayedAnswer]]]) -> None:
        loop = asyncio.get_running_loop()
        message = b"".join(encoded for encoded, _ in entries)
        try:
            answers = await loop.run_in_executor(self._threads, _exchange, endpoint, message, len(entries))
        except (NotDelivered, ValueError) as error:
            if loop.time() >= self._away_until:
                print(
                    f"shepherd-agent: {len(entries)} heartbeats were not passed on: {error}",
                    file=sys.stderr,
                    flush=True,
                )
            self._away_until = loop.time() + _AWAY_SECONDS
            for _, future in entries + self._take():
                if not future.done():
                    future.set_exception(Away("the endpoint does not answer"))
        else:
            self._away_until = 0.0
            for (_, future), answer in zip(entries, answers):  # noqa: B905 - Python 3.9 has no strict
                if not future.done():
                    future.set_result(answer)
        finally:
            self._endpoints.append(endpoint)
            if self._due == -math.inf:
                self._send()


def _exchange(endpoint: Endpoint, message: bytes, count: int) -> list[RelayedAnswer]:
    """Send a HeartbeatBatch of *count* entries and return the answers, in its order."""
    answer = endpoint.post("heartbeats", message, dict)
    if answer.headers.get("Content-Type") != CONTENT_TYPE:  # not the status, which is that of the best answer
        raise NotDelivered(f"the endpoint answered {answer.reason}", answered=True)
    answers = [_answer(value) for number, value in fields(answer.body) if number == 1 and isinstance(value, bytes)]
    if len(answers) != count:
        raise NotDelivered(f"the endpoint answered {len(answers)} of {count} heartbeats", answered=True)
    return answers


def _answer(message: bytes) -> RelayedAnswer:
    """Return a HeartbeatAnswer."""
    found = dict(fields(message))
    status, time, body, mac = found.get(1, 0), found.get(2, 0), found.get(3, b""), found.get(4, b"")
    if isinstance(status, int) and isinstance(time, int) and isinstance(body, bytes) and isinstance(mac, bytes):
        return RelayedAnswer(status, time, body, mac)
    raise ValueError("the answer is not a HeartbeatBatchResponse")
