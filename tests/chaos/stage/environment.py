import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.machines import pauses
from shepherd_core.bmdb.wire.driver import TimeLimits
from shepherd_core.domain.backoff import Backoff
from shepherd_core.domain.clock import Clock, Deadline
from shepherd_core.domain.machine import Machine, Process, ProviderId
from shepherd_core.domain.provider import Provider
from shepherd_core.loops import runner
from shepherd_core.loops.base import Loop
from shepherd_core.loops.initializer import StartOptions
from shepherd_core.loops.runner import RunLimits
from shepherd_core.loops.updater import Updater
from shepherd_core.providers.equinix.adapter import EquinixProvider
from shepherd_core.providers.equinix.objects import TOKEN_TAG
from shepherd_core.settings.functions.bmdb import BmdbSettings
from shepherd_core.settings.providers.equinix import EquinixSettings
from shepherd_core.telemetry import Metric

from simulator.machines.pool import MachinePool
from simulator.providers.equinix.api import EquinixApi
from simulator.providers.kit.hardware import NoHardware
from tests.chaos.invariants import SEEN
from tests.support import defaults
from tests.support.bmdb.capacity import provided, provisioner
from tests.support.bmdb.fleet import HOUR, PROVIDER, Fleet
from tests.support.bmdb.recovery import EARLIER_TICK

PROJECT = "6ab2c9bd-3c32-4d0e-8d4a-0f4b1a5c7e10"
API_KEY = "an-api-key"
PREFIX = "shepherd-"
PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHb1Jc7TZl0g8cFz7h5oVb5Gg2c0J5s0n1p6c9w3Qk7d shepherd"
SESSION_SECONDS = 60.0
INVOCATION_SECONDS = 600
START = StartOptions(
    path="/root/agent", endpoint="agents.example:443", answer_seconds=20, backoff=Backoff(300, 14_400, 1.2)
)
MACHINE_SECONDS = 120.0
"""Longer than a session, so that the session's deadline ends work that takes too long."""


@dataclass
class Environment:
    """One environment, with the facts about the arranged fleet that the invariants need."""

    fleet: Fleet
    reservations: int = 0
    pool: MachinePool | None = None
    limit: int = 0
    """Maximum number of machines; 0: no limit."""
    may_be_rebooted: set[str] = field(default_factory=set)
    """Provider ids of the machines that are unhealthy, or were."""
    healthy: list[UUID] = field(default_factory=list)
    """Machines whose agents continue to report."""
    to_release: dict[str, UUID] = field(default_factory=dict)
    """Machines, by provider id, that an operator releases."""
    steps_per_hour: int = defaults.LIMITS.per_hour
    margin_seconds: float = 0.0
    """By how much a clock may be read out of the order of commits; 0 if one invocation runs at a time."""
    actions_seen: dict[str, int] | None = None
    """Number of actions on each machine when the invariants were last checked; None: unknown."""
    examined: tuple[str, dict[str, Any], list[str]] | None = None
    """The last check of the invariants: the database's snapshot, the parameters, and the violations."""
    decided: dict[str, str] = field(default_factory=dict)
    """When a worker stopped before an action on a machine, by the database's clock."""
    connections: dict[int, list[Connection]] = field(default_factory=lambda: defaultdict(list))
    """Opened connections, by the thread that opened them."""

    def __post_init__(self) -> None:
        """Open the provider's API; Recoverers watch the machines, and functions have run before."""
        self.fleet.sql(SEEN)
        self.fleet.sql(EARLIER_TICK)
        for provider in ("equinix", PROVIDER):
            self.fleet.watch(provider)
        self.api = EquinixApi(NoHardware(), project_id=PROJECT, secret=API_KEY, reservations=self.reservations)
        self.api.start()

    def close(self) -> None:
        self.fleet.sql("DELETE FROM session_seen; DELETE FROM ready_seen")
        self.api.close()
        self.fleet.disconnect()
        self.fleet.empty()

    def pass_time(self, seconds: float) -> None:
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

    def devices(self, *, watched: bool) -> list[dict[str, Any]]:
        seen = self.actions_seen if watched else None
        with self.api.machines.lock:  # a copy of all devices takes longer than the rest of a check
            return [
                {
                    "id": device.id,
                    "active": device.state == "active",
                    "ours": device.name.startswith(PREFIX),
                    "tokens": [
                        tag.removeprefix(TOKEN_TAG) for tag in device.fields["tags"] if tag.startswith(TOKEN_TAG)
                    ],
                    "actions": len(device.actions_taken),
                    "may_act": device.id in self.may_be_rebooted,
                    "made_now": seen is not None and device.id not in seen,
                    "acted_now": seen is not None and len(device.actions_taken) > seen.get(device.id, 0),
                    "decided_at": self.decided.get(device.id),
                }
                for device in self.api.machines.all.values()
            ]

    def at_provider(self, machine_id: UUID) -> str:
        """Create a device for a machine that stands in the BMDB since yesterday, and return its provider id."""
        device = self.api.add_active_device(f"{PREFIX}{machine_id}", racked=False)
        self.fleet.change(
            f"UPDATE machine_provided SET provider = 'equinix', provider_id = '{device.id}' "
            f"WHERE machine_id = '{machine_id}'",
            f"UPDATE machines SET machine_created_at = now() - interval '1 day' WHERE machine_id = '{machine_id}'",
        )
        return device.id

    def unhealthy(self, count: int) -> list[UUID]:
        machines = [self.fleet.unhealthy_machine() for _ in range(count)]
        self.may_be_rebooted |= {self.at_provider(machine_id) for machine_id in machines}
        return machines

    def add_healthy(self, count: int) -> None:
        machines = [self.fleet.reporting_machine(60) for _ in range(count)]
        self.healthy += machines
        for machine_id in machines:
            self.at_provider(machine_id)

    def add_paused(self) -> None:
        machine_id = self.fleet.unhealthy_machine()
        self.at_provider(machine_id)
        pauses.pause(self.fleet.connection, owner="somebody", reason="new memory", machine_id=machine_id)


