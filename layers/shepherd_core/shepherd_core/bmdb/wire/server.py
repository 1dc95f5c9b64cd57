"""The database server: its time, and the transactions that keep its dead rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import datetime

    from shepherd_core.bmdb.connection import Connection


def now(connection: Connection) -> datetime:
    """Return the database's time, with which all times in the BMDB are compared."""
    found: datetime = connection.run("now")[0][0]
    return found


def oldest_transaction(connection: Connection, seconds: float) -> dict[str, Any] | None:
    """
    Return the oldest transaction that keeps dead rows of the BMDB, if it is older than *seconds*.

    It has ``kind`` (open or prepared), ``pid`` (None if prepared), ``owner``,
    ``application`` (of a prepared one, its name), ``state`` as PostgreSQL calls it, and
    ``seconds``. While it lasts, claims and snapshots read the old places of all rows that
    moved. Open transactions of other users are seen only if ``sees_transactions``.
    """
    found = connection.records("find_oldest_transaction", seconds=seconds)
    return found[0] if found else None


def sees_transactions(connection: Connection) -> tuple[str, bool]:
    """Return the database's user, and whether it sees the transactions of others: it is in pg_read_all_stats."""
    user, sees = connection.run("sees_transactions")[0]
    return user, sees
