"""
Messages of an invocation's threads to the one that talks to the BMDB: results of their work, and questions.

A thread waits for the answer to its question. After ``close``, which is called
once, all questions are refused.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from queue import Empty, Queue
from typing import TYPE_CHECKING, Generic, TypeVar

from shepherd_core.domain.errors import TimeLimitExceeded
from shepherd_core.domain.errors.bmdb import SessionExpired

if TYPE_CHECKING:
    from shepherd_core.bmdb.work.work import Work
    from shepherd_core.domain.clock import Deadline

F = TypeVar("F")

_LONGEST_SECONDS = threading.TIMEOUT_MAX / 2
"""The queue adds the time to it."""


@dataclass(frozen=True, slots=True)
class WorkResult(Generic[F]):
    """The outcome of the work on one machine."""

    work: Work
    facts: F | None = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """
    Asks ``Loop.answer`` something about a machine.

    The answer is None, or the error to raise.
    """

    work: Work
    asked: object
    answer: Queue[Exception | None] = field(default_factory=Queue)


class Messages(Generic[F]):
    """The messages of one invocation that have not been read."""

    def __init__(self) -> None:
        self._queue: Queue[WorkResult[F] | Question] = Queue()
        self._closed = False

    def put(self, result: WorkResult[F]) -> None:
        """Leave the outcome of the work on a machine."""
        self._queue.put(result)

    def ask(self, work: Work, deadline: Deadline, asked: object) -> None:
        """
        Ask something about the machine; return if the work on it may go on.

        Raises:
            SessionExpired: the question is not answered any more.
            TimeLimitExceeded: there was no answer before *deadline*.
            ShepherdError: the answer.
        """
        question = Question(work, asked)
        self._queue.put(question)
        if self._closed:
            raise SessionExpired
        try:
            refusal = question.answer.get(timeout=deadline.left(_LONGEST_SECONDS))
        except Empty:
            raise TimeLimitExceeded from None
        if refusal is not None:
            raise refusal

    def collect(self, seconds: float) -> tuple[list[WorkResult[F]], list[Question]]:
        """Return the messages that are there; wait *seconds* at most for the first."""
        try:
            received = [self._queue.get(timeout=seconds), *self._received()]
        except Empty:
            received = []
        return (
            [message for message in received if isinstance(message, WorkResult)],
            [message for message in received if isinstance(message, Question)],
        )

    def close(self) -> None:
        """Refuse all waiting and future questions: the session has expired."""
        self._closed = True
        for message in self._received():
            if isinstance(message, Question):
                message.answer.put(SessionExpired())

    def _received(self) -> list[WorkResult[F] | Question]:
        """Return the messages that are there, without waiting."""
        received = []
        try:
            while True:
                received.append(self._queue.get_nowait())
        except Empty:
            return received
