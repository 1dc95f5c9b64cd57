"""
Interrupted commands clean up, print one line and end.

A signal raises an exception in the main thread, so that every ``with`` block
cleans up. Only the first signal counts; later ones are ignored while the
command ends. A section that must be completed defers it.
"""

from __future__ import annotations

import itertools
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_SIGNALS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "the terminal is gone"}


class Interrupted(BaseException):
    """A signal asks the command to end. Not an Exception, so that no handler takes it for a failure and continues."""

    def __init__(self, number: int) -> None:
        """Store the *number* of the signal."""
        super().__init__(number)
        self.number = number


class _Deferred:
    """The number of open sections that must be completed, and the signal that arrived meanwhile."""

    sections = 0
    number: int | None = None


@contextmanager
def graceful_exit() -> Iterator[None]:
    """End the block at SIGINT, SIGTERM and SIGHUP, with one line and the exit status 128 plus the signal's number."""
    previous = {number: signal.getsignal(number) for number in _SIGNALS}
    handled = [number for number, handler in previous.items() if handler != signal.SIG_IGN]  # nohup ignores SIGHUP
    turns = itertools.count()

    def end(number: int, _frame: object) -> None:
        # Signals that arrive at the same time call this too; ignoring them here would make Python print a warning.
        if next(turns):
            return
        if _Deferred.sections:
            _Deferred.number = number
        else:
            raise Interrupted(number)

    for number in handled:
        signal.signal(number, end)
    try:
        yield
    except Interrupted as interrupted:
        for each in handled:
            signal.signal(each, signal.SIG_IGN)  # also while the interpreter exits, which resets its handlers
        sys.stderr.write(f"{_SIGNALS[signal.Signals(interrupted.number)]}\n")
        raise SystemExit(128 + interrupted.number) from None
    for number in handled:
        signal.signal(number, previous[number])


@contextmanager
def deferred() -> Iterator[None]:
    """
    Defer signals until the end of the block; one that arrived meanwhile then ends the command. For the main thread.

    Raises:
        Interrupted: a signal arrived. Replaces an error of the block, which the signal may have caused in a child.
    """
    _Deferred.sections += 1
    try:
        yield
    finally:
        _Deferred.sections -= 1
        if not _Deferred.sections and _Deferred.number is not None:
            number, _Deferred.number = _Deferred.number, None
            raise Interrupted(number)
