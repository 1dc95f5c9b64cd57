"""The history of each machine, and its deletion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uuid import UUID

    from shepherd_core.bmdb.connection import Connection


def read_history(connection: Connection, machine_id: UUID, limit: int = 100) -> list[dict[str, Any]]:
    """Return the history of one machine, newest first."""
    return connection.records("history", machine_id=machine_id, limit=limit)


def delete_old_history(connection: Connection, days: int) -> int:
    """Delete history older than *days* days, about 1,000 rows in one call; return how many. May run twice."""
    return len(connection.run("delete_old_history", days=days))
