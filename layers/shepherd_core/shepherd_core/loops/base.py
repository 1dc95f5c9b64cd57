"""The base class of the loops that work on machines. ``loops.runner`` runs them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from shepherd_core import telemetry
from shepherd_core.bmdb.work.ticks import TickEnd, TickHead
from shepherd_core.bmdb.work.work import Candidates, candidates
from shepherd_core.settings.functions import PROCESS_OF_LOOP

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType
    from uuid import UUID

    from shepherd_core.bmdb.recovery.remediation import Unneeded
    from shepherd_core.bmdb.session import Session
    from shepherd_core.bmdb.work.work import Work
    from shepherd_core.domain.backoff import Backoff
    from shepherd_core.domain.clock import Deadline, Permission
    from shepherd_core.domain.errors import NoLongerDue, ShepherdError
    from shepherd_core.domain.health import HealthTimeouts
    from shepherd_core.domain.machine import Process
    from shepherd_core.telemetry import Metric

F = TypeVar("F")


def _nothing(_: object) -> None: ...


@dataclass(slots=True)
class Task:
    """The work on one machine."""

    work: Work
    deadline: Deadline
    """Ends the work. Its ``check`` is called before every effect."""
    permission: Permission | None = None
    """To interrupt the machine until then; None: the loop interrupts none."""
    keeps_host_key: bool = False
    """Set by the loop if the pinned SSH host key still holds, although the recorded step deleted it."""
    decision: Any = None
    """Returned by ``Loop.decide`` for this machine."""
    record: Callable[[object], None] = _nothing
    """
    Called by the loop with what it is about to do, if ``decide`` did not record that. ``Loop.record`` records it.

    Raises:
        SessionExpired, TimeLimitExceeded: it was not recorded, or that is unknown. Do nothing.
    """
    found_alive: bool = False
    """Set by the loop when the machine was not interrupted because it is alive."""
    not_taken: str | None = None
    """Set by the loop when the work failed and the recorded step was certainly not taken: the name of that step."""


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
        counts = {metric.value: count for metric, count in self.counts().items()}
        end = TickEnd(counts, error)
        try:
            self.session.close(end)
        except Exception as second:
            if error is None:
                raise
            telemetry.warning("session not closed", cause=second)


class Guard(Protocol):
    """Keeps a loop from interrupting machines that are healthy by now."""

    def no_longer_due(self, session: Session, works: Sequence[Work]) -> Mapping[Work, NoLongerDue]:
        """
        Return those of *works* whose machines must not be interrupted any more, and why. Must be quick.

        Raises:
            SessionExpired: none of them may be interrupted.
        """

    def end_unneeded(self, session: Session, unneeded: Mapping[Work, Unneeded]) -> set[UUID]:
        """End the work on such machines, and return the machines whose work that ended."""


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
    guard: Guard | None = None
    """Asked just before a machine is interrupted; None: this loop interrupts none."""

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

        What it raises fails the invocation and does not count against any machine.
        """

    def decide(self, session: Session, works: Sequence[Work]) -> Mapping[Work, object]:  # noqa: ARG002 - as in admit
        """
        Decide what to do with each machine just before its work starts, and record what must be recorded by then.

        The rest is recorded by ``Task.record``. Work that is not returned is not started. Must be quick, and may be
        abandoned at any moment.

        Raises:
            SessionExpired: no work may be started.
        """
        return dict.fromkeys(works)

    def record(
        self,
        session: Session,  # noqa: ARG002 - as in admit
        decisions: Mapping[Work, Any],
    ) -> Mapping[Work, ShepherdError | None]:
        """
        Record what is about to be done; return the works that this session still has, and why it must not be done.

        Raises:
            SessionExpired: do none of it.
        """
        return dict.fromkeys(decisions)

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
