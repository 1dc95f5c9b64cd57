"""
Scenarios: what is arranged, one invocation of a loop, and what must have come of it in the end.

A tick makes everything anew, connection and adapters included, as a cold
function would; so what one tick leaves in memory helps no other.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from shepherd_core.adapters.documents import AgentCache
from shepherd_core.adapters.ssh import SshDialer
from shepherd_core.bmdb.machines import queries
from shepherd_core.bmdb.recovery import overrides
from shepherd_core.bmdb.work.work import HealthTimeouts
from shepherd_core.domain.backoff import Backoff
from shepherd_core.domain.clock import Deadline, SystemClock
from shepherd_core.domain.machine import Process
from shepherd_core.loops import runner
from shepherd_core.loops.initializer import Initializer, StartOptions
from shepherd_core.loops.provisioner import Provisioner, RateLimits
from shepherd_core.loops.recoverer import Recoverer, RecoveryRules
from shepherd_core.loops.runner import RunLimits
from shepherd_core.providers.equinix.adapter import EquinixProvider
from shepherd_core.providers.static import StaticProvider
from shepherd_core.rules.circuit_breaker import WHOLE_PROVIDER
from shepherd_core.rules.provisioning import PlanLimits as ReconcileLimits
from shepherd_core.rules.remediation import DEFAULT_POLICY, parse_policy

from simulator.environment.faults import FakeAnswer
from tests.chaos.stage.environment import MACHINE_SECONDS, SESSION_SECONDS, World
from tests.support.bmdb.capacity import API_KEY, PREFIX, equinix_settings, provided
from tests.support.bmdb.fleet import HOUR, PROVIDER

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from shepherd_core.domain.machine import Machine, ProviderId

    from simulator.machines.pool import MachinePool
    from tests.chaos.crash_points import Points
    from tests.support.bmdb.fleet import Fleet

PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHb1Jc7TZl0g8cFz7h5oVb5Gg2c0J5s0n1p6c9w3Qk7d shepherd"
INVOCATION_SECONDS = 600

AGENT = """\
#!/usr/bin/env python3
import os, sys

def field(number, content):
    return bytes([number << 3 | 2, len(content)]) + content

init = sys.stdin.buffer.read()
key = os.urandom(32)
with open(os.path.join(os.path.dirname(os.path.realpath(sys.argv[0])), "last-key"), "w") as file:
    file.write(key.hex())
