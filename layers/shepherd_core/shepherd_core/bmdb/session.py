"""
Sessions: the lease that a worker holds while it works on machines.

A function does everything that it does to machines in a session. A session is
alive until its deadline, which ``renew`` moves ahead. When it expires, other
sessions may claim its machines, and none of its results can be committed any
more.

If the answer to a statement of the session is lost, that statement may still be
running at the server. Before the session runs anything else, it waits for that
statement and fences it off: from then on it has committed, or never will.
"""

from __future__ import annotations

from concurrent import futures
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from shepherd_core.bmdb.schema.migrate import mismatch, this_code
from shepherd_core.bmdb.wire.server import check_clock, now
from shepherd_core.bmdb.work.ticks import TickEnd, TickHead
from shepherd_core.domain.clock import RENEWALS, in_background
from shepherd_core.domain.errors.bmdb import CommitUnknown, SessionExpired, StatementFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.domain.clock import Clock
    from shepherd_core.domain.health import HealthTimeouts

R = TypeVar("R")
T = TypeVar("T")

_NO_SUCH_TABLE = "42P01"
_FOREIGN_KEY_VIOLATION = "23503"
_CANCELED = "57014"


class Session:
    """A live session. Belongs to the thread that owns *connection*; only ``seconds_left`` is safe from any thread."""

    def __init__(self, connection: Connection, clock: Clock, session_id: UUID, seconds: float, began: float) -> None:
        """Call ``open`` instead."""
        self.connection = connection
        self.session_id = session_id
        self._clock = clock
        self._seconds = seconds
        self._end = began + seconds
        self._fence = 0
        self._unanswered: str | None = None
        """The name of the statement that was sent last, if its answer was lost."""

    @classmethod
    def open(
        cls,
        connection: Connection,
        clock: Clock,
        component: TickHead | str,
        runtime_info: str,
        seconds: float,
        policy: tuple[str, HealthTimeouts] | None = None,
    ) -> Session:
        """
        Open a session that expires *seconds* after its last renewal.

        Also ends the work of expired sessions, with history ``Expired``.
        *component* is the tick that it belongs to, or names an operator's command;
        *runtime_info* says who runs it. *policy*: the machines of this provider have
        these timeouts from now on. Close the session; if it is never closed, its work
        expires when its deadline passes.

        Raises:
            SchemaMismatch: this code cannot use the BMDB's schema.
            ClockDiffers: the BMDB's clock differs from ours; nothing was written.
        """
        provider, timeouts = policy or (None, None)
        head = component if isinstance(component, TickHead) else None
        for last_try in (False, True):
            began = clock.monotonic()
            try:
                opened = connection.fetch(
                    UUID,
                    "open_session",
                    component_name=component if isinstance(component, str) else component.name,
                    runtime_info=runtime_info,
                    loop=head and head.loop,
                    loop_provider=head and head.provider,
                    settings_hash=head and head.settings_hash,
                    code_version=head and head.code_version,
                    seconds=seconds,
                    provider=provider,
                    heartbeat_timeout_seconds=timeouts and timeouts.heartbeat_timeout_seconds,
                    startup_timeout_seconds=timeouts and timeouts.startup_timeout_seconds,
                    grace_seconds=timeouts and timeouts.grace_seconds,
                    failed_steps=timeouts and timeouts.failed_steps,
                    **this_code()._asdict(),
                    **connection.clock,
                )
            except CommitUnknown:
                # Usual for the first use of a connection that broke while the function was frozen. If the session was
                # opened nevertheless, it has no work and expires by itself.
                if last_try:
                    raise
                continue
            except StatementFailed as error:
                if error.sqlstate == _NO_SUCH_TABLE:
                    raise mismatch(connection) from error
                raise
            if not opened:
                check_clock(connection, round(now(connection).timestamp() * 1000))
                raise mismatch(connection)
            return cls(connection, clock, opened[0], seconds, began)
        raise AssertionError  # the second round returns or raises

    @property
    def renew_interval(self) -> float:
        """Return the seconds after which the session should be renewed: a third of its length."""
        return self._seconds / RENEWALS

    def seconds_left(self) -> float:
        """Return the seconds until the session expires, at least, unless it is renewed. Safe from any thread."""
        return self._end - self._clock.monotonic()

    def renew(self) -> None:
        """
        Move the deadline ahead. May run twice.

        Raises:
            SessionExpired: the deadline has passed.
        """
        began = self._clock.monotonic()
        if not self.run("renew_session"):
            raise SessionExpired
        self._end = began + self._seconds

    @property
    def key(self) -> dict[str, Any]:
        """Return the parameters by which a statement finds the session and checks that it is not fenced off."""
        return {"session_id": self.session_id, "fence": self._fence, **self.connection.clock}

    def run(self, name: str, /, **parameters: Any) -> list[list[Any]]:
        """
        Run the statement *name*, which may run twice, for this session; if its answer is lost, run it once more.

        Raises:
            CommitUnknown: the answer was lost again, or an earlier statement is still running.
            BmdbError: as ``Connection.run``.
        """
        return self.repeat_if_unanswered(
            lambda: self._track_answer(name, lambda: self.connection.run(name, **self.key, **parameters))
        )

    def fetch(self, row: type[R], name: str, /, **parameters: Any) -> list[R]:
        """Do the same, and return each row as a *row*, as ``Connection.fetch``."""
        return self.repeat_if_unanswered(partial(self.fetch_once, row, name, **parameters))

    def fetch_once(self, row: type[R], name: str, /, **parameters: Any) -> list[R]:
        """
        Do so with a statement that must not run twice.

        Raises:
            CommitUnknown: its answer was lost, or an earlier statement is still running.
            BmdbError: as ``Connection.run``.
        """
        return self._track_answer(name, lambda: self.connection.fetch(row, name, **self.key, **parameters))

    def transact(self, unit: Callable[[], T]) -> T:
        """Run *unit* in one transaction; it may run twice, and uses ``run`` and ``key``. Raises as ``run``."""
        return self.repeat_if_unanswered(
            lambda: self._track_answer("a transaction", lambda: self.connection.transact(unit))
        )

    def repeat_if_unanswered(self, first: Callable[[], T], again: Callable[[], T] | None = None) -> T:
        """
        Return the result of *first*; if it loses an answer, that of *again*, which is by default *first* once more.

        When *again* begins, what *first* sent has committed, or never will. Both must
        reach the BMDB through this session's methods only. Raises as ``run``.
        """
        try:
            return first()
        except CommitUnknown:
            return (again or first)()

    def _track_answer(self, what: str, call: Callable[[], T]) -> T:
        self._fence_unanswered()
        try:
            return call()
        except CommitUnknown:
            self._unanswered = what
            raise

    def _fence_unanswered(self) -> None:
        """
        Make sure that no statement whose answer was lost is still running.

        Raises:
            CommitUnknown: one is still running after the longest time that a statement may take, or the server
                cannot be reached.
        """
        if self._unanswered is None:
            return
        self._fence += 1
        try:
            self.connection.run("fence_session", **self.key)
        except StatementFailed as error:
            if error.sqlstate != _CANCELED:
                raise
            self._end = float("-inf")
            message = f"the answer to {self._unanswered} was lost, and the server is still running it"
            raise CommitUnknown(message) from error
        self._unanswered = None

    def start_renewing(self, call: Callable[[], T]) -> Callable[[], T]:
        """
        Start *call* in a thread; return a function that waits for its result and renews the session meanwhile.

        *call* must not touch the BMDB, and must end by a deadline that it keeps itself.
        The returned function raises what *call* raised, or:

        Raises:
            SessionExpired: the session was lost; *call* is abandoned.
        """
        outcome = in_background(call)

        def wait() -> T:
            while not futures.wait([outcome], self.renew_interval).done:
                self.renew()
            return outcome.result()

        return wait

    def run_renewing(self, call: Callable[[], T]) -> T:
        """Return the result of *call*, and renew the session meanwhile; as ``start_renewing``."""
        return self.start_renewing(call)()

    def close(self, end: TickEnd | None = None) -> None:
        """
        End the session, and cancel its unfinished work.

        *end* is recorded if the session is that of a tick. May run twice, also after
        the session expired. From now on ``seconds_left`` is negative, so that no new work
        starts.

        Raises:
            CommitUnknown: what was sent is still running. The session is left to expire by its deadline.
        """
        self._end = float("-inf")
        end = end or TickEnd()
        close = partial(self.run, "close_session", **end.parameters)
        try:
            close()
        except StatementFailed as error:
            if error.sqlstate != _FOREIGN_KEY_VIOLATION:
                raise
            close()  # a new snapshot contains the work that was committed meanwhile
