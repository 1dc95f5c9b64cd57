"""The database server: its time, and the transactions that keep its dead rows."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from shepherd_core.domain.clock import TOLERANCE_SECONDS
from shepherd_core.domain.errors.bmdb import ClockDiffers, StatementFailed
from shepherd_core.domain.record import record

if TYPE_CHECKING:
    from shepherd_core.bmdb.connection import Connection


def now(connection: Connection) -> datetime:
    """Return the database's time, with which all times in the BMDB are compared."""
    return connection.fetch(datetime, "now")[0]


def checkpoint_ahead(connection: Connection) -> float:
    """Return by how many seconds the last checkpoint lies in the server's future; negative: in its past."""
    return connection.fetch(float, "checkpoint_ahead")[0]


def check_clock(connection: Connection, time: int) -> None:
    """
    Check that *time*, which the database told just now, in milliseconds since the Unix epoch, may be believed.

    Raises:
        ClockDiffers: it differs from the time of day here.
    """
    ahead = (time - connection.clock["time"]) / 1000
    if abs(ahead) > TOLERANCE_SECONDS:
        how = "ahead of" if ahead > 0 else "behind"
        raise ClockDiffers(f"the database's clock is {abs(ahead):.0f} s {how} that of this computer")


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


def is_full(connection: Connection) -> bool:
    """Return whether the server's disk has no room for a file of 16 MB, which this writes there."""

    def sort() -> bool:
        connection.run("sort_on_disk")
        connection.run("sort_much")
        return False

    try:
        return connection.dry_run(sort)
    except StatementFailed as error:
        if error.sqlstate != StatementFailed.DISK_FULL:
            raise
        return True


def limited_user(connection: Connection) -> str | None:
    """Return the database's user if it does not see the transactions of others: it is not in pg_read_all_stats."""
    return next(iter(connection.fetch(str, "limited_user")), None)
