"""Workers that begin together, each a process of its own, as functions are."""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pg8000.native

_CONTEXT = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Done:
    """What one worker, or several of them, did."""

    count: int
    seconds: float
    """Until the last of it was done."""
    processor_seconds: float
    """Of the worker and of the server's process that works for it; hardly changed by other load on the computer."""

    @classmethod
    def by_all(cls, parts: Sequence[Done]) -> Done:
        """Return what workers did that began together."""
        return cls(
            sum(part.count for part in parts),
            max(part.seconds for part in parts),
            sum(part.processor_seconds for part in parts),
        )


class Meter:
    """Counts the processor time of this process and of the server's at the other end of a connection."""

    def __init__(self, connection: pg8000.native.Connection) -> None:
        """Begin with ``begin``."""
        self._backend = Path(f"/proc/{connection.run('SELECT pg_backend_pid()')[0][0]}/schedstat")
        self._began = 0.0

    def begin(self) -> None:
        """Count from now on."""
        self._began = self._now()

    def spent(self) -> float:
        """Return the seconds since then."""
        return self._now() - self._began

    def _now(self) -> float:
        return time.process_time() + int(self._backend.read_text(encoding="ascii").split()[0]) / 1e9


def together(count: int, ready: Callable[[int], Callable[[], Any]]) -> Sequence[Any]:
    """
    Return what *count* workers return, each in a process of its own.

    *ready* gets a worker's number, connects, warms up and returns what is to be
    measured, which all begin when the last is ready.
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
