"""The environment of a scenario: a real database, a provider's API, and machines with real SSH."""

import threading
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from shepherd_core.bmdb.connection import Connection
from shepherd_core.domain.clock import Clock
from shepherd_core.domain.machine import Process

from simulator.machines.pool import MachinePool
from simulator.providers.equinix.api import EquinixApi
from simulator.providers.kit.hardware import NoHardware
from tests.chaos.invariants import SEEN
from tests.chaos.stage.project import API_KEY, PREFIX, PROJECT
from tests.support import defaults
from tests.support.bmdb.capacity import provided
from tests.support.bmdb.fleet import PROVIDER, Fleet

SESSION_SECONDS = 60.0
_TICK = """
INSERT INTO ticks (session_id, loop, provider, runtime_info, began_at, ended_at, outcome, counts)
SELECT gen_random_uuid(), 'updater', '', 'chaos', at, at, 'Succeeded', '{}'
FROM (SELECT now() - interval '3 minutes' AS at) AS x
"""
MACHINE_SECONDS = 120.0
"""Longer than a session, so that the session's deadline ends work that takes too long."""


@dataclass
class Environment:
    """One environment, with the facts about the arranged fleet that the invariants need."""

    fleet: Fleet
    clock: Clock
    reservations: int = 0
    pool: MachinePool | None = None
    folder: Path | None = None
    limit: int = 0
    """Maximum number of machines; 0: no limit."""
    may_be_rebooted: set[str] = field(default_factory=set)
    """Provider ids of the machines that are unhealthy, or were."""
    healthy: list[UUID] = field(default_factory=list)
    """Machines whose agents continue to report."""
    foreign: set[str] = field(default_factory=set)
    """Provider ids of machines that Shepherd does not manage."""
    to_release: dict[str, UUID] = field(default_factory=dict)
    """Machines, by provider id, that an operator releases."""
    steps_per_hour: int = defaults.LIMITS.per_hour
    """The budget of recovery."""
    margin_seconds: float = 0.0
    """By how much a clock may be read out of the order of commits; 0 if one invocation runs at a time."""
    actions_seen: dict[str, int] | None = None
    """Number of actions on each machine when the invariants were last checked; None: unknown."""
    examined: tuple[str, dict[str, Any], list[str]] | None = None
    """The last check of the invariants: the database's snapshot, the parameters, and the violations."""
    decided: dict[str, str] = field(default_factory=dict)
    """When a worker stopped before an action on a machine, by the database's clock."""
    hardware: NoHardware = field(default_factory=NoHardware)
    connections: dict[int, list[Connection]] = field(default_factory=lambda: defaultdict(list))
    """Opened connections, by the thread that opened them."""

    def __post_init__(self) -> None:
        """Open the provider's API; Recoverers watch the machines, and functions have run before."""
        self.fleet.sql(SEEN)
        self.fleet.sql(_TICK)
        for provider in ("equinix", PROVIDER):
            self.fleet.watch(provider)
        self.api = EquinixApi(self.hardware, project_id=PROJECT, secret=API_KEY, reservations=self.reservations)
        self.api.start()

    def close(self) -> None:
        """Close everything, and empty the database."""
        self.fleet.sql("DELETE FROM session_seen; DELETE FROM ready_seen")
        self.api.close()
        self.fleet.disconnect()
        self.fleet.empty()

    def pass_time(self, seconds: float) -> None:
        """Let time pass; healthy agents continue to report."""
        self.fleet.pass_time(seconds)
        self.fleet.sql(f"UPDATE session_seen SET deadline = deadline - interval '{seconds} seconds'")
        self.fleet.sql(f"UPDATE ready_seen SET since = since - interval '{seconds} seconds'")
        self.fleet.sql(
            "UPDATE machine_agent_heartbeat SET agent_heartbeat_at = clock_timestamp() - interval '1 minute' "
            "WHERE machine_id = ANY(:ids)",
            ids=self.healthy,
        )

    def connect(self) -> Connection:
        """Return a new connection, as a new process opens one."""
        connection = self.fleet.connect()
        self.connections[threading.get_ident()].append(connection)
        return connection

    def counts_as_rebooted(self, machine_id: UUID) -> bool:
        """
        Return whether the function was killed after it had recorded the attempt, and perhaps before the request.

        No other step follows then without an Initializer.
        """
        need = self.fleet.sql("SELECT process FROM machine_need WHERE machine_id = :id", id=machine_id)
        return need == [[Process.AGENT_START]] and "Attempted" in self.fleet.events(machine_id)

    def unprovided(self, count: int) -> list[str]:
        """Return what is to be done until *count* machines of ours exist and are on record."""
        ours = {device.id for device in self.api.snapshot() if device.name.startswith(PREFIX)}
        found = [] if len(ours) == count else [f"{len(ours)} of {count} machines exist"]
        found += [f"{each} is not recorded" for each in ours - set(provided(self.fleet))]
        intents = self.fleet.sql("SELECT machine_id FROM machine_creation_intent")
        return found + [f"the intent {row[0]} is still there" for row in intents]

    def machine_at_provider(self, machine_id: UUID) -> str:
        """Create a device for a machine that stands in the BMDB, and return its provider id."""
        device = self.api.add_active_device(f"{PREFIX}{machine_id}", racked=False)
        self.fleet.change(
            f"UPDATE machine_provided SET provider = 'equinix', provider_id = '{device.id}' "
            f"WHERE machine_id = '{machine_id}'",
        )
        return device.id
