"""What a scenario plays in: a real database, a provider's API, and machines with real SSH."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shepherd_core.bmdb.machines import due

from simulator.providers.equinix.api import EquinixApi
from simulator.providers.equinix.hardware import NoHardware
from tests.chaos.invariants import SEEN
from tests.support.bmdb.capacity import API_KEY, PREFIX, PROJECT

if TYPE_CHECKING:
    from pathlib import Path
    from uuid import UUID

    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.domain.clock import Clock

    from simulator.machines.pool import MachinePool
    from tests.support.bmdb.fleet import Fleet

SESSION_SECONDS = 60.0
MACHINE_SECONDS = 120.0
"""Longer than a session, so that it is the session that ends what takes too long."""


@dataclass
class World:
    """One world; what a scenario arranged in it, and what the invariants have to know of that."""

    fleet: Fleet
    clock: Clock
    reservations: int = 0
    pool: MachinePool | None = None
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
    margin_seconds: float = 0.0
    """By so much clocks may be read in another order than transactions commit; 0 where only one runs at a time."""
    actions_seen: dict[str, int] | None = None
    """How often each machine at the provider had been acted on when the invariants were last asked; None: unknown."""
    decided: dict[str, str] = field(default_factory=dict)
    """When, by the database, a worker came to stand before an action on a machine, while others go on."""
    hardware: NoHardware = field(default_factory=NoHardware)
    connections: dict[int, list[Connection]] = field(default_factory=lambda: defaultdict(list))
    """The connections that were opened, by the thread that did it."""

    def __post_init__(self) -> None:
        """Open the provider's API."""
        self._prepared: dict[str, Any] = {}
        self.fleet.sql(SEEN)
        # Every world prepares the invariants anew, which else would be planned five times before a plan is kept.
        self.fleet.sql("SET plan_cache_mode = force_generic_plan")
        self.api = EquinixApi(self.hardware, project_id=PROJECT, api_key=API_KEY, reservations=self.reservations)
        self.api.start()

    def close(self) -> None:
        """Close what was opened; the database is as empty as it was before."""
        for prepared in self._prepared.values():
            prepared.close()
        self.fleet.sql("DROP TABLE session_seen")
        self.api.close()
        self.fleet.disconnect()
        self.fleet.empty()

    def pass_time(self, seconds: float) -> None:
        """Let time pass, in which healthy agents go on to report."""
        self.fleet.pass_time(seconds)
        self.fleet.sql(f"UPDATE session_seen SET deadline = deadline - interval '{seconds} seconds'")
        self.fleet.sql(
            "UPDATE machine_agent_heartbeat SET agent_heartbeat_at = clock_timestamp() - interval '1 minute' "
            "WHERE machine_id = ANY(:ids)",
            ids=self.healthy,
        )

    def connect(self) -> Connection:
        """Return a connection as a new process would have one."""
        connection = self.fleet.connect()
        self.connections[threading.get_ident()].append(connection)
        return connection

    def disagreements(self) -> list[str]:
        """Return what the repair would mend now, which is not to have anything to do in any world."""
        providers = [row[0] for row in self.fleet.sql("SELECT DISTINCT provider FROM machine_due")]
        connection = self.fleet.connect()
        try:
            found = [wrong for provider in providers for wrong in due.inconsistencies(connection, provider).items()]
        finally:
            connection.close()
        return [f"nothing_is_left_to_repair: {machine_id}: {what}" for machine_id, what in found]

    def ask(self, text: str, **parameters: Any) -> list[list[Any]]:
        """Do the same as ``Fleet.sql`` for a statement that is asked often."""
        if text not in self._prepared:
            self._prepared[text] = self.fleet._admin.prepare(text)
        found: list[list[Any]] = self._prepared[text].run(**parameters) or []
        return found

    def machine_at_provider(self, machine_id: UUID) -> str:
        """Let a machine that was planted be a device of the project, and return its provider id."""
        device = self.api.add_active_device(f"{PREFIX}{machine_id}", racked=False)
        self.fleet.change(
            machine_id,
            f"UPDATE machine_provided SET provider = 'equinix', provider_id = '{device.id}' "
            f"WHERE machine_id = '{machine_id}'",
        )
        return device.id
