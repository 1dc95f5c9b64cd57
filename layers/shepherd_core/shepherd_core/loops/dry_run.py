"""A dry run of a loop that works on machines: what an invocation would begin with."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from shepherd_core.bmdb.wire import server
from shepherd_core.bmdb.work import work as bmdb_work
from shepherd_core.loops.runner import opened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.bmdb.work.work import Candidates, Work
    from shepherd_core.domain.clock import Clock
    from shepherd_core.loops.base import Loop
    from shepherd_core.loops.runner import RunLimits


@dataclass(frozen=True, slots=True)
class DryRun:
    """The work that an invocation would begin with."""

    work: list[Work]
    decisions: Mapping[Work, object]
    """The action for each machine."""
    due_at: Mapping[UUID, datetime]
    """Since when each machine has been due."""
    limited: tuple[str, ...]
    """``Admission.limited``."""


def dry_run(loop: Loop[Any], provider: str, connection: Connection, clock: Clock, limits: RunLimits) -> DryRun:
    """
    Return the first claim of an invocation now.

    Claims it, and rolls that back: nothing is changed.
    """

    def claim_and_decide() -> DryRun:
        session = opened(loop, provider, connection, clock, limits, "dry run")
        admission = loop.admit(session, provider)

        due_at: dict[UUID, datetime] = {}

        def claimed(found: Candidates, limit: int) -> Sequence[Work]:
            suspects = [each.machine_id for each in found.machines if each.suspect]
            chosen = [each.machine_id for each in found.machines if not each.suspect] or suspects[:1]
            now = server.now(connection)
            due_at.update((each.machine_id, now - timedelta(seconds=each.due_seconds)) for each in found.machines)
            works: tuple[Work, ...] = ()
            while chosen and len(works) < limit:
                wanted = min(limit - len(works), bmdb_work.CLAIM_LIMIT)
                works += bmdb_work.claim(session, loop.process, chosen[:wanted])
                chosen = chosen[wanted:]
            return works

        work = list(claimed(admission.candidates, limits.concurrency))
        decisions = dict(loop.decide(session, work)) if work else {}
        return DryRun(work, decisions, due_at, admission.limited)

    return connection.dry_run(claim_and_decide)
