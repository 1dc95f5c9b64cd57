"""What happens to a request of any simulated API around its operation: counting, delays, the faults of a script."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from simulator import faults
from simulator.http_server import Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from simulator.equinix_agenda import Agenda
    from simulator.http_server import Server


class Front:
    """Counts calls and spoils answers. Safe to use from any thread."""

    def __init__(self, script: faults.FaultScript) -> None:
        self.errors: list[Exception] = []
        """Faults of the simulator itself."""
        self.closing = threading.Event()
        """Set it to end all delays; no call has an effect from then on."""
        self._script = script
        self._lock = threading.Lock()
        self._calls: Counter[tuple[str, str]] = Counter()

    @property
    def calls(self) -> Counter[tuple[str, str]]:
        """Return how often each method and template of a path was called."""
        with self._lock:
            return self._calls.copy()

    def pass_on(
        self, method: str, path: str, template: str, real: Callable[[faults.Rule | None], Reply]
    ) -> Reply | None:
        """
        Return the reply to a call of *path*, None to close the connection without one.

        *real* carries the call out and returns the API's answer. It is given the fault, whose own ways to bend what
        happens are its business: dropping, cutting and replacing an answer is done here.
        """
        with self._lock:
            self._calls[method, template] += 1
        delays, fault = self._script.hits(method, path)
        if self._closed_in(delays, "before"):
            return None
        reply = _spoiled(real, fault)
        return None if self._closed_in(delays, "after") else reply

    def _closed_in(self, delays: Sequence[faults.Delay], when: faults.When) -> bool:
        """Wait as long as told; tell whether the API was closed meanwhile."""
        return self.closing.wait(sum(delay.seconds for delay in delays if delay.when == when))


class Served:
    """An API that answers from ``start`` to ``close``; also a context manager."""

    def __init__(self, server: Server, front: Front, agenda: Agenda) -> None:
        self._served, self._before, self._agenda = server, front, agenda

    @property
    def calls(self) -> Counter[tuple[str, str]]:
        """Return how often each method and path was called; what varies in a path is in braces."""
        return self._before.calls

    @property
    def errors(self) -> list[Exception]:
        """Return what did not fit the API, and what hardware or simulator raised; a sound world has none."""
        return [*self._before.errors, *self._agenda.errors]

    def start(self) -> None:
        """Begin to answer."""
        self._agenda.start()
        self._served.start()

    def close(self) -> None:
        """Stop answering and forget what was to happen; ends all connections and threads."""
        self._before.closing.set()
        self._served.close()
        self._agenda.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _spoiled(real: Callable[[faults.Rule | None], Reply], fault: faults.Rule | None) -> Reply | None:
    match fault:
        case faults.Drop(when="before"):
            return None
        case faults.Answer(when="before"):
            return _scripted(fault)
    reply = real(fault)
    match fault:
        case faults.Drop():
            return None
        case faults.Answer():
            return _scripted(fault)
        case faults.Cut():
            return replace(reply, cut=True)
    return reply


def _scripted(fault: faults.Answer) -> Reply:
    headers = {} if fault.retry_after is None else {"Retry-After": f"{fault.retry_after:g}"}
    return Reply(status=fault.status, body=fault.body, headers=headers)
