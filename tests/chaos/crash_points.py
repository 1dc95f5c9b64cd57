"""
Crash points: every external side effect is numbered, and an invocation can be killed or stopped there.

Inside ``Points`` every round trip to the database, every HTTP request, every
call of AWS and every step over SSH passes through the guard. They are
intercepted in the libraries that carry them out, so that a new effect becomes a
crash point by itself. Only SSH is intercepted at the protocol that the loops are
given (``stepped``), because they reach machines in no other way.
"""

import functools
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any, NoReturn, Protocol, Self, TypeVar
from unittest.mock import patch

import botocore.endpoint
import pg8000.core
import requests.adapters
from pg8000.native import to_statement
from shepherd_core.bmdb.statements import statements
from shepherd_core.domain.clock import Clock, SystemClock

T = TypeVar("T")

_DATABASE = ("__init__", "execute_simple", "execute_named", "execute_unnamed", "prepare_statement",
             "close_prepared_statement")  # fmt: skip
_CAUGHT: tuple[tuple[type, str, str], ...] = (
    *((pg8000.core.CoreConnection, method, "database") for method in _DATABASE),
    (requests.adapters.HTTPAdapter, "send", "http"),
    (botocore.endpoint.Endpoint, "make_request", "aws"),
)


class Killed(BaseException):
    """The process was killed. No code may catch this, and nothing that it still does has an effect."""


class Guard(Protocol):
    @property
    def killed(self) -> bool:
        """Whether the invocation was killed."""

    def effect(self, name: str, call: Callable[[], T]) -> T:
        """Carry out *call*, the effect *name*, or kill the invocation."""

    def starts(self, thread: threading.Thread) -> None:
        """Note that the calling thread is about to start *thread*."""


class KillAt:
    """
    Kills the invocation at the effect with the number *at* (from 1), before it or *after* it; None: never.

    After the effect means that it happened and that its answer was not seen.
    From then on no thread of the invocation has any effect: a killed process
    runs no ``finally`` either.
    """

    def __init__(self, at: int | None = None, *, after: bool = False) -> None:
        self.names: list[str] = []
        self._at = at
        self._after = after
        self._lock = threading.Lock()
        self.killed = False

    def __str__(self) -> str:
        if not self.killed:
            return "not killed"
        return f"killed {'after' if self._after else 'before'} effect {self._at} ({self.names[-1]})"

    def effect(self, name: str, call: Callable[[], T]) -> T:
        with self._lock:
            if self.killed:
                raise Killed
            # Others cannot see what is in brackets: a kill there is a kill before the next effect.
            counted = "(" not in name
            self.names += [name] * counted
            fatal = counted and len(self.names) == self._at
            if fatal and not self._after:
                self.kill()
        try:
            return call()
        finally:
            if fatal:
                self.kill()

    def kill(self) -> NoReturn:
        self.killed = True
        raise Killed

    def starts(self, thread: threading.Thread) -> None: ...


class ChaosClock(SystemClock):
    """The real time plus ``ahead`` seconds; a killed process cannot read it."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self.ahead = 0.0

    def monotonic(self) -> float:
        if self._guard.killed:
            raise Killed
        return super().monotonic() + self.ahead


class Context:
    """The context of a tick, here without crash points."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def stepped(self, thing: Any) -> Any:
        return thing

    def aside(self, call: Callable[[], T]) -> T:
        return call()


class Points(Context):
    """While entered, all effects of this process pass through *guard*."""

    clock: ChaosClock

    def __init__(self, guard: Guard, watch: Callable[[], object] = lambda: None) -> None:
        """*watch* is called after every effect, by one thread at a time; its own effects are no crash points."""
        super().__init__(ChaosClock(guard))  # which notices a kill at once and not only at its next effect
        self._guard = guard
        self._watch = watch
        self._watching = threading.Lock()
        self._patches = ExitStack()
        self._inside = threading.local()

    def __enter__(self) -> Self:
        for owner, method, kind in _CAUGHT:
            caught = self._caught(getattr(owner, method), kind, method)
            self._patches.enter_context(patch.object(owner, method, caught))
        start, hook = threading.Thread.start, threading.excepthook

        def started(thread: threading.Thread) -> None:
            self._guard.starts(thread)
            start(thread)

        def report(arguments: threading.ExceptHookArgs) -> None:
            if arguments.exc_type is not Killed:
                hook(arguments)

        self._patches.enter_context(patch.object(threading.Thread, "start", started))
        self._patches.enter_context(patch.object(threading, "excepthook", report))
        return self

    def __exit__(self, *_error: object) -> None:
        with self._watching:
            self._watch = lambda: None  # effects of killed invocations that are still under way are not checked
        self._patches.close()

    def stepped(self, thing: Any) -> Any:
        """Return *thing* with every method call a crash point; closable results of methods are wrapped likewise."""
        return _Stepped(thing, functools.partial(self._pass, "ssh"))

    def aside(self, call: Callable[[], T]) -> T:
        """Return the result of *call*; its effects belong to the scenario and are no crash points."""
        before = getattr(self._inside, "effect", False)
        self._inside.effect = True
        try:
            return call()
        finally:
            self._inside.effect = before

    def _pass(self, kind: str, method: str, call: Callable[[], T]) -> T:
        if getattr(self._inside, "effect", False):  # an effect that consists of others is one crash point
            return call()

        def inside() -> T:
            result = call()
            if "(" not in method:
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


@functools.cache
def _names() -> dict[str, str]:
    return {to_statement(text)[0]: name for name, text in statements().items()}


def _statement(method: str, arguments: tuple[Any, ...]) -> str:
    """Return the name of a round trip to the database; in brackets if it only prepares another, or a connection."""
    match method:
        case "execute_named":
            return _names().get(arguments[4], "statement")
        case "prepare_statement":
            return f"(prepare {_names().get(arguments[0], 'statement')})"
        # Both are for a connection: a warm one, and a new one, which statements set up that begin with their comment.
        case "execute_simple" | "execute_unnamed" if arguments[0] != "RESET ALL" and not arguments[0].startswith("--"):
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
    """Return the result of *call*; None: it was killed."""
    with suppress(Killed):
        return call()
    return None
