"""The hardware that agents reported: of one machine, and of the fleet."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from shepherd_core.domain.record import record

if TYPE_CHECKING:
    from uuid import UUID

    from shepherd_core.bmdb.connection import Connection


@record
class ReceivedHardware:
    """The last hardware report of a machine."""

    raw: bytes
    """The AgentHardwareReport, serialized."""
    reported_at: datetime


def hardware_report(connection: Connection, machine_id: UUID) -> ReceivedHardware | None:
    """Return the machine's last hardware report; None: it never sent one."""
    return next(iter(connection.fetch(ReceivedHardware, "hardware_report", machine_id=machine_id)), None)


@record
class FleetHardware:
    """The hardware at a provider and location."""

    provider: str
    location: str | None
    """None: machines without a location."""
    machines: int
    unreported: int
    """Those of them without a hardware report; the others make the sums."""
    hardware_threads: int
    memory_bytes: int
    disks: int
    disk_bytes: int


def read_inventory(
    connection: Connection, *, provider: str | None = None, location: str | None = None
) -> list[FleetHardware]:
    """Return the hardware at each provider and location, sorted. Reads all machines."""
    return connection.fetch(FleetHardware, "inventory", provider=provider, location=location)
