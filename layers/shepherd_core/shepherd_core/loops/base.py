"""What a loop that works on machines must do, and nothing else. ``control_loop`` runs it."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from shepherd_core.bmdb.recovery.remediation import Spared
    from shepherd_core.bmdb.session import Session
    from shepherd_core.bmdb.work.work import HealthTimeouts, Work
    from shepherd_core.domain.backoff import Backoff
    from shepherd_core.domain.clock import Deadline
    from shepherd_core.domain.errors import NoLongerDue
    from shepherd_core.domain.machine import Process
    from shepherd_core.telemetry import Metric

F = TypeVar("F")


@dataclass(slots=True)
class Attempt:
    """One machine in work."""

    work: Work
    deadline: Deadline
    """Ends the work; its ``check``, or ``confirm`` where a machine is interrupted, is the fence before every effect."""
    host_key: str | None = None
    """Set by the loop when it has seen the machine's SSH host key; pinned also when the work fails."""
    decision: Any = None
    """What the loop decided beforehand."""
    not_taken: str | None = None
    """Set by the loop when the work failed and the step that is on record was certainly not taken: that step."""


@dataclass(frozen=True, slots=True)
class Admission:
    """What a loop may claim before it is asked again."""

    limit: int = sys.maxsize
    """Machines."""
    recovery_suspended: tuple[str, ...] = ()
    """Why machines that seem to be due are not to be claimed, in words."""
    counts: Mapping[Metric, float] = field(default_factory=dict)
    """What the function is to report about that."""
    silence: HealthTimeouts | None = None
    """When an agent counts as silent, for the loop that looks for that."""
    idle: bool = False
    """Nothing is due: a claim would find nothing."""


class Guard(Protocol):
    """What keeps a loop from interrupting machines that are well by now."""

    def no_longer_due(self, session: Session, works: Sequence[Work]) -> Mapping[Work, NoLongerDue]:
        """
        Return those of *works* whose machines must not be interrupted any more, and why. Must be quick.

        Raises:
            SessionExpired: none of them may be.
        """

    def spare(self, session: Session, spared: Mapping[Work, Spared]) -> set[UUID]:
        """End the work on such machines, and return those whose work that ended."""


class Loop(Protocol[F]):
    """What one loop does with a machine. F is what it finds out."""

    @property
    def process(self) -> Process:
        """Return the process that this loop's work is."""

    @property
    def backoff(self) -> Backoff:
        """Return how long to leave a machine alone after a failure."""

    @property
    def guard(self) -> Guard | None:
        """Return what is asked just before a machine is interrupted; None: this loop interrupts none."""

    def admit(self, session: Session) -> Admission:
        """
        Return what may be claimed. Asked before the first claim, and again when that is used up, or some time ago.

        It may write what claims heed.
        """

    def prepare(self, deadline: Deadline) -> None:
        """
        Get what all machines need, once per invocation and only when there is a machine to work on.

        What it raises fails the invocation and is held against no machine.
        """

    def decide(self, session: Session, works: Sequence[Work]) -> Mapping[Work, object]:
        """
        Decide what is to be done with each machine, just before that begins, and put on record what must be by then.

        What is not returned is not begun. Must be quick, and may be abandoned at any moment.

        Raises:
            SessionExpired: nothing may be begun.
        """

    def work_on(self, attempt: Attempt) -> F:
        """
        Work on one machine and return what is to be committed.

        Runs in a thread of its own, must not touch the BMDB, must end by the
        attempt's deadline, and calls its ``check`` before every effect. May run
        again for the same machine although it has had its effect.

        Raises:
            ShepherdError: the machine failed; the text becomes the cause in its history.
        """

    def finish(self, session: Session, done: Mapping[Work, F]) -> set[UUID]:
        """Commit what ``work_on`` returned for each, and return the machines whose work that ended."""
