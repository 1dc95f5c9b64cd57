"""A dry run of a loop that works on machines: what an invocation would begin with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shepherd_core.bmdb.work import work as bmdb_work
from shepherd_core.loops.runner import opened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.bmdb.work.work import Work
    from shepherd_core.domain.clock import Clock
    from shepherd_core.loops.base import Loop
    from shepherd_core.loops.runner import RunLimits

_SUSPENDED = 1000
"""Machines at most that a dry run lists where recovery is suspended."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """The work that an invocation would begin with."""

    work: list[Work]
    suspended: list[Work]
    """The additional work without suspensions, at most 1,000 machines."""
    decisions: Mapping[Work, object]
    """The action for each machine."""
    reasons: tuple[str, ...]
    """``Admission.suspended``."""


def dry_run(loop: Loop[Any], provider: str, connection: Connection, clock: Clock, limits: RunLimits) -> DryRun:
    """
    Return the first claim of an invocation now, and the claim without suspensions.

    Claims it, and rolls that back: nothing is changed.
    """

    def claim_and_decide() -> DryRun:
        session = opened(loop, provider, connection, clock, limits, "dry run")
        admission = loop.admit(session)

        def claimed(limit: int, *, suspects: bool = False) -> Sequence[Work]:
            while True:
                claim = bmdb_work.claim(session, loop.process, provider, limit, suspects=suspects)
                if claim.work or not claim.examined:
                    return claim.work

        limit = min(limits.concurrency, admission.limit)
        work = list(claimed(limit) or claimed(min(limit, 1), suspects=True))
        suspended: list[Work] = []
        decisions = dict(loop.decide(session, work)) if work else {}
        if admission.suspended:
            loop.ignore_suspensions(session)
            while len(suspended) < _SUSPENDED and (more := claimed(bmdb_work.CLAIM_LIMIT)):
                suspended += more
                decisions |= loop.decide(session, more)
        return DryRun(work, suspended, decisions, admission.suspended)

    return connection.dry_run(claim_and_decide)
