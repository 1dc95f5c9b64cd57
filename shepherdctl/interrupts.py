"""
What becomes of a command that somebody interrupts: it cleans up, says so in one line, and ends.

A signal becomes an exception in the main thread, so that every ``with`` is left
in order. The first signal counts; those that follow find a command that ends
already, and are ignored. A section that must not be left half done defers it.
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
    """Somebody wants the command to end. Not an Exception: nobody may take it for a failure and go on."""

    def __init__(self, number: int) -> None:
        """Remember the *number* of the signal."""
        super().__init__(number)
        self.number = number


class _Deferred:
    """How many sections are open that must not be left half done, and the signal that came meanwhile."""

    sections = 0
    number: int | None = None


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Let SIGINT, SIGTERM and SIGHUP end the block: with one line, and 128 and the signal's number as exit status."""
    previous = {number: signal.getsignal(number) for number in _SIGNALS}
    heard = [number for number, handler in previous.items() if handler != signal.SIG_IGN]  # as nohup wants it
    turns = itertools.count()

    def end(number: int, _frame: object) -> None:
        # What came at the same time calls this too. Were it ignored from here on, Python would complain of it.
        if next(turns):
            return
        if _Deferred.sections:
            _Deferred.number = number
        else:
            raise Interrupted(number)

    for number in heard:
        signal.signal(number, end)
    try:
        yield
    except Interrupted as interrupted:
        for each in heard:
            signal.signal(each, signal.SIG_IGN)  # also while the interpreter ends, which takes its handlers back
        sys.stderr.write(f"{_SIGNALS[signal.Signals(interrupted.number)]}\n")
        raise SystemExit(128 + interrupted.number) from None
    for number in heard:
        signal.signal(number, previous[number])


@contextmanager
def deferred() -> Iterator[None]:
    """
    Let no signal break into the block: what came meanwhile ends the command behind it. For the main thread.

    Raises:
        Interrupted: in place of what the block raised, which the signal may have caused in a child process.
    """
    _Deferred.sections += 1
    try:
        yield
    finally:
        _Deferred.sections -= 1
        if not _Deferred.sections and _Deferred.number is not None:
            number, _Deferred.number = _Deferred.number, None
            raise Interrupted(number)