sys.stdout.buffer.write(field(1, field(1, init) + field(2, key)))
"""
"""An agent that answers and is gone; on its disk it leaves the key that it answered with."""


class Scenario(Protocol):
    """One loop and what it is to master. Made anew for every exploration."""

    name: str

    def arrange(self) -> World:
        """Return a world with work in it, from an empty database."""

    def tick(self, world: World, points: Points) -> object:
        """Carry out one invocation inside *points*."""

    def missing(self, world: World) -> list[str]:
        """Return what must still be done, in words; nothing when the world has converged."""


class Provisioning:
    """Capacity to be used up to a limit, a machine that vanished, and a creation that somebody else has forestalled."""

    name = "provisioner"

    def __init__(self, fleet: Fleet) -> None:
        """Play in *fleet*."""
        self._fleet = fleet

    def arrange(self) -> World:
        """See ``Scenario``."""
        world = World(self._fleet, SystemClock(), reservations=5, limit=4)
        first, second = (reservation.id for reservation in world.api.reservations()[:2])
        # A creation that was begun and never happened, on capacity that is somebody else's by now.
        world.api.occupy(first)
        world.foreign = {device.id for device in world.api.devices()}
        self._intend(first, age=2 * HOUR)
        # A creation that was begun a moment ago and is still to be made.
        self._intend(second, age=1)
        # A machine that the provider lists no more.
        gone = self._fleet.provided_machine("equinix")
        self._fleet.sql(
            "UPDATE machines SET machine_created_at = now() - interval '1 day' WHERE machine_id = :id", id=gone
        )
        return world

    def _intend(self, capacity: str, age: float) -> None:
        machine_id = self._fleet.bare_machine()
        self._fleet.sql(
            "INSERT INTO machine_creation_intent (machine_id, provider, capacity_id, intended_at) "
            "VALUES (:id, 'equinix', :capacity, clock_timestamp() - :age * interval '1 second')",
            id=machine_id,
            capacity=capacity,
            age=age,
        )

    def tick(self, world: World, points: Points) -> object:
        """See ``Scenario``."""
        clock = points.clock
        return Provisioner(
            EquinixProvider(equinix_settings(world.api), lambda: API_KEY, lambda: PUBLIC_KEY, clock),
            world.connect(),
            clock,
            ReconcileLimits(max_machines=world.limit, chunk=2, drift_limit=3, assimilate=False, forget_seconds=HOUR),
            RateLimits(session_seconds=SESSION_SECONDS, creation_seconds=0, penalty_seconds=HOUR),
        ).run(Deadline(clock, INVOCATION_SECONDS), "chaos")

    def missing(self, world: World) -> list[str]:
        """See ``Scenario``."""
        ours = {device.id for device in world.api.devices() if device.hostname.startswith(PREFIX)}
        # The vanished machine counts towards the limit until an operator forgets it.
        found = [] if len(ours) == world.limit - 1 else [f"{len(ours)} of {world.limit - 1} machines exist"]
        found += [f"{each} is not recorded" for each in ours - set(provided(self._fleet))]
        intents = self._fleet.sql("SELECT machine_id FROM machine_creation_intent")
        return found + [f"the intent {row[0]} is still there" for row in intents]


class OneCapacity(Provisioning):
    """Capacity for one machine, and nothing else."""

    name = "provisioner, one capacity"

    def arrange(self) -> World:
        """See ``Scenario``."""
        return World(self._fleet, SystemClock(), reservations=1, limit=2)


class AgentStarts:
    """Two machines that need their agent, one of which has no room for it at first."""

    name = "initializer"

    def __init__(self, fleet: Fleet, pool: MachinePool, private_key: str, folder: Path) -> None:
        """Play with two machines of *pool*, which stay."""
        self._fleet = fleet
        self._park = pool
        self._key = private_key
        self._agent = folder / "agent"
        self._agent.write_text(AGENT)
        self._ids: dict[str, UUID] = {}

    def arrange(self) -> World:
        """See ``Scenario``."""
        self._ids = {}
        for name in self._park.names():
            for file in ("agent", "last-key"):
                (self._park.disk(name) / "root" / file).unlink(missing_ok=True)
            machine_id = self._fleet.provided_machine()
            self._fleet.change(
                machine_id,
                f"UPDATE machine_provided SET provider_id = '{name}' WHERE machine_id = '{machine_id}'",
            )
            self._ids[name] = machine_id
        self._park.fill_disk(self._park.names()[0])
        return World(self._fleet, SystemClock(), pool=self._park)

    def environment(self) -> dict[str, str]:
        """Return the settings of a function that is to find these machines."""
        listing = self._agent.with_name("machines.json")
        listing.write_text(self._listing())
        return {
            "SHEPHERD_PROVIDER": "static",
            "SHEPHERD_STATIC_LIST": str(listing),
            "SHEPHERD_AGENT_SOURCE": str(self._agent),
            "SHEPHERD_SSH_PORT": str(self._park.port),
            "SHEPHERD_SSH_CONNECT_TIMEOUT_SECONDS": "5",
            "SHEPHERD_CONCURRENCY": "1",
        }

    def _listing(self) -> str:
        return json.dumps([{"ID": name, "Addr": self._park.address(name)} for name in self._park.names()])

    def tick(self, world: World, points: Points) -> object:
        """See ``Scenario``."""
        clock = points.clock
        loop = Initializer(
            StaticProvider(lambda: self._listing().encode()),
            points.stepped(SshDialer(self._key, "root", self._park.port, connect_timeout=5)),
            lambda: (AgentCache(Path("unused")).fetch(str(self._agent)), b""),
            StartOptions(
                path="/root/agent",
                endpoint="agents.example:443",
                answer_seconds=20,
                backoff=Backoff(300, 14_400, 1.2),
            ),
        )
        result = runner.run(
            loop,
            PROVIDER,
            world.connect(),
            clock,
            RunLimits(1, MACHINE_SECONDS, SESSION_SECONDS),
            deadline=Deadline(clock, INVOCATION_SECONDS),
            runtime_info="chaos",
        )
        self._park.free_disk(self._park.names()[0])
        return result

    def missing(self, world: World) -> list[str]:
        """See ``Scenario``."""
        found = []
        for name, machine_id in self._ids.items():
            file = self._park.disk(name) / "root/last-key"
            key = queries.show_machine(world.fleet.connection, machine_id)["agent_public_key"]
            if key is None or not file.exists() or key != file.read_text():
                found.append(f"{name} is known by the key {key}, and its agent has another")
        return found


class Answering(EquinixProvider):
    """A provider that lets something happen while it is asked about a machine."""

    happening: Callable[[str], object] = staticmethod(lambda _: None)

    def get_machine(self, provider_id: ProviderId, deadline: Deadline) -> Machine:
        """Let it happen, then answer."""
        self.happening(provider_id)
        return super().get_machine(provider_id, deadline)


class Recoveries:
    """
    Two silent machines, one that the provider has forgotten, healthy ones, and a silent one that is paused.

    And one that was silent, and reports again while the provider is asked about it.
    """

    name = "recoverer"
    policy = DEFAULT_POLICY

    def __init__(self, fleet: Fleet) -> None:
        """Play in *fleet*."""
        self._fleet = fleet
        self._silent: list[UUID] = []
        self._back: tuple[UUID, str] | None = None

    def arrange(self) -> World:
        """See ``Scenario``."""
        fleet = self._fleet
        world = World(fleet, SystemClock())
        back = fleet.unhealthy_machine()
        self._back = back, world.machine_at_provider(back)
        self._silent = [fleet.unhealthy_machine() for _ in range(2)]
        world.may_be_rebooted = {world.machine_at_provider(machine_id) for machine_id in self._silent}
        gone = fleet.unhealthy_machine()
        world.api.forget(world.machine_at_provider(gone))
        world.healthy = [fleet.unhealthy_machine(silent_for=60) for _ in range(16)]
        paused = fleet.unhealthy_machine()
        for machine_id in (*world.healthy, paused):
            world.machine_at_provider(machine_id)
        queries.pause(fleet.connection, owner="somebody", reason="new memory", machine_id=paused)
        return world

    def tick(self, world: World, points: Points) -> object:
        """See ``Scenario``."""
        clock = points.clock
        provider = Answering(equinix_settings(world.api), lambda: API_KEY, lambda: PUBLIC_KEY, clock)
        provider.happening = lambda asked: points.aside(lambda: self._answer(world, asked))
        loop = Recoverer(
            provider,
            RecoveryRules(timeouts=HealthTimeouts(), backoff=Backoff(60, 3600, 1.2), policy=parse_policy(self.policy)),
        )
        return runner.run(
            loop,
            "equinix",
            world.connect(),
            clock,
            RunLimits(1, MACHINE_SECONDS, SESSION_SECONDS),
            deadline=Deadline(clock, INVOCATION_SECONDS),
            runtime_info="chaos",
        )

    def _answer(self, world: World, asked: str) -> None:
        """Let the machine that comes back report, when the provider is asked about it."""
        if self._back is None:
            return
        machine_id, provider_id = self._back
        heard = "UPDATE machine_agent_heartbeat SET agent_heartbeat_at = clock_timestamp() WHERE machine_id = :id"
        if asked == provider_id and self._fleet.sql(f"{heard} RETURNING 1", id=machine_id):
            world.healthy.append(machine_id)

    def missing(self, world: World) -> list[str]:
        """See ``Scenario``."""
        found = []
        rebooted = {device.id for device in world.api.devices() if "reboot" in device.actions_taken}
        for machine_id in self._silent:
            shown = queries.show_machine(world.fleet.connection, machine_id)
            # An attempt whose function died is waited for, and without an Initializer no other step follows it.
            attempted = shown["needs"] == Process.AGENT_START and "Attempted" in self._fleet.events(machine_id)
            if shown["provider_id"] not in rebooted and not attempted:
                found.append(f"{machine_id} was not rebooted")
            if shown["agent_started_at"] is not None:
                found.append(f"the agent of {machine_id} still counts as started")
        return found


class GivingUp(Recoveries):
    """Two silent machines, one of which was tried in every way, long enough ago."""

    name = "recoverer that gives up"

    def arrange(self) -> World:
        """See ``Scenario``."""
        world = super().arrange()
        self._hopeless = self._silent.pop()
        steps = ["reboot"] * 3 + ["power-cycle"] * 2
        for number, step in enumerate(steps):
            for event, rung in (("Started", None), ("Attempted", step), ("Finished", None)):
                self._fleet.sql(
                    "INSERT INTO work_history (machine_id, process, event, step, timestamp) VALUES "
                    "(:id, 'ShepherdRecovery', :event, :rung, clock_timestamp() - :hours * interval '1 hour')",
                    id=self._hopeless,
                    event=event,
                    rung=rung,
                    hours=len(steps) - number,
                )
        world.may_be_rebooted.discard(queries.show_machine(self._fleet.connection, self._hopeless)["provider_id"])
        return world

    def missing(self, world: World) -> list[str]:
        """See ``Scenario``."""
        shown = queries.show_machine(world.fleet.connection, self._hopeless)
        return super().missing(world) + ([] if shown["quarantined_at"] else ["the machine is not in quarantine"])


class Away(Recoveries):
    """The provider declines every step for a while, long enough to go through the whole policy."""

    name = "recoverer, provider away"
    policy = "reboot:1:grace=60,quarantine"

    def arrange(self) -> World:
        """See ``Scenario``."""
        world = super().arrange()
        world.api.faults.add(FakeAnswer(method="POST", path="/devices/{id}/actions", times=12, status=503))
        return world

    def missing(self, world: World) -> list[str]:
        """See ``Scenario``; an attempt whose function died is the last one here."""
        given_up = [
            machine_id
            for machine_id in self._silent
            if queries.show_machine(world.fleet.connection, machine_id)["quarantined_at"]
        ]
        return [each for each in super().missing(world) if not any(str(machine) in each for machine in given_up)]


class Overridden(Recoveries):
    """Four machines that are silent, none that reports, and an operator who lets two be recovered all the same."""

    name = "recoverer that is overridden"

    def arrange(self) -> World:
        """See ``Scenario``."""
        world = World(self._fleet, SystemClock())
        self._back = None
        self._silent = [self._fleet.unhealthy_machine() for _ in range(4)]
        world.may_be_rebooted = {world.machine_at_provider(machine_id) for machine_id in self._silent}
        made = overrides.override(
            self._fleet.connection,
            provider="equinix",
            location=WHOLE_PROVIDER,
            machines=2,
            owner="somebody",
            reason="no power",
            seconds=7 * 24 * HOUR,
        )
        assert made is not None
        return world

    def missing(self, world: World) -> list[str]:
        """See ``Scenario``."""
        attempted = [machine for machine in self._silent if "Attempted" in self._fleet.events(machine)]
        return [] if len(attempted) == 2 else [f"{len(attempted)} of 2 machines were taken"]
