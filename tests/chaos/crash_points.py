"""
Every outside effect as a numbered point, at which what runs can be killed or made to wait.

Inside ``Points`` every round trip to the database, every HTTP request, every
call of AWS and every step over SSH passes through ``Points.effect``. They are
caught in the libraries that carry them out, so an effect that somebody adds to
Shepherd is a new point without anybody counting it; only SSH is caught at the
protocol that the loops are handed (``stepped``), since they have no other way
to a machine.
"""

from __future__ import annotations

import functools
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import botocore.endpoint
import pg8000.core
import requests.adapters
from pg8000.native import to_statement
from shepherd_core.bmdb.statements import statements
from shepherd_core.domain.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

T = TypeVar("T")

_DATABASE = ("__init__", "execute_simple", "execute_named", "execute_unnamed", "prepare_statement",
             "close_prepared_statement")  # fmt: skip
_CAUGHT: tuple[tuple[type, str, str], ...] = (
    *((pg8000.core.CoreConnection, method, "database") for method in _DATABASE),
    (requests.adapters.HTTPAdapter, "send", "http"),
    (botocore.endpoint.Endpoint, "make_request", "aws"),
)


class Killed(BaseException):
    """The process is gone: no code may catch this, and nothing that it does any more has an effect."""


class Guard(Protocol):
    """What decides at a point."""

    @property
    def dead(self) -> bool:
        """Whether what runs was killed."""

    def effect(self, name: str, call: Callable[[], T]) -> T:
        """Carry out *call*, or do not; *name* tells what it is."""

    def starts(self, thread: threading.Thread) -> None:
        """Take note that *thread* is about to be started, by the thread that calls this."""


class Death:
    """
    Kills what runs at the effect with the number *at* (from 1), before it or *after* it, or never.

    After the effect means that it happened and that its answer was not seen.
    From the moment of death on no thread has any effect any more: a dead
    process runs no ``finally`` either.
    """

    def __init__(self, at: int | None = None, *, after: bool = False) -> None:
        """Count from the beginning."""
        self.names: list[str] = []
        """The effects, in their order."""
        self._at = at
        self._after = after
        self._lock = threading.Lock()
        self.dead = False

    def __str__(self) -> str:
        """Say where it came, if it did."""
        if not self.dead:
            return "not dead"
        return f"dead {'after' if self._after else 'before'} effect {self._at} ({self.names[-1]})"

    def effect(self, name: str, call: Callable[[], T]) -> T:
        """See ``Guard``."""
        with self._lock:
            if self.dead:
                raise Killed
            self.names.append(name)
            fatal = len(self.names) == self._at
            if fatal and not self._after:
                self.dead = True
                raise Killed
        try:
            return call()
        finally:
            if fatal:
                self.dead = True
                raise Killed

    def starts(self, thread: threading.Thread) -> None:
        """See ``Guard``."""


class ChaosClock(SystemClock):
    """The real time, or one that is ahead of it; a dead process does not read it."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self.ahead = 0.0

    def monotonic(self) -> float:
        """See ``Clock``."""
        if self._guard.dead:
            raise Killed
        return super().monotonic() + self.ahead


class Points:
    """While it is entered, all effects of this process pass through *guard*."""

    def __init__(self, guard: Guard, watch: Callable[[], object] = lambda: None) -> None:
        """*watch* is called after every effect, by one thread at a time; what it does is none. One in a process."""
        self.clock = ChaosClock(guard)
        """The clock for what runs: it notices its death at once, and not when it next has an effect."""
        self._guard = guard
        self._watch = watch
        self._watching = threading.Lock()
        self._originals: list[tuple[type, str, Any]] = []
        self._inside = threading.local()
        self._hook = threading.excepthook

    def __enter__(self) -> Self:
        for owner, method, kind in _CAUGHT:
            original = getattr(owner, method)
            self._originals.append((owner, method, original))
            setattr(owner, method, self._caught(original, kind, method))
        start = threading.Thread.start
        self._originals.append((threading.Thread, "start", start))

        def started(thread: threading.Thread) -> None:
            self._guard.starts(thread)
            start(thread)

        threading.Thread.start = started  # type: ignore[assignment, method-assign]  # until the exit
        threading.excepthook = self._quietly
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._watching:
            self._watch = lambda: None  # what is still under way for somebody who is dead is nobody's business
        for owner, method, original in self._originals:
            setattr(owner, method, original)
        threading.excepthook = self._hook

    def stepped(self, thing: Any, kind: str = "ssh") -> Any:
        """Return *thing* with every method call a point, and what the methods return likewise if it has methods."""
        return _Stepped(thing, functools.partial(self._pass, kind))

    def aside(self, call: Callable[[], T]) -> T:
        """Return what *call* returns, which is the scenario's own doing: none of it is a point."""
        before = getattr(self._inside, "effect", False)
        self._inside.effect = True
        try:
            return call()
        finally:
            self._inside.effect = before

    def _pass(self, kind: str, method: str, call: Callable[[], T]) -> T:
        if getattr(self._inside, "effect", False):  # one effect is a point once, whatever it is made of
            return call()

        def inside() -> T:
            result = call()
            with self._watching:
                self._watch()
            return result

        return self._guard.effect(f"{kind} {method}", functools.partial(self.aside, inside))

    def _caught(self, original: Any, kind: str, method: str) -> Any:
        @functools.wraps(original)
        def caught(this: Any, *arguments: Any, **named: Any) -> Any:
            name = method
            if kind == "database":
                name = _statement(method, arguments)
            if kind == "http":
                name = f"{arguments[0].method} {arguments[0].path_url.split('?')[0]}"
            if kind == "aws":
                name = arguments[0].name
            return self._pass(kind, name, lambda: original(this, *arguments, **named))

        return caught

    def _quietly(self, arguments: threading.ExceptHookArgs) -> None:
        if arguments.exc_type is not Killed:
            self._hook(arguments)


@functools.cache
def _names() -> dict[str, str]:
    return {to_statement(text)[0]: name for name, text in statements().items()}


def _statement(method: str, arguments: tuple[Any, ...]) -> str:
    """Return what a round trip to the database is for; what only prepares for another begins with a bracket."""
    match method:
        case "execute_named":
            return _names().get(arguments[4], "statement")
        case "prepare_statement":
            return f"(prepare {_names().get(arguments[0], 'statement')})"
        case "execute_simple" | "execute_unnamed":
            return str(arguments[0]).split(maxsplit=1)[0]
    return f"({method.strip('_')})"


class _Stepped:
    def __init__(self, thing: Any, guarded: Callable[[str, Callable[[], Any]], Any]) -> None:
        self._thing = thing
        self._guarded = guarded

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._thing, name)
        if not callable(value):
            return value

        def step(*arguments: Any, **named: Any) -> Any:
            result = self._guarded(name, lambda: value(*arguments, **named))
            return _Stepped(result, self._guarded) if hasattr(result, "close") else result

        return step


def alive(call: Callable[[], T]) -> T | None:
    """Return what *call* returns; None: it was killed."""
    with suppress(Killed):
        return call()
    return None
