"""What a scenario plays in: a real database, a provider's API, and machines with real SSH."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simulator.equinix_api import EquinixApi
from simulator.equinix_hardware import NoHardware
from tests.integration.provisioning import API_KEY, PREFIX, PROJECT

if TYPE_CHECKING:
    from pathlib import Path
    from uuid import UUID

    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.clock import Clock

    from simulator.machines import MachinePark
    from tests.integration.fleet import Fleet

SESSION_SECONDS = 60.0


@dataclass
class World:
    """One world; what a scenario arranged in it, and what the invariants have to know of that."""

    fleet: Fleet
    clock: Clock
    reservations: int = 0
    park: MachinePark | None = None
    folder: Path | None = None
    limit: int = 0
    """Machines at most; 0: no limit."""
    may_be_rebooted: set[str] = field(default_factory=set)
    """Provider ids of the machines with which something was wrong."""
    healthy: list[UUID] = field(default_factory=list)
    """Machines whose agents go on to report."""
    foreign: set[str] = field(default_factory=set)
    """Provider ids of machines that are not ours."""
    to_release: dict[str, UUID] = field(default_factory=dict)
    """Machines by provider id that an operator gives back."""
    hardware: NoHardware = field(default_factory=NoHardware)

    def __post_init__(self) -> None:
        """Open the provider's API."""
        self.api = EquinixApi(self.hardware, project_id=PROJECT, api_key=API_KEY, reservations=self.reservations)
        self.api.start()

    def close(self) -> None:
        """Close what was opened; the database is as empty as it was before."""
        self.api.close()
        self.fleet.disconnect()
        self.fleet.empty()

    def pass_time(self, seconds: float) -> None:
        """Let time pass, in which healthy agents go on to report."""
        self.fleet.pass_time(seconds)
        self.fleet.sql(
            "UPDATE machine_agent_heartbeat SET agent_heartbeat_at = clock_timestamp() - interval '1 minute' "
            "WHERE machine_id = ANY(:ids)",
            ids=self.healthy,
        )

    def connect(self) -> Connection:
        """Return a connection as a new process would have one."""
        return self.fleet.connect()

    def machine_at_provider(self, machine_id: UUID) -> str:
        """Let a machine that was planted be a device of the project, and return its provider id."""
        device = self.api.add_device_by_hand(f"{PREFIX}{machine_id}", racked=False)
        self.fleet.change(
            machine_id,
            f"UPDATE machine_provided SET provider = 'equinix', provider_id = '{device.id}' "
            f"WHERE machine_id = '{machine_id}'",
        )
        return device.id