def equinix_settings(api: EquinixApi) -> EquinixSettings:
    return EquinixSettings(
        project=PROJECT, credential_parameter="/unused", fleet=PREFIX, key_name="shepherd", api_url=api.url
    )


class Answering(EquinixProvider):
    """A provider that calls ``happening`` while it is asked about a machine."""

    happening: Callable[[str], object] = staticmethod(lambda _: None)

    def get_machine(self, provider_id: ProviderId, deadline: Deadline) -> Machine:
        self.happening(provider_id)
        return super().get_machine(provider_id, deadline)


@dataclass
class Access:
    """Undisturbed by default."""

    bmdb: BmdbSettings | None = None
    """None: the fleet's database, without a proxy."""
    api_url: str | None = None
    """None: the URL of the environment's provider."""
    addresses: dict[str, str] = field(default_factory=dict)
    """Addresses that replace the real ones, by machine name."""
    limits: TimeLimits | None = None
    """None: a connection whose server process has served others."""
    machine_seconds: float = MACHINE_SECONDS

    def connect(self, environment: Environment) -> Connection:
        if self.limits is None:
            return environment.connect()
        return environment.fleet.connect(self.bmdb, self.limits)

    def equinix(self, environment: Environment, clock: Clock) -> Answering:
        settings = equinix_settings(environment.api)
        if self.api_url is not None:
            settings = settings.model_copy(update={"api_url": self.api_url})
        return Answering(settings, lambda: API_KEY, lambda: PUBLIC_KEY, clock)


def provision(provider: Provider, connection: Connection, clock: Clock, limit: int) -> Mapping[Metric, float]:
    found = provisioner(provider, connection, clock, session_seconds=SESSION_SECONDS, max_machines=limit, chunk=2)
    return found.run(Deadline(clock, INVOCATION_SECONDS), "chaos")


def update(provider: Provider, connection: Connection, clock: Clock) -> Mapping[Metric, float]:
    updater = Updater(provider, connection, clock, SESSION_SECONDS, HOUR)
    return updater.run(Deadline(clock, INVOCATION_SECONDS), "chaos")


def run(
    loop: Loop[Any],
    provider: str,
    connection: Connection,
    clock: Clock,
    at_once: int = 1,
    machine_seconds: float = MACHINE_SECONDS,
) -> Mapping[Metric, float]:
    limits, deadline = RunLimits(at_once, machine_seconds, SESSION_SECONDS), Deadline(clock, INVOCATION_SECONDS)
    return runner.run(loop, provider, connection, clock, limits, deadline=deadline, runtime_info="chaos")
