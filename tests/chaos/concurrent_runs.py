"""
Concurrent invocations, interleaved at their external side effects by a scheduler.

Every thread of every invocation stops before each of its effects. The scheduler
lets one thread continue, waits until all threads have stopped again, checks the
invariants, and chooses the next. If a thread waits in PostgreSQL for another's
row lock, the scheduler sees that there and lets another thread continue. It may
also kill an invocation before or after an effect, or let the time of a session
pass.

The same ``Choices`` give the same schedule.
"""

from __future__ import annotations

import queue
import re
import struct
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple, TypeVar
from unittest.mock import patch

from shepherd_core.domain.errors import ShepherdError

from tests.chaos.crash_points import Killed, Points
from tests.chaos.explore import SOON_SECONDS, Explored
from tests.chaos.invariants import violations
from tests.chaos.stage.environment import Environment
from tests.support.bmdb import warm

T = TypeVar("T")

_PATIENCE_SECONDS = 60.0
_LOOK_SECONDS = 0.0005
_BLOCKED_SECONDS = 0.005

# By the locks, not by the state of the backends: a lock is granted before the answer of the waiting backend arrives.
_WAITING = """
SELECT count(DISTINCT l.pid) FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE a.datname = current_database() AND a.application_name = 'shepherd' AND NOT l.granted
"""
_OPEN = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'shepherd' AND state <> 'idle'
"""
_ACTION = re.compile(r"POST .*/devices/([^/]+)/actions")
_THERE = "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY(CAST(:pids AS int[]))"


class Action(Enum):
    CONTINUE = auto()
    KILL_BEFORE = auto()
    KILL_AFTER = auto()
    PASS_TIME = auto()


class Stop(NamedTuple):
    actor: str
    thread: str
    effect: str


Choices = Callable[[list[Stop], str | None], tuple[Action, Stop]]
"""Returns the next action and one of the stopped threads; the second argument is the invocation that continued last."""


class _State(Enum):
    RUNS = auto()
    STOPPED = auto()
    IN_EFFECT = auto()
    ENDED = auto()


@dataclass(eq=False)
class _Actor:
    name: str
    killed: bool = False
    connections_closed: bool = False


@dataclass(eq=False)
class _Thread:
    actor: _Actor
    name: str
    """Its place in the tree of threads: ``1.2`` is the second thread that the first one started."""
    thread: threading.Thread
    state: _State = _State.RUNS
    effect: str = ""
    fatal: bool = False
    since: float = 0.0
    children: int = 0


class Waits:
    """
    Which threads wait for another one: each says so itself, where it waits, and for what.

    All waiting of the loops is for a condition, or for the end of a thread. A thread
    that was woken waits no more, although it may not have run since. A thread that
    only waits until the one that it starts has begun does not count as waiting.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, threading.Condition | threading.Thread] = {}
        self._starting: set[int] = set()

    @contextmanager
    def noted(self) -> Iterator[None]:
        waits, joins, starts = threading.Condition.wait, threading.Thread.join, threading.Thread.start

        def wait(self_: threading.Condition, timeout: float | None = None) -> bool:
            with self._noted(self_):
                return waits(self_, timeout)

        def join(self_: threading.Thread, timeout: float | None = None) -> None:
            with self._noted(self_):
                joins(self_, timeout)

        def start(self_: threading.Thread) -> None:
            mine = threading.get_ident()
            self._starting.add(mine)
            try:
                starts(self_)
            finally:
                self._starting.discard(mine)

        with ExitStack() as stack:
            stack.enter_context(patch.object(threading.Condition, "wait", wait))
            stack.enter_context(patch.object(threading.Thread, "join", join))
            stack.enter_context(patch.object(threading.Thread, "start", start))
            # The idle threads of a pool wait in one. This kind waits for a condition.
            stack.enter_context(patch.object(queue, "SimpleQueue", queue.Queue))
            yield

    @contextmanager
    def _noted(self, what: threading.Condition | threading.Thread) -> Iterator[None]:
        mine = threading.get_ident()
        if mine not in self._starting:
            self._waiting[mine] = what
        try:
            yield
        finally:
            self._waiting.pop(mine, None)

    def all_wait(self, threads: Iterable[int | None]) -> bool:
        """Return whether each of these threads waits, and none of them has been woken."""
        waiting = Counter(self._waiting.get(each or 0) for each in threads)
        return all(
            # Whoever wakes a thread first takes it off the list of the condition.
            len(what._waiters) >= number  # type: ignore[attr-defined]  # of every version of Python
            if isinstance(what, threading.Condition)
            else what is not None and what.is_alive()
            for what, number in waiting.items()
        )


