"""
Claims for one invocation: machines that its loop read as due, and suspects one at a time.

A suspect is a machine that may have killed the function that worked on it.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shepherd_core import telemetry
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

_SUSPECT_BATCHES = 10
"""If twice as many suspects or more are due, a claim takes this fraction of them; else one."""

THREAD = "work on a machine"
"""The name of the threads of all invocations that work on machines."""


@dataclass(slots=True)
class Claims:
    """The claims of one invocation."""

    loop: Loop[Any]
    session: Session
    clock: Clock
    provider: str
    counts: Counter[Metric]
    admission: Admission | None = None
    suspected: bool = False
    """Suspects were claimed last: nothing else is claimed until the work on them has ended."""
    held: dict[UUID, float] = field(default_factory=dict, init=False)
    """Since when the machines are due that were claimed and whose work has not ended, or was canceled."""
    _read_at: float = field(default=0.0, init=False)
    _due: deque[Candidate] = field(default_factory=deque, init=False)
    _suspects: deque[Candidate] = field(default_factory=deque, init=False)
    _unread: int = field(default=0, init=False)
    """Number of due machines beyond those that the reading returned."""

    @property
    def more(self) -> bool:
        """Whether more machines that are not suspects seem to be due."""
        return self.admission is None or bool(self._due or self._unread)

    @property
    def suspects(self) -> int:
        """The number of suspects that seem to be due."""
        return len(self._suspects)

    @property
    def backlog(self) -> dict[Metric, float]:
        """The machines that are still due, as far as is known: how many, and for how long the first has been."""
        since = [*map(self._due_since, (*self._due, *self._suspects)), *self.held.values()]
        now = self.clock.monotonic()
        return {
            Metric.BACKLOG: len(since) + self._unread,
            Metric.OLDEST_DUE_AGE: round(now - min(since, default=now), 3),
        }

    def claim(self, limit: int, in_hand: Collection[Work] = (), *, suspects: bool = False) -> Sequence[Work]:
        """Claim up to *limit* machines that the reading of the fleet found due; read it first, if that is needed."""
        if not (self._due or self._suspects) or self.clock.monotonic() >= self._read_at + _ADMISSION_SECONDS:
            self._read()
        queue = self._suspects if suspects else self._due
        self.suspected = suspects
        works: tuple[Work, ...] = ()
        while queue and len(works) < limit:
            chosen = {
                each.machine_id: each for each in (queue.popleft() for _ in range(min(limit - len(works), len(queue))))
            }
            claimed = bmdb_work.claim(
                self.session,
                self.loop.process,
                chosen,
                known=[work.machine_id for work in (*in_hand, *works)],
                alone=suspects and limit == 1 and not any(thread.name == THREAD for thread in threading.enumerate()),
            )
            self.held |= {work.machine_id: self._due_since(chosen[work.machine_id]) for work in claimed}
            works += claimed
        self.counts[Metric.CLAIMED] += len(works)
        return works

    def _due_since(self, candidate: Candidate) -> float:
        return self._read_at - candidate.due_seconds

    def _read(self) -> None:
        """Read the fleet; machines that others hold, or that were let go, are not in what is read."""
        self._read_at = self.clock.monotonic()
        self.admission = self.loop.admit(self.session, self.provider)
        found = self.admission.candidates
        self._due = deque(each for each in found.machines if not each.suspect)
        self._suspects = deque(each for each in found.machines if each.suspect)
        self._unread = found.total - len(found.machines)

    def claim_suspects(self, concurrency: int) -> Sequence[Work]:
        """
        Claim one suspect, or a tenth of many; quarantine those that kill functions, and return the others.

        Only suspects are worked on meanwhile, so that one that kills this function takes no other machine with it. Its
        work is *alone* only if no thread of abandoned work is left in this operating-system process, from this
        invocation or an earlier one: that thread could be the cause.
        """
        limit = min(max(1, self.suspects // _SUSPECT_BATCHES), concurrency)
        works = self.claim(limit, suspects=True)
        gone = remediation.quarantine_killers(self.session, works) if works else set()
        for machine_id in gone:
            del self.held[machine_id]
            telemetry.warning(
                "machine quarantined", machine_id=machine_id, cause="functions died while they worked on it alone"
            )
        self.counts[Metric.FINISHED] += len(gone)
        return [work for work in works if work.machine_id not in gone]
