"""The base class of the loops that work on machines. ``loops.runner`` runs them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from shepherd_core import telemetry
from shepherd_core.bmdb.work.ticks import TickEnd, TickHead
from shepherd_core.bmdb.work.work import Candidates, candidates
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.settings.functions.specs import PROCESS_OF_LOOP
from shepherd_core.telemetry import Metric

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from types import TracebackType
    from uuid import UUID

    from shepherd_core.bmdb.session import Session
    from shepherd_core.bmdb.work.work import Work
    from shepherd_core.domain.backoff import Backoff
    from shepherd_core.domain.clock import Deadline
    from shepherd_core.domain.health import HealthTimeouts
    from shepherd_core.domain.machine import Process

F = TypeVar("F")


@dataclass(frozen=True, slots=True)
class Task:
    """The work on one machine."""

    work: Work
    deadline: Deadline
    """Ends the work. Its ``check`` is called before every effect."""
    decision: Any
    """Returned by ``Loop.decide`` for this machine."""
    ask: Callable[[object], None]
    """
    Has ``Loop.answer`` answer a question about the machine; returns if it may go on.

    Raises:
        SessionExpired, TimeLimitExceeded: it was not answered, or that is unknown. Do nothing.
        ShepherdError: the answer.
    """


@dataclass(frozen=True, slots=True)
class Admission:
    """The machines that a loop may claim, as its reading of the fleet found them."""

    candidates: Candidates
    limited: tuple[str, ...] = ()
    """Why machines must wait for the budget of recovery, one human-readable line for each location."""
    counts: Mapping[Metric, float] = field(default_factory=dict)
    """Metrics about the admission, for the function to report."""


def tick_head(loop: str, provider: str) -> TickHead:
    """Return what is known when an invocation of *loop* begins; settings and code are those that log lines name."""
    bound = telemetry.bound()
    return TickHead(loop, provider, bound.get("settings"), bound.get("code"))


@dataclass(slots=True)
class Closing:
    """Closes the session of an invocation when its block ends, and records what the invocation did."""

    session: Session
    counts: Callable[[], Mapping[Metric, float]]
    """Returns the counts so far."""

    def __enter__(self) -> Self:
        """Begin the block."""
        return self

    def __exit__(self, _: object, error: BaseException | None, __: TracebackType | None) -> None:
        """Close the session. An exception that ended the block is recorded as the cause of failure and raised again."""
        refused = {Metric.SETTINGS_REFUSED: 1} if telemetry.bound().get("settings_refused") else {}
        counts = {metric.value: count for metric, count in (*self.counts().items(), *refused.items())}
        end = TickEnd(counts, error)
        try:
            self.session.close(end)
        except Exception as second:
            if error is None:
                raise
            telemetry.warning("session not closed", cause=second)


def log_failure(work: Work, error: Exception, retry_in_seconds: int) -> None:
    """Log that the work on a machine failed."""
    facts = {"machine_id": work.machine_id, "process": work.process, "cause": error}
    facts["retry_in_seconds"] = retry_in_seconds
    if isinstance(error, ShepherdError):
        telemetry.warning("work failed", **facts)
    else:
        telemetry.error("work failed: unexpected error", exc=error, **facts)


class Loop(ABC, Generic[F]):
    """
    One loop's work on a machine. F is the result of that work.

    A loop sets ``name`` and ``backoff``, implements ``work_on`` and
    ``finish``, and overrides the other methods where it needs more than their
    defaults.
    """

    name: str
    """As in ``settings.functions.SPECS``, in metrics and in the records of its ticks."""
    backoff: Backoff
    """How long to leave a machine alone after a failure."""
    timeouts: HealthTimeouts | None = None
    """When the provider's machines count as unhealthy, if this loop decides that; recorded when a session opens."""
    metrics: tuple[Metric, ...] = ()
    """What ``counted_as`` names besides; reported also if it is 0."""

    @property
    def process(self) -> Process:
        """Return the process that this loop's work is."""
        return PROCESS_OF_LOOP[self.name]

    def admit(self, session: Session, provider: str) -> Admission:
        """
        Read the fleet, and return the machines of *provider* that may be claimed.

        Called before the first claim, and when the reading is used up or some time old. May write facts that claims
        read.
        """
        return Admission(candidates(session, self.process, provider))

    def prepare(self, deadline: Deadline) -> None:
        """
        Get what all machines need. Called once per invocation, and only if there is a machine to work on.

        An error fails the invocation and counts against no machine.
        """

    def decide(self, session: Session, works: Sequence[Work]) -> Mapping[Work, object]:  # noqa: ARG002 - as in admit
        """Decide what to do with each machine just before its work starts. Reads only; must be quick."""
        return dict.fromkeys(works)

    def answer(self, session: Session, asked: Mapping[Work, Any]) -> Mapping[Work, Exception | None]:
        """
        Answer what the work on these machines asks of the BMDB (``Task.ask``): None, or the error to raise there.

        All questions that wait are answered together. Must be quick. A work without an answer is not this session's.

        Raises:
            SessionExpired: so is none.
        """
        raise NotImplementedError

    @abstractmethod
    def work_on(self, task: Task) -> F:
        """
        Work on one machine and return the result to be committed.

        Runs in a thread of its own, must not touch the BMDB, must end by the
        task's deadline, and calls its ``check`` before every effect. May run
        again for the same machine although the effect has taken place.

        Raises:
            ShepherdError: the machine failed; its history has the kind and the text.
        """

    @abstractmethod
    def finish(self, session: Session, done: Mapping[Work, F]) -> set[UUID]:
        """Commit the results of ``work_on``, and return the machines whose work that ended."""

    def counted_as(self, result: F) -> Collection[Metric]:  # noqa: ARG002 - as in admit
        """Return what such a result is counted as."""
        return (Metric.FINISHED,)