class Scheduler:
    """A ``Guard`` for several invocations at once."""

    def __init__(self, environment: Environment, choices: Choices) -> None:
        self._environment = environment
        self._choices = choices
        self._change = threading.Condition()
        self._threads: list[_Thread] = []
        self._by_ident: dict[int, _Thread] = {}
        self._waits = Waits()
        self._ran = Explored()

    # Called by the threads of the invocations.

    @property
    def killed(self) -> bool:
        mine = self._by_ident.get(threading.get_ident())
        return mine is not None and mine.actor.killed

    def starts(self, thread: threading.Thread) -> None:
        parent = self._by_ident.get(threading.get_ident())
        if parent is not None:
            parent.children += 1
            self._add(_Thread(parent.actor, f"{parent.name}.{parent.children}", thread))

    def effect(self, name: str, call: Callable[[], T]) -> T:
        mine = self._by_ident.get(threading.get_ident())
        if mine is None:
            return call()
        if mine.actor.killed:
            raise Killed
        if "(" in name:  # has no effect that others could see, so its order does not matter
            return call()
        with self._change:
            mine.state, mine.effect = _State.STOPPED, name
            self._change.notify_all()
            self._change.wait_for(lambda: mine.state is not _State.STOPPED)
            if mine.actor.killed:
                raise Killed
        try:
            return call()
        finally:
            with self._change:
                mine.state = _State.RUNS
                self._change.notify_all()
                if mine.fatal:
                    mine.actor.killed = True
            if mine.actor.killed:
                raise Killed

    # Called by the scheduler.

    def run(self, cast: Mapping[str, Callable[[], object]], points: Points) -> Explored:
        violations(self._environment, watched=True)
        with self._waits.noted(), points:
            for name in sorted(cast):
                self._begin(_Actor(name), cast[name])
                self._rest()  # one invocation at a time runs up to its first effect
            last: str | None = None
            while stopped := self._rest():
                action, stop = self._choices(stopped, last)
                last = stop.actor
                self._note_decisions(stopped)
                self._ran.trace.append(f"{action.name} {stop.actor}, thread {stop.thread}: {stop.effect}")
                self._carry_out(action, stop, points)
                self._rest()
                found = violations(self._environment, watched=True)
                self._ran.broken += [each for each in found if each not in self._ran.broken]
        return self._ran

    def _note_decisions(self, stopped: list[Stop]) -> None:
        """Note when workers stopped before an action; they cannot know of anything that happens later."""
        before = {match[1] for stop in stopped if (match := _ACTION.search(stop.effect))}
        for device in before - self._environment.decided.keys():
            self._environment.decided[device] = str(self._environment.fleet.sql("SELECT clock_timestamp()::text")[0][0])
        for device in self._environment.decided.keys() - before:
            del self._environment.decided[device]

    def _begin(self, actor: _Actor, call: Callable[[], object]) -> None:
        def target() -> None:
            try:
                call()
            except Killed:
                pass
            except ShepherdError as error:
                self._ran.errors.add(f"{actor.name}: {type(error).__name__}: {error}")
            except Exception as error:  # noqa: BLE001 - any other error is a violation
                if not actor.killed:  # a killed thread may still read from its closed connection
                    self._ran.broken.append(f"{actor.name} raised {type(error).__name__}: {error}")

        thread = threading.Thread(target=target, daemon=True)
        self._add(_Thread(actor, "1", thread))
        thread.start()

    def _add(self, mine: _Thread) -> None:
        run = mine.thread.run

        def registered() -> None:
            self._by_ident[threading.get_ident()] = mine
            try:
                run()
            finally:
                with self._change:
                    mine.state = _State.ENDED
                    del self._by_ident[threading.get_ident()]
                    self._change.notify_all()

        mine.thread.run = registered  # type: ignore[method-assign]  # of this one thread
        with self._change:
            self._threads.append(mine)

    def _carry_out(self, action: Action, stop: Stop, points: Points) -> None:
        if action is Action.PASS_TIME:
            # The check of the deadline and the effect are two steps: no time passes while a thread stands between them.
            decided = any(each.state is _State.STOPPED and "POST" in each.effect for each in self._threads)
            if not decided and not self._environment.fleet.sql(_OPEN)[0][0]:  # an open transaction would block this
                self._environment.pass_time(SOON_SECONDS)
                points.clock.ahead += SOON_SECONDS
            return
        mine = next(each for each in self._threads if (each.actor.name, each.name) == stop[:2])
        with self._change:
            mine.fatal = action is Action.KILL_AFTER
            mine.actor.killed = action is Action.KILL_BEFORE
            if action is not Action.KILL_BEFORE:
                mine.state, mine.since = _State.IN_EFFECT, time.monotonic()
                self._change.notify_all()

    def _rest(self) -> list[Stop]:
        """Wait until no thread can continue by itself; return those stopped at an effect, none if all have ended."""
        end = time.monotonic() + _PATIENCE_SECONDS
        while True:
            assert time.monotonic() < end, f"no thread continues, after {self._ran.trace}"
            self._close_connections()
            with self._change:
                living = [each for each in self._threads if each.state is not _State.ENDED and not each.actor.killed]
                stopped = [each for each in living if each.state is _State.STOPPED]
                busy = [each for each in living if each.state is _State.IN_EFFECT]
                running = [each for each in living if each.state is _State.RUNS]
                asleep = self._waits.all_wait(each.thread.ident for each in running)
            if not living:
                return []
            # A waiting thread is woken by another one of its invocation. If there is none, it will go on by itself.
            asleep = asleep and {each.actor for each in running} <= {each.actor for each in (*stopped, *busy)}
            if stopped and asleep and self._all_blocked(busy):
                names = sorted((each.actor.name, each.name, each.effect) for each in stopped)
                return [Stop(*each) for each in names]
            with self._change:
                self._change.wait(_LOOK_SECONDS)

    def _all_blocked(self, busy: list[_Thread]) -> bool:
        if not busy:
            return True
        if any(time.monotonic() - each.since < _BLOCKED_SECONDS for each in busy):
            return False
        blocked: int = self._environment.fleet.sql(_WAITING)[0][0]
        if blocked < len(busy) or any(each.state is not _State.IN_EFFECT for each in busy):
            return False
        self._ran.waits += 1
        return True

    def _close_connections(self) -> None:
        """Close the connections of killed invocations, and wait until the server has seen that."""
        for actor in {each.actor for each in self._threads if each.actor.killed and not each.actor.connections_closed}:
            actor.connections_closed = True
            self._ran.kills += 1
            idents = {each.thread.ident for each in self._threads if each.actor is actor}
            opened = [each for ident in idents for each in self._environment.connections.pop(ident or 0, [])]
            pids = []
            for connection in opened:
                if connection._driver is not None:
                    pids.append(struct.unpack("!i", connection._driver._backend_key_data[:4])[0])
                connection.close()
            warm.end_idle()  # a process that is killed keeps no server process for another
            end = time.monotonic() + _PATIENCE_SECONDS
            while self._environment.fleet.sql(_THERE, pids=pids)[0][0]:
                assert time.monotonic() < end, "the server does not see that a client is gone"
                time.sleep(_LOOK_SECONDS)
            with self._change:
                for each in self._threads:
                    if each.actor is actor and each.state is _State.STOPPED:
                        each.state = _State.RUNS  # it continues, and raises Killed
                self._change.notify_all()


def normal(trace: list[str]) -> list[str]:
    """Return *trace* with its ids replaced, since they do not depend on the seed."""
    names: dict[str, str] = defaultdict(lambda: f"id{len(names)}")
    return ["/".join(names[part] if part.count("-") == 4 else part for part in line.split("/")) for line in trace]
