"""
Claims for one invocation: machines that its loop read as due.

A *suspect* is a machine that may have killed the function that worked on it last. It comes after the others, and is
worked on alone in this operating-system process, so that it takes no other machine with it.
"""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shepherd_core.bmdb.recovery import remediation
from shepherd_core.bmdb.work import work as bmdb_work
from shepherd_core.telemetry import Metric

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Collection, Sequence
    from uuid import UUID

    from shepherd_core.bmdb.session import Session
    from shepherd_core.bmdb.work.work import Candidate, Work
    from shepherd_core.domain.clock import Clock
    from shepherd_core.loops.base import Admission, Loop

_ADMISSION_SECONDS = 30.0
"""For how long a reading of the fleet holds."""

_DEATHS_ALONE = 3
"""
A machine is quarantined after so many deaths in a row while it was worked on alone, which the first may not have been.
Fewer may be chance: functions also die at a deployment, at their time limit, or with their host.
"""

THREAD = "work on a machine"
"""The name of the threads of all invocations that work on machines."""


def elsewhere(due: Sequence[Candidate]) -> list[Candidate]:
    """
    Return *due*, suspects last, from a random place on, and then what is before it.

    For one that found most machines of its batch taken: another, who began at the same machines, is working through
    them in order, and both would meet at every batch.
    """
    place = random.randrange(1 + sum(not each.suspect for each in due))  # noqa: S311 - not cryptography
    return sorted((*due[place:], *due[:place]), key=lambda each: each.suspect)


@dataclass(slots=True)
class Claims:
    """The claims of one invocation."""

    loop: Loop[Any]
    session: Session
    clock: Clock
    provider: str
    counts: Counter[Metric]
    admission: Admission | None = None
    held: dict[UUID, float] = field(default_factory=dict, init=False)
    """Since when the machines are due that were claimed and whose work has not ended, or was canceled."""
    _read_at: float = field(default=0.0, init=False)
    _due: list[Candidate] = field(default_factory=list, init=False)
    """Suspects last."""
    _unread: int = field(default=0, init=False)
    """Number of due machines beyond those that the reading returned."""

    @property
    def more(self) -> bool:
        """Whether more machines seem to be due."""
        return self.admission is None or bool(self._due or self._unread)

    @property
    def backlog(self) -> dict[Metric, float]:
        """The machines that are still due, as far as is known: how many, and for how long the first has been."""
        since = [*map(self._due_since, self._due), *self.held.values()]
        now = self.clock.monotonic()
        return {
            Metric.BACKLOG: len(since) + self._unread,
            Metric.OLDEST_DUE_AGE: round(now - min(since, default=now), 3),
        }

    def must_wait(self, in_hand: Collection[Work]) -> bool:
        """Return whether nothing may be claimed beside *in_hand*: a suspect is among them, or comes next."""
        if any(work.deaths for work in in_hand):
            return True
        if not self._due or not self._due[0].suspect:
            return False
        # A thread of abandoned work, also of an earlier invocation, could be what kills this process.
        return bool(in_hand) or any(thread.name == THREAD for thread in threading.enumerate())

    def claim(self, limit: int, in_hand: Collection[Work] = ()) -> Sequence[Work]:
        """
        Claim up to *limit* machines, or one suspect; read the fleet first, if that is needed.

        A suspect that kills functions is put into quarantine, and not returned.
        """
        if not self._due or self.clock.monotonic() >= self._read_at + _ADMISSION_SECONDS:
            self._read()
        works: tuple[Work, ...] = ()
        while self._due and len(works) < limit and not self.must_wait((*in_hand, *works)):
            suspect = self._due[0].suspect
            batch = self._due[: 1 if suspect else limit - len(works)]
            chosen = {each.machine_id: each for each in batch if each.suspect is suspect}
            del self._due[: len(chosen)]
            known = [work.machine_id for work in (*in_hand, *works)]
            claimed = bmdb_work.claim(self.session, self.loop.process, chosen, known=known)
            self.counts[Metric.CLAIMED] += len(claimed)
            claimed = tuple(work for work in claimed if not self._quarantined(work))
            self.held |= {work.machine_id: self._due_since(chosen[work.machine_id]) for work in claimed}
            if 2 * len(claimed) < len(chosen):
                self._due = elsewhere(self._due)
            works += claimed
        return works

    def _quarantined(self, work: Work) -> bool:
        """Put a machine that kills functions into quarantine, and return whether it is one."""
        if work.deaths <= _DEATHS_ALONE or not remediation.quarantine_killer(self.session, work):
            return False
        self.counts[Metric.FINISHED] += 1
        return True

    def _due_since(self, candidate: Candidate) -> float:
        return self._read_at - candidate.due_seconds

    def _read(self) -> None:
        """Read the fleet; machines that others hold, or that were let go, are not in what is read."""
        self._read_at = self.clock.monotonic()
        self.admission = self.loop.admit(self.session, self.provider)
        found = self.admission.candidates
        self._due = sorted(found.machines, key=lambda each: each.suspect)
        self._unread = found.total - len(found.machines)
