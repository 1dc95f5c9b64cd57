"""The database server: its time, and the transactions that keep its dead rows."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from shepherd_core.domain.records import record

if TYPE_CHECKING:
    from shepherd_core.bmdb.connection import Connection


def now(connection: Connection) -> datetime:
    """Return the database's time, with which all times in the BMDB are compared."""
    return connection.fetch(datetime, "now")[0]


@record
class Transaction:
    """A transaction that keeps dead rows: claims and snapshots read the old places of all rows that moved."""

    kind: str
    """open or prepared."""
    pid: int | None
    owner: str
    application: str | None
    """Of a prepared one, its name."""
    state: str | None
    """As PostgreSQL calls it."""
    seconds: float


def oldest_transaction(connection: Connection, seconds: float) -> Transaction | None:
    """Return the oldest transaction older than *seconds*; for a ``limited_user`` of its own."""
    return next(iter(connection.fetch(Transaction, "find_oldest_transaction", seconds=seconds)), None)


def read_only(connection: Connection) -> bool:
    """Return whether the database takes no writes: it is a standby, or was made read-only."""
    return connection.fetch(bool, "read_only")[0]


def limited_user(connection: Connection) -> str | None:
    """Return the database's user if it does not see the transactions of others: it is not in pg_read_all_stats."""
    return next(iter(connection.fetch(str, "limited_user")), None)
