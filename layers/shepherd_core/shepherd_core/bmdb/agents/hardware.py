"""The hardware that agents reported: of one machine, and of the fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from shepherd_core.bmdb.connection import Connection

_SUMS = ("hardware_threads", "memory_bytes", "disks", "disk_bytes")


def hardware_report(connection: Connection, machine_id: UUID) -> tuple[bytes, datetime] | None:
    """Return the machine's last AgentHardwareReport, serialized, and when it arrived; None: it never sent one."""
    rows = connection.run("hardware_report", machine_id=machine_id)
    return (rows[0][0], rows[0][1]) if rows else None


def read_inventory(
    connection: Connection, *, provider: str | None = None, location: str | None = None
) -> list[dict[str, Any]]:
    """
    Return the hardware at each provider and location, sorted; machines without a location have a record of their own.

    Each record has ``provider``, ``location`` and these whole numbers:
    ``machines``, ``unreported`` (those of them without a hardware report), and the
    sums over the others: ``hardware_threads``, ``memory_bytes``, ``disks`` and
    ``disk_bytes``. Reads all machines.
    """
    # PostgreSQL returns sums of bigint as numeric, which the driver turns into Decimal.
    return [
        {name: int(value) if name in _SUMS else value for name, value in record.items()}
        for record in connection.records("inventory", provider=provider, location=location)
    ]
