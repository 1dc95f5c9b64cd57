"""
Claims for one invocation: due machines as far as its loop admits them, and suspects one at a time.

A suspect is a machine that may have killed the function that worked on it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shepherd_core import telemetry
from shepherd_core.bmdb.recovery import remediation
from shepherd_core.bmdb.work import work as bmdb_work
from shepherd_core.telemetry import Metric

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Collection, Sequence

    from shepherd_core.bmdb.session import Session
    from shepherd_core.bmdb.work.work import Work
    from shepherd_core.domain.clock import Clock
    from shepherd_core.loops.base import Admission, Loop

_ADMISSION_SECONDS = 30.0
"""For how long an admission holds."""

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
    more: bool = True
    """More machines that are not suspects may be due."""
    suspects: int = 0
    """Number of due suspects."""
    suspected: bool = False
    """Suspects were claimed last: nothing else is claimed until the work on them has ended."""
    _admitted_until: float = field(default=0.0, init=False)
    _allowed: int = field(default=0, init=False)

    def claim(self, limit: int, in_hand: Collection[Work] = (), *, suspects: bool = False) -> Sequence[Work]:
        """Claim up to *limit* machines, as far as the loop admits them, and note whether more may be due."""
        used_up = self.admission is None or self._allowed <= 0 < self.admission.limit
        if self.admission is None or used_up or self.clock.monotonic() >= self._admitted_until:
            self.admission = self.loop.admit(self.session)
            self._admitted_until = self.clock.monotonic() + _ADMISSION_SECONDS
            self._allowed = self.admission.limit
            if self.admission.idle:
                self.more, self.suspects = False, 0
                return ()
        limit = min(limit, self._allowed)
        claim = bmdb_work.claim(
            self.session,
            self.loop.process,
            self.provider,
            limit,  # 0: the claim still reschedules rows that are not due
            known=[work.machine_id for work in in_hand],
            suspects=suspects,
            alone=suspects and limit == 1 and not any(thread.name == THREAD for thread in threading.enumerate()),
        )
        self._allowed -= len(claim.work)
        self.suspected = suspects
        if suspects:
            self.suspects = claim.suspects if claim.examined else 0
        else:
            self.more = claim.examined > len(claim.work) or 0 < limit == len(claim.work)
            self.suspects = claim.suspects if self._allowed > 0 else 0
        self.counts[Metric.CLAIMED] += len(claim.work)
        return claim.work

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
            telemetry.warning(
                "machine quarantined", machine_id=machine_id, cause="functions died while they worked on it alone"
            )
        self.counts[Metric.FINISHED] += len(gone)
        return [work for work in works if work.machine_id not in gone]
