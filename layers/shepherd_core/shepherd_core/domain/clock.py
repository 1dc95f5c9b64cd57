"""
Elapsed time, deadlines, and the time that an invocation reserves.

The time of day comes from the database. It is believed while it agrees with that of the function, within a tolerance.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol, TypeVar

from shepherd_core.domain.errors import TimeLimitExceeded
from shepherd_core.domain.errors.bmdb import SessionExpired

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

CLOSING_SECONDS = 2.0
"""For closing the session and writing the metrics."""

MARGIN_SECONDS = 5.0
"""For committing, closing, and threads that are slow to notice their deadline."""

CREATE_SECONDS = 60.0
"""For one creation at the provider."""

ANSWER_SECONDS = 30.0
"""For the Migrator's answer to CloudFormation."""

RENEWALS = 3
"""How often a session is renewed in the time after which it would expire."""


TOLERANCE_SECONDS = 300.0
"""By how much two clocks may differ, as in Kerberos: a function's or an agent's from the database's."""


class Clock(Protocol):
    """Elapsed seconds, and the time of day; a Protocol, so that tests can control them."""

    def monotonic(self) -> float:
        """Return the seconds since an arbitrary moment; never goes back."""

    def time_of_day(self) -> int:
        """Return the milliseconds since the Unix epoch."""

    def sleep(self, seconds: float) -> None:
        """Wait for *seconds*; returns at once if that is not positive."""


class SystemClock:
    """The clock of this machine."""

    def monotonic(self) -> float:
        """Return the seconds since an arbitrary moment; never goes back."""
        return time.monotonic()

    def time_of_day(self) -> int:
        """Return the milliseconds since the Unix epoch by this computer's clock."""
        return time.time_ns() // 1_000_000

    def sleep(self, seconds: float) -> None:
        """Wait for *seconds*; returns at once if that is not positive."""
        if seconds > 0:
            time.sleep(seconds)


class Deadline:
    """
    The end of the time for one piece of work.

    Code with external side effects (a request, an SSH step) bounds them by ``left()``
    and calls ``check()`` just before an effect that must not begin after the end
    (create a machine, run a program). Work that is done in a BMDB session must not
    begin an effect after the session's deadline either, which moves with each
    renewal. ``check()`` sees to that too, since it is called before every effect.
    To interrupt a machine takes a ``Permission``. Safe to use from any thread.
    """

    def __init__(self, clock: Clock, seconds: float, session_left: Callable[[], float] | None = None) -> None:
        """
        Begin the time, *seconds*, now.

        *session_left* returns how many seconds the BMDB session has left, if the work is done in one.
        """
        self._clock = clock
        self._end = clock.monotonic() + seconds
        self._session_left = session_left

    def left(self, at_most: float = float("inf")) -> float:
        """
        Return the seconds that are left, but not more than *at_most*, for use as a time limit.

        Raises:
            TimeLimitExceeded: no time is left.
        """
        left = self.remaining()
        if left <= 0:
            raise TimeLimitExceeded
        return min(left, at_most)

    def remaining(self) -> float:
        """Return the seconds that are left; negative after the end."""
        return self._end - self._clock.monotonic()

    def overdue(self, seconds: float) -> bool:
        """Return whether the end was *seconds* ago, or longer."""
        return self.remaining() <= -seconds

    def within(self, seconds: float, session_left: Callable[[], float] | None = None) -> Deadline:
        """Return a deadline in *seconds*, not later than this one; of the same session, unless another one is given."""
        part = Deadline(self._clock, seconds, session_left or self._session_left)
        part._end = min(part._end, self._end)
        return part

    def check(self) -> None:
        """
        Check that an effect may still begin.

        Raises:
            TimeLimitExceeded: no time is left.
            SessionExpired: the BMDB session has no time left, so another function may work on the machine.
        """
        self.left()
        if self._session_left is not None and self._session_left() <= 0:
            raise SessionExpired


class Permission:
    """
    The permission to interrupt one machine (reboot, power off, reinstall), until a deadline.

    Code that holds it calls ``confirm()`` as the last thing before each request that interrupts the machine: after
    lookups, logins and rate limits. If the request was certainly not accepted, it calls ``declined()`` afterwards. Safe
    to use from any thread.
    """

    def __init__(self, deadline: Deadline, ask: Callable[[], object] | None = None) -> None:
        """*ask* returns if the machine may still be interrupted, and raises a ShepherdError if not; None: it may be."""
        self.deadline = deadline
        self._ask = ask
        self._requests = 0

    def confirm(self) -> None:
        """
        Check that a request that interrupts the machine may be sent now, and count the request.

        Asks whether the machine may still be interrupted, unless an earlier request of the step may have been accepted:
        a machine that was switched off must be switched on again.

        Raises:
            NoLongerDue: the machine must not be interrupted any more.
            TimeLimitExceeded, SessionExpired: as ``Deadline.check``.
        """
        if self._ask is not None and not self._requests:
            self._ask()
        self.deadline.check()
        self._requests += 1

    def declined(self) -> None:
        """Record that the request for which ``confirm`` was last called was certainly not accepted."""
        self._requests -= 1

    @property
    def interrupted(self) -> bool:
        """Whether a request that interrupts the machine may have been accepted."""
        return self._requests > 0


def in_background(call: Callable[[], T]) -> Future[T]:
    """
    Start *call* in a thread of its own, and return a future of its result.

    A caller that stops waiting does not stop *call*: it runs until it returns, or until the process ends.
    """
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again where the result is read
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome
