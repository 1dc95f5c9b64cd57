"""The middleware of every simulated API: it counts calls and injects the faults of a script."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Self

from simulator.closeable import Closeable
from simulator.environment import faults
from simulator.providers.kit.changes import changed
from simulator.providers.kit.fault_script import FaultScript
from simulator.providers.kit.http_server import HttpRequest, Reply, Server
from simulator.providers.kit.timers import Timers


class Middleware:
    """Counts calls and injects faults. Safe to use from any thread."""

    def __init__(self, *scripts: FaultScript, closing: threading.Event | None = None) -> None:
        """All delays of *scripts* happen, but only the first other fault."""
        self.errors: list[Exception] = []
        """Errors of the simulator itself."""
        self.closing = threading.Event() if closing is None else closing
        """Set it to end all delays; from then on every call is dropped."""
        self._scripts = scripts
        self._lock = threading.Lock()
        self._calls: Counter[tuple[str, str]] = Counter()

    @property
    def calls(self) -> Counter[tuple[str, str]]:
        """Return the number of calls by method and path template."""
        with self._lock:
            return self._calls.copy()

    def pass_on(
        self, method: str, path: str, template: str, real: Callable[[faults.Rule | None], Reply]
    ) -> Reply | None:
        """
        Return the reply to a call of *path*, None to close the connection without one.

        *real* carries out the call and returns the API's answer. It receives the fault, because faults that only one
        API has are injected there; dropping, cutting and replacing an answer is done here.
        """
        with self._lock:
            self._calls[method, template] += 1
        delays: list[faults.Delay] = []
        fault: faults.Rule | None = None
        for script in self._scripts:
            more, found = script.hits(method, path)
            delays += more
            fault = fault or found
        if self._closed_in(delays, "before"):
            return None
        reply = _with_fault(real, fault)
        return None if self._closed_in(delays, "after") else reply

    def _closed_in(self, delays: Sequence[faults.Delay], when: faults.When) -> bool:
        """Wait as long as the delays say; return whether the API was closed meanwhile."""
        return self.closing.wait(sum(delay.seconds for delay in delays if delay.when == when))


class SimulatedApi(Closeable):
    """An API that answers from ``start`` to ``close``."""

    def __init__(
        self, middleware: Middleware, reply: Callable[[HttpRequest], Reply | None], timers: Timers, address: str
    ) -> None:
        """Take a free port of *address*, an IP address of this computer."""
        self._middleware, self._timers = middleware, timers
        self._server = Server(reply, address)

    @property
    def url(self) -> str:
        """Return the base URL."""
        return self._server.url

    @property
    def calls(self) -> Counter[tuple[str, str]]:
        """Return the number of calls by method and path; variable parts of a path are in braces."""
        return self._middleware.calls

    @property
    def errors(self) -> list[Exception]:
        """Return requests that did not fit the API, and errors of hardware and simulator; empty if all went well."""
        return [*self._middleware.errors, *self._timers.errors]

    def start(self) -> None:
        """Begin to answer."""
        self._timers.start()
        self._server.start()

    def close(self) -> None:
        """End all connections and threads; actions that are not due yet are dropped."""
        self._middleware.closing.set()
        self._server.close()
        self._timers.close()

    def __enter__(self) -> Self:
        self.start()
        return self


def _with_fault(real: Callable[[faults.Rule | None], Reply], fault: faults.Rule | None) -> Reply | None:
    reply = None
    if not (isinstance(fault, faults.Drop | faults.FakeAnswer) and fault.when == "before"):
        reply = real(fault)
    match fault:
        case faults.Drop():
            return None
        case faults.FakeAnswer():
            headers = {} if fault.retry_after is None else {"Retry-After": f"{fault.retry_after:g}"}
            return Reply(status=fault.status, body=fault.body, headers=headers)
        case faults.Cut() if reply is not None:
            return replace(reply, cut=True)
    return reply and replace(reply, body=changed(reply.body, fault))
