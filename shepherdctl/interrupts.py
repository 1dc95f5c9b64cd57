"""
Interrupted commands clean up, print one line and end.

A signal raises an exception in the main thread, so that every ``with`` block
cleans up. Only the first signal counts; later ones are ignored while the
command ends. A section that must be completed defers it. A command that has
made changes says so in that line.
"""

from __future__ import annotations

import itertools
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SIGNALS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "the terminal is gone"}


class Interrupted(BaseException):
    """A signal asks the command to end. Not an Exception, so that no handler takes it for a failure and continues."""

    def __init__(self, number: int) -> None:
        """Store the *number* of the signal."""
        super().__init__(number)
        self.number = number


class _Arrived:
    """What the handler of signals has to know."""

    sections = 0
    """Those that are open and must be completed."""
    number: int | None = None
    """The signal that arrived meanwhile."""
    hurry: Callable[[], None] | None = None
    told: str | None = None


DONE = "everything was done; only its output may be incomplete"
"""What a command tells that is interrupted after its last change."""


def tell(sentence: str | None) -> None:
    """From now on the line of an interrupted command says this, too; None: nothing more."""
    _Arrived.told = sentence


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
        if not _Arrived.sections:
            raise Interrupted(number)
        _Arrived.number = number
        if _Arrived.hurry:
            _Arrived.hurry()

    for number in handled:
        signal.signal(number, end)
    try:
        yield
    except Interrupted as interrupted:
        for each in handled:
            signal.signal(each, signal.SIG_IGN)  # also while the interpreter exits, which resets its handlers
        name = _SIGNALS[signal.Signals(interrupted.number)]
        sys.stderr.write(f"{name}: {_Arrived.told}\n" if _Arrived.told else f"{name}\n")
        raise SystemExit(128 + interrupted.number) from None
    for number in handled:
        signal.signal(number, previous[number])


def stop_if_asked() -> None:
    """
    End the command if a signal was deferred.

    Raises:
        Interrupted: one was.
    """
    if _Arrived.number is not None:
        number, _Arrived.number = _Arrived.number, None
        raise Interrupted(number)


@contextmanager
def deferred() -> Iterator[None]:
    """
    Defer signals until the end of the block; one that arrived meanwhile then ends the command. For the main thread.

    Raises:
        Interrupted: a signal arrived. Replaces an error of the block, which the signal may have caused in a child.
    """
    _Arrived.sections += 1
    try:
        yield
    finally:
        _Arrived.sections -= 1
        if not _Arrived.sections:
            stop_if_asked()


@contextmanager
def completed(hurry: Callable[[], None]) -> Iterator[None]:
    """Let signals call *hurry*, and nothing else. Unless ``stop_if_asked`` ends the block, they are forgotten."""
    _Arrived.sections += 1
    _Arrived.hurry = hurry
    try:
        yield
    finally:
        _Arrived.sections -= 1
        _Arrived.hurry = _Arrived.number = None
