"""The history of each machine, and its deletion."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from shepherd_core.domain.errors import Fault
from shepherd_core.domain.errors.kinds import FailureKind
from shepherd_core.domain.machine import WorkEvent
from shepherd_core.domain.record import record
from shepherd_core.domain.remediation import AgentState

if TYPE_CHECKING:
    from shepherd_core.bmdb.connection import Connection


@record
class HistoryEvent:
    """One action on a machine, or its end."""

    timestamp: datetime
    process: str
    event: WorkEvent
    step: str | None
    kind: FailureKind | None
    fault: Fault | None
    seen: AgentState | None
    failed_cause: str | None
    session_id: UUID | None


def read_history(connection: Connection, machine_id: UUID, limit: int = 100) -> list[HistoryEvent]:
    """Return the history of one machine, newest first."""
    return connection.fetch(HistoryEvent, "history", machine_id=machine_id, limit=limit)


def delete_old_history(connection: Connection, days: int) -> int:
    """Delete history older than *days* days, about 1,000 rows in one call; return how many. May run twice."""
    return len(connection.run("delete_old_history", days=days))
