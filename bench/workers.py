"""Workers that begin together, each a separate process, like functions."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pg8000.native

_CONTEXT = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Done:
    """The result of one or several workers."""

    count: int
    seconds: float
    """Until the last item was finished."""
    processor_seconds: float
    """Of the worker and its process in the server; depends little on other load on the computer."""

    @classmethod
    def by_all(cls, parts: Sequence[Done]) -> Done:
        """Return the total of workers that began together."""
        return cls(
            sum(part.count for part in parts),
            max(part.seconds for part in parts),
            sum(part.processor_seconds for part in parts),
        )


class Meter:
    """Measures the processor time of this process and of the server's process for a connection."""

    def __init__(self, connection: pg8000.native.Connection, *, server_only: bool = False) -> None:
        """Call ``begin`` to start."""
        self._server_only = server_only
        self._backend = Path(f"/proc/{connection.run('SELECT pg_backend_pid()')[0][0]}/schedstat")
        self._began = 0.0

    def begin(self) -> None:
        """Start to measure."""
        self._began = self._now()

    def spent(self) -> float:
        """Return the processor seconds since ``begin``."""
        return self._now() - self._began

    def _now(self) -> float:
        own = 0.0 if self._server_only else time.process_time()
        return own + int(self._backend.read_text(encoding="ascii").split()[0]) / 1e9


def together(count: int, ready: Callable[[int], Callable[[], Any]]) -> Sequence[Any]:
    """
    Return the results of *count* workers, each in a separate process.

    *ready* gets the number of a worker, connects, warms up and returns the
    function to measure; all workers call theirs when the last one is ready.
    """
    barrier = _CONTEXT.Barrier(count)
    answers = _CONTEXT.SimpleQueue()

    def worker(number: int) -> None:
        try:
            run = ready(number)
            barrier.wait(timeout=120)
            answers.put(run())
        except BaseException as error:
            answers.put(error)
            raise

    processes = [_CONTEXT.Process(target=worker, args=(number,)) for number in range(count)]
    for process in processes:
        process.start()
    found = [answers.get() for _ in processes]
    for process in processes:
        process.join()
    for answer in found:
        if isinstance(answer, BaseException):
            raise answer
    return found
