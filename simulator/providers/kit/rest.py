"""
The base class of simulated REST APIs; a subclass adds the resources.

Each operation is a method that ``route`` marks. Its result is the answer: None
(204), a ``Reply``, or anything else (200, as JSON); it raises ``RequestRefused``
for an error. Operations run one at a time, under the lock of the machines.
"""

import copy
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from simulator.environment.faults import CreateLate, EmptyPage, RepeatPage, Rule, Shrink
from simulator.providers.kit.credentials import in_header
from simulator.providers.kit.fault_script import FaultScript
from simulator.providers.kit.hardware import Hardware
from simulator.providers.kit.http_server import HttpRequest, Reply
from simulator.providers.kit.machines import FakeMachine, FakeMachines, Options, RequestRefused, States
from simulator.providers.kit.middleware import Middleware, SimulatedApi
from simulator.providers.kit.timers import Timers

T = TypeVar("T")

_log = logging.getLogger(__name__)
_LAST_PAGE, _LARGEST_PAGE = 100_000, 1_000


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
    """The fault to inject into it."""


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
        operation.routes = [*getattr(operation, "routes", ()), (method, path)]  # type: ignore[attr-defined]
        return operation

    return mark


class RestApi(SimulatedApi):
    """The API at a port of *address*, a context manager; all is safe to use from any thread while it runs."""

    base: ClassVar[str] = ""
    """The path below which the operations are."""
    states: ClassVar[States] = States()
    page_parameters: ClassVar[tuple[str, str]] = ("page", "per_page")
    """The parameters with the number of a page, from 1, and with its size."""
    page_size: ClassVar[int] = 100
    """The size of a page where the client names none."""

    def __init__(
        self,
        hardware: Hardware,
        *,
        secret: str,
        options: Options | None = None,
        faults: Iterable[Rule] = (),
        address: str = "127.0.0.1",
        machines: FakeMachines[Any] | None = None,
    ) -> None:
        """Answer from ``start`` on to clients that know *secret*; *machines*: for an API with its own class of them."""
        self.secret = secret
        self.options = options or Options()
        self.faults = FaultScript(faults)
        """The faults to inject; rules can be added at any time."""
        self.per_page_cap = self.options.per_page_cap
        """It can be changed at any time."""
        self.machines: Any = machines or FakeMachines[FakeMachine](hardware, self.options, self.states)
        """Its ``FakeMachines``."""
        self.check: Callable[[HttpRequest], object] | None = None
        """Called with each request; what it raises is in ``errors``."""
        self.check_answer: Callable[[HttpRequest, Reply], Reply] | None = None
        """Called with each request and the API's answer to it, likewise; returns what is sent instead."""
        marked = {
            (name, route)
            for kind in type(self).__mro__
            for name, each in vars(kind).items()
            for route in getattr(each, "routes", ())
        }
        self._operations = [
            (method, self.path_of(path), getattr(self, name)) for name, (method, path) in sorted(marked)
        ]
        super().__init__(Middleware(self.faults), self._reply, self.machines.timers, address)

    @property
    def url(self) -> str:
        """Return the base URL."""
        return super().url + self.base

    # An API may override the following methods.

    def path_of(self, path: str) -> str:
        """Return the path of an operation, as ``route`` has it, below the base URL."""
        return path

    def logged_in(self, http: HttpRequest) -> bool:
        """Return whether the client has proved that it knows the secret."""
        return in_header("Authorization", "Bearer ")(http, self.secret)

    def error(self, refused: RequestRefused) -> Any:
        """Return the body of an error."""
        return {"error": "; ".join(refused.messages)}

    # What operations, tests and environments use.

    def machine(self, machine_id: str) -> FakeMachine:
        """
        Return a machine.

        Raises:
            RequestRefused: there is no such machine.
        """
        if machine_id not in self.machines.all:
            raise RequestRefused(404, "not found")
        found: FakeMachine = self.machines.all[machine_id]
        return found

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
        timers: Timers = self.machines.timers
        return timers.idle()

    def page(self, call: Call, items: Sequence[T]) -> tuple[Sequence[T], Page]:
        """
        Return the page of *items* that *call* asks for, with its fault.

        Raises:
            RequestRefused: number or size is out of range.
        """
        fault = call.fault
        items = items[fault.count :] if isinstance(fault, Shrink) else items
        by_number, by_size = self.page_parameters
        number = _integer(call.query, by_number, 1, _LAST_PAGE)
        size = min(_integer(call.query, by_size, self.page_size, _LARGEST_PAGE), self.per_page_cap)
        page = Page(number=number, size=size, last=max(1, -(-len(items) // size)), total=len(items))
        shown = max(1, page.number - 1) if isinstance(fault, RepeatPage) else page.number
        return [] if isinstance(fault, EmptyPage) else items[(shown - 1) * size : shown * size], page

    def _reply(self, http: HttpRequest) -> Reply | None:
        """Return the reply to a request, None to close the connection without one."""
        path = http.path.removeprefix(self.base) if http.path.startswith(self.base) else f"/..{http.path}"
        template, operation, segments = self._operation(http.method, path)
        self._checked(self.check, http)

        def real(fault: Rule | None) -> Reply:
            call = Call(method=http.method, path=path, query=dict(http.query), body=http.body, http=http, fault=fault)
            if isinstance(fault, CreateLate):
                self.machines.timers.after(fault.seconds, lambda: self.answer(call, operation, segments))
                return Reply(status=fault.status)
            reply = self.answer(call, operation, segments)
            return self._checked(self.check_answer, http, reply) or reply

        return self._middleware.pass_on(http.method, path, template, real)

    def _checked(self, check: Callable[..., Any] | None, *given: object) -> Any:
        try:
            return check and check(*given)
        except Exception as error:  # noqa: BLE001 - ``errors`` keeps it
            self._middleware.errors.append(error)

    def _operation(self, method: str, path: str) -> tuple[str, Any, Sequence[str]]:
        for its_method, template, operation in self._operations:
            pattern = re.sub(r"\{[^/]*\}", "([^/]+)", template)
            if its_method == method and (found := re.fullmatch(pattern, path)):
                return template, operation, found.groups()
        return path, None, ()

    def answer(self, call: Call, operation: Any, segments: Sequence[str]) -> Reply:
        """Carry out the call and return the answer of the API."""
        try:
            answer = self._perform(call, operation, segments)
        except RequestRefused as refused:
            return Reply(status=refused.status, body=self.error(refused))
        except Exception as error:  # noqa: BLE001 - the client gets 500; ``errors`` keeps it
            _log.exception("the simulated API cannot answer %s %s", call.method, call.path)
            self._middleware.errors.append(error)
            return Reply(status=500, body=self.error(RequestRefused(500, "internal error")))
        if isinstance(answer, Reply):
            return answer
        return Reply(status=204 if answer is None else 200, body=answer)

    def _perform(self, call: Call, operation: Any, segments: Sequence[str]) -> Any:
        if not self.logged_in(call.http):
            raise RequestRefused(401, "unauthorized")
        if operation is None:
            raise RequestRefused(404, "not found")
        with self.machines.lock:
            return operation(call, *segments)


def _integer(query: dict[str, str], name: str, default: int, maximum: int) -> int:
    text = query.get(name, str(default))
    if not text.isdecimal() or not 1 <= int(text) <= maximum:
        raise RequestRefused(422, f"{name} must be an integer from 1 to {maximum}, not {text!r}")
    return int(text)
