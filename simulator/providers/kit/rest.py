"""
A simulated REST API: its subclass has the resources, and little else.

Each operation is a method that ``route`` marks. What it returns is the answer:
None (204), a ``Reply``, or anything else (200, as JSON); it raises ``Refused``
for an error. Operations run one at a time, under the lock of the machines.
"""

from __future__ import annotations

import base64
import copy
import hmac
import logging
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from simulator.environment.faults import CreateLate, EmptyPage, FaultScript, RepeatPage, Shrink
from simulator.providers.kit.http_server import HttpRequest, Reply
from simulator.providers.kit.machines import FakeMachine, FakeMachines, Options, Refused, States
from simulator.providers.kit.middleware import Middleware, SimulatedApi

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from simulator.environment.faults import Rule
    from simulator.providers.kit.hardware import Hardware

T = TypeVar("T")

_log = logging.getLogger(__name__)
_WINDOW_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class Call:
    """A request, as operations get it."""

    method: str
    path: str
    """Below the base URL."""
    query: dict[str, str]
    body: Any
    """See ``HttpRequest.body``."""
    http: HttpRequest
    fault: Rule | None = None
    """What goes wrong with it."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """The position of a page in its listing."""

    number: int
    size: int
    last: int
    total: int


def route(method: str, path: str) -> Callable[[T], T]:
    """Mark a method as the operation *method* *path*; it gets the call, and the segments that are in braces there."""

    def mark(operation: T) -> T:
        operation.route = (method, path)  # type: ignore[attr-defined]
        return operation

    return mark


def in_header(name: str, scheme: str = "") -> Callable[[HttpRequest, str], bool]:
    """Return the check of a credential in a header."""
    return lambda request, secret: _same(request.headers.get(name, ""), f"{scheme}{secret}")


def basic(request: HttpRequest, secret: str) -> bool:
    """Check basic authentication with the credential ``USER:PASSWORD``."""
    return _same(request.headers.get("Authorization", ""), f"Basic {base64.b64encode(secret.encode()).decode()}")


class RestApi(SimulatedApi):
    """The API at a port of *address*, a context manager; all is safe to use from any thread while it runs."""

    base: ClassVar[str] = ""
    """The path below which the operations are."""
    states: ClassVar[States] = States()
    page_parameters: ClassVar[tuple[str, str]] = ("page", "per_page")
    """The parameters with the number of a page, from 1, and with its size."""

    def __init__(
        self,
        hardware: Hardware,
        *,
        secret: str,
        options: Options | None = None,
        faults: Iterable[Rule] = (),
        address: str = "127.0.0.1",
    ) -> None:
        """Answer from ``start`` on to clients that know *secret*."""
        self.secret = secret
        self.options = options or Options()
        self.faults = FaultScript(faults)
        """The faults to inject; rules can be added at any time."""
        self.machines: FakeMachines[FakeMachine] = FakeMachines(hardware, self.options, self.states)
        self._window = (time.monotonic(), 0)
        marked = [name for kind in type(self).__mro__ for name, each in vars(kind).items() if hasattr(each, "route")]
        self._operations = [getattr(self, name) for name in dict.fromkeys(marked)]
        super().__init__(Middleware(self.faults), self._reply, self.machines.timers, address)

    @property
    def url(self) -> str:
        """Return the base URL."""
        return super().url + self.base

    # An API may override the following methods.

    def logged_in(self, http: HttpRequest) -> bool:
        """Return whether the client has proved that it knows the secret."""
        return in_header("Authorization", "Bearer ")(http, self.secret)

    def error(self, refused: Refused) -> Any:
        """Return the body of an error."""
        return {"error": "; ".join(refused.messages)}

    # What operations, tests and environments use.

    def machine(self, machine_id: str) -> FakeMachine:
        """
        Return a machine.

        Raises:
            Refused: there is no such machine.
        """
        if machine_id not in self.machines.all:
            raise Refused(404, "not found")
        return self.machines.all[machine_id]

    def create(self, name: str, authorized_key: str = "", **fields: Any) -> FakeMachine:
        """Begin to make a machine."""
        machine = FakeMachine(id=self.machines.new_id(), name=name, authorized_key=authorized_key, fields=fields)
        self.machines.add(machine)
        return machine

    def add_active(self, name: str, *, address: str | None = None, **fields: Any) -> FakeMachine:
        """Add a machine, as an operator would in the console; with an *address*, it has no hardware."""
        with self.machines.lock:
            machine = FakeMachine(id=self.machines.new_id(), name=name, address=address, fields=fields)
            self.machines.add_active(machine)
            return copy.deepcopy(machine)

    def snapshot(self) -> list[FakeMachine]:
        """Return copies of the machines, oldest first."""
        with self.machines.lock:
            return copy.deepcopy(list(self.machines.all.values()))

    def change(self, machine_id: str, **attributes: Any) -> None:
        """Set attributes of a machine, such as its state."""
        with self.machines.lock:
            for name, value in attributes.items():
                setattr(self.machines.all[machine_id], name, value)

    def settled(self) -> bool:
        """Return whether nothing is under way."""
        return self.machines.timers.idle()

    def page(self, call: Call, items: Sequence[T]) -> tuple[Sequence[T], Page]:
        """
        Return the page of *items* that *call* asks for, spoiled by its fault.

        Raises:
            Refused: number or size is no positive integer.
        """
        fault = call.fault
        items = items[fault.count :] if isinstance(fault, Shrink) else items
        number, size = (_positive(call.query, name) for name in self.page_parameters)
        size = min(size or self.options.per_page_cap, self.options.per_page_cap)
        page = Page(number=number or 1, size=size, last=max(1, -(-len(items) // size)), total=len(items))
        shown = max(1, page.number - 1) if isinstance(fault, RepeatPage) else page.number
        return [] if isinstance(fault, EmptyPage) else items[(shown - 1) * size : shown * size], page

    def _reply(self, http: HttpRequest) -> Reply | None:
        """Return the reply to a request, None to close the connection without one."""
        path = http.path.removeprefix(self.base) if http.path.startswith(self.base) else f"/..{http.path}"
        operation, segments = self._operation(http.method, path)
        template = path if operation is None else operation.route[1]

        def real(fault: Rule | None) -> Reply:
            call = Call(method=http.method, path=path, query=dict(http.query), body=http.body, http=http, fault=fault)
            if isinstance(fault, CreateLate):
                self.machines.timers.after(fault.seconds, lambda: self._answer(call, operation, segments))
                return Reply(status=fault.status)
            return self._answer(call, operation, segments)

        return self._middleware.pass_on(http.method, path, template, real)

    def _operation(self, method: str, path: str) -> tuple[Any, Sequence[str]]:
        for operation in self._operations:
            pattern = re.sub(r"\{[^/]*\}", "([^/]+)", operation.route[1])
            if operation.route[0] == method and (found := re.fullmatch(pattern, path)):
                return operation, found.groups()
        return None, ()

    def _answer(self, call: Call, operation: Any, segments: Sequence[str]) -> Reply:
        """Carry out the call and return the answer of the API."""
        if wait := self._rate():
            body = self.error(Refused(429, "rate limit exceeded"))
            return Reply(status=429, body=body, headers={"Retry-After": str(wait)})
        try:
            answer = self._perform(call, operation, segments)
        except Refused as refused:
            return Reply(status=refused.status, body=self.error(refused))
        except Exception as error:  # noqa: BLE001 - the client gets 500; ``errors`` keeps it
            _log.exception("the simulated API cannot answer %s %s", call.method, call.path)
            self._middleware.errors.append(error)
            return Reply(status=500, body=self.error(Refused(500, "internal error")))
        if isinstance(answer, Reply):
            return answer
        return Reply(status=204 if answer is None else 200, body=answer)

    def _perform(self, call: Call, operation: Any, segments: Sequence[str]) -> Any:
        if not self.logged_in(call.http):
            raise Refused(401, "unauthorized")
        if operation is None:
            raise Refused(404, "not found")
        with self.machines.lock:
            return operation(call, *segments)

    def _rate(self) -> int:
        """Count a call; return the seconds to wait, 0 if the rate limit is not exceeded."""
        with self.machines.lock:
            began, count = self._window
            if time.monotonic() >= began + _WINDOW_SECONDS:
                began, count = time.monotonic(), 0
            self._window = (began, count + 1)
        return int(began + _WINDOW_SECONDS - time.monotonic()) + 1 if count >= self.options.calls_per_minute else 0


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(), wanted.encode())


def _positive(query: dict[str, str], name: str) -> int | None:
    text = query.get(name)
    if text is not None and (not text.isdecimal() or int(text) < 1):
        raise Refused(422, f"{name} must be a positive integer, not {text!r}")
    return None if text is None else int(text)
