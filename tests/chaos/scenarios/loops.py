"""
Scenarios: an arranged fleet, one invocation of a loop, and the result that must be reached in the end.

A tick builds everything, connection and adapters included, as a cold function
does, so that no state in memory passes from one tick to the next.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol
from uuid import UUID

from shepherd_core.adapters.agent_file import OperatorsAgent
from shepherd_core.adapters.ssh.dialer import SshDialer
from shepherd_core.agent.takeover import AgentBinary
from shepherd_core.bmdb.machines import lookup, pauses
from shepherd_core.domain.clock import SystemClock
from shepherd_core.domain.remediation import provider_steps
from shepherd_core.loops.initializer import Initializer
from shepherd_core.loops.look import Look
from shepherd_core.loops.recoverer import Recoverer
from shepherd_core.providers.static import StaticProvider
from shepherd_core.telemetry import Metric

from simulator.environment.faults import FakeAnswer
from simulator.machines.pool import MachinePool
from tests.chaos.crash_points import Context, Points
from tests.chaos.stage.access import START, Access, provision, run
from tests.chaos.stage.environment import Environment
from tests.support import defaults
from tests.support.bmdb.fleet import HOUR, PROVIDER, Fleet

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
"""An agent that answers, writes the key of its answer to its disk, and exits."""


class Scenario(Protocol):
    """One loop and the fleet that it works on. Created for each exploration."""

    name: str

    def arrange(self) -> Environment:
        """Return an environment with work for the loop, from an empty database."""

    def tick(self, environment: Environment, points: Points) -> object:
        """Carry out one invocation inside *points*."""

    def missing(self, environment: Environment) -> list[str]:
        """Return a text for each thing that is still to be done; none if the environment has converged."""


class Provisioning:
    """Free capacity, a machine limit, a vanished machine, and an intent whose capacity is used by others."""

    name = "provisioner"

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.access = Access()

    def arrange(self) -> Environment:
        environment = Environment(self._fleet, SystemClock(), reservations=5, limit=4)
        first, second = environment.api.reservations()[:2]
        # An intent without a machine, on capacity that is used by others.
        environment.api.occupy(first)
        environment.foreign = {device.id for device in environment.api.snapshot()}
        self._intend(first, age=2 * HOUR)
        # An intent of a second ago, without a machine yet.
        self._intend(second, age=1)
        # A machine that the provider does not list any more.
        gone = self._fleet.provided_machine("equinix")
        self._fleet.sql(
            "UPDATE machines SET machine_created_at = now() - interval '1 day' WHERE machine_id = :id", id=gone
        )
        return environment

    def _intend(self, capacity: str, age: float) -> None:
        machine_id = self._fleet.bare_machine()
        self._fleet.sql(
            "INSERT INTO machine_creation_intent (machine_id, provider, capacity_id, intended_at) "
            "VALUES (:id, 'equinix', :capacity, clock_timestamp() - :age * interval '1 second')",
            id=machine_id,
            capacity=capacity,
            age=age,
        )

    def tick(self, environment: Environment, points: Context) -> Mapping[Metric, float]:
        connection = self.access.connect(environment)
        return provision(self.access.equinix(environment, points.clock), connection, points.clock, environment.limit)

    def missing(self, environment: Environment) -> list[str]:
        # The vanished machine counts towards the limit until an operator forgets it.
        return environment.unprovided(environment.limit - 1)


class OneCapacity(Provisioning):
    name = "provisioner, one capacity"

    def arrange(self) -> Environment:
        return Environment(self._fleet, SystemClock(), reservations=1, limit=2)


class AgentStarts:
    """Two machines that need their agent; the disk of one is full at first."""

    name = "initializer"
    at_once = 1

    def __init__(self, fleet: Fleet, pool: MachinePool, private_key: str, folder: Path) -> None:
        self._fleet = fleet
        self._pool = pool
        self._key = private_key
        self._agent = folder / "agent"
        self._agent.write_text(AGENT)
        self.ids: dict[str, UUID] = {}
        """The machine ids, by the machine's name in the pool."""
        self.access = Access()

    def arrange(self) -> Environment:
        self.ids = {}
        for name in self._pool.names():
            for file in ("agent", "last-key"):
                (self._pool.disk(name) / "root" / file).unlink(missing_ok=True)
            machine_id = self._fleet.provided_machine()
            self._fleet.change(
                f"UPDATE machine_provided SET provider_id = '{name}' WHERE machine_id = '{machine_id}'",
            )
            self.ids[name] = machine_id
        self._pool.fill_disk(self._pool.names()[0])
        return Environment(self._fleet, SystemClock(), pool=self._pool)

    def function_settings(self) -> dict[str, str]:
        listing = self._agent.with_name("machines.json")
        listing.write_text(self._listing())
        return {
            "SHEPHERD_PROVIDER": "static",
            "SHEPHERD_PROVIDER_MACHINES": str(listing),
            "SHEPHERD_AGENT_SOURCE": str(self._agent),
            "SHEPHERD_SSH_PORT": str(self._pool.port),
            "SHEPHERD_CONCURRENCY": "1",
        }

    def _listing(self) -> str:
        at = {name: self.access.addresses.get(name, self._pool.address(name)) for name in self._pool.names()}
        return json.dumps([{"ID": name, "Addr": at[name]} for name in at])

    def tick(self, environment: Environment, points: Context) -> Mapping[Metric, float]:
        access = self.access
        dialer = SshDialer(self._key, "root", self._pool.port, connect_timeout=access.connect_seconds)
        loop = Initializer(
            StaticProvider(lambda: self._listing().encode()),
            points.stepped(dialer),
            self._fetch,
            replace(START, answer_seconds=access.answer_seconds),
        )
        connection = access.connect(environment)
        result = run(loop, PROVIDER, connection, points.clock, self.at_once, access.machine_seconds)
        self._free_disk()
        return result

    def _free_disk(self) -> None:
        self._pool.free_disk(self._pool.names()[0])

    def _fetch(self) -> tuple[AgentBinary, bytes]:
        self.access.prepare()
        return OperatorsAgent(self.access.agent_source or str(self._agent)).fetch(), b""

    def missing(self, environment: Environment) -> list[str]:
        found = []
        for name, machine_id in self.ids.items():
            file = self._pool.disk(name) / "root/last-key"
            key = lookup.show_machine(environment.fleet.connection, machine_id).agent_public_key
            if key is None or not file.exists() or key != file.read_text():
                found.append(f"{name} is known by the key {key}, and not by that of its agent")
        return found


class Recoveries:
    """
    Two unhealthy machines, one that the provider does not know any more, healthy ones, and a paused unhealthy one.

    Another unhealthy machine reports again while the provider is asked about it.
    """

    name = "recoverer"
    policy = defaults.policy()
    at_once = 1

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._unhealthy: list[UUID] = []
        self._back: tuple[UUID, str] | None = None
        self.access = Access()

    def arrange(self) -> Environment:
        fleet = self._fleet
        environment = Environment(fleet, SystemClock())
        back = fleet.unhealthy_machine()
        self._back = back, environment.machine_at_provider(back)
        self._unhealthy = [fleet.unhealthy_machine() for _ in range(2)]
        # The one that comes back may be, until it has reported: in a process of its own the provider tells it nothing.
        environment.may_be_rebooted = {
            self._back[1],
            *(environment.machine_at_provider(machine_id) for machine_id in self._unhealthy),
        }
        gone = fleet.unhealthy_machine()
        environment.api.forget(environment.machine_at_provider(gone))
        environment.healthy = [fleet.reporting_machine(60) for _ in range(16)]
        paused = fleet.unhealthy_machine()
        for machine_id in (*environment.healthy, paused):
            environment.machine_at_provider(machine_id)
        pauses.pause(fleet.connection, owner="somebody", reason="new memory", machine_id=paused)
        return environment

    def tick(self, environment: Environment, points: Context) -> Mapping[Metric, float]:
        provider = self.access.equinix(environment, points.clock)
        provider.happening = lambda asked: points.aside(lambda: self._answer(environment, asked))
        rules = replace(defaults.RULES, policy=self.policy)
        loop = Recoverer(provider, provider_steps(provider), rules, self.look(points))
        connection = self.access.connect(environment)
        return run(loop, "equinix", connection, points.clock, self.at_once, self.access.machine_seconds)

    def look(self, points: Context) -> Look | None:
        return None

    def _answer(self, environment: Environment, asked: str) -> None:
        """Let the machine that comes back report, when the provider is asked about it."""
        if self._back is None:
            return
        machine_id, provider_id = self._back
        heard = "UPDATE machine_agent_heartbeat SET agent_heartbeat_at = clock_timestamp() WHERE machine_id = :id"
        if asked == provider_id and self._fleet.sql(f"{heard} RETURNING 1", id=machine_id):
            environment.healthy.append(machine_id)
            environment.may_be_rebooted.discard(provider_id)

    def missing(self, environment: Environment) -> list[str]:
        found = []
        rebooted = {device.id for device in environment.api.snapshot() if "reboot" in device.actions_taken}
        for machine_id in self._unhealthy:
            shown = lookup.show_machine(environment.fleet.connection, machine_id)
            if shown.provider_id not in rebooted and not environment.counts_as_rebooted(machine_id):
                found.append(f"{machine_id} was not rebooted")
            if shown.agent_started_at is not None:
                found.append(f"the agent of {machine_id} still counts as started")
        return found


class Quarantining(Recoveries):
    """Two unhealthy machines; for one of them all steps of the policy were taken long ago."""

    name = "recoverer, quarantine"

    def arrange(self) -> Environment:
        environment = super().arrange()
        self._all_steps_taken = self._unhealthy.pop()
        steps = ["reboot"] * 3 + ["power-cycle"] * 2
        for number, step in enumerate(steps):
            for event, taken in (("Started", None), ("Attempted", step), ("Finished", None)):
                self._fleet.sql(
                    "INSERT INTO work_history (machine_id, process, event, step, timestamp) VALUES "
                    "(:id, 'ShepherdRecovery', :event, :step, clock_timestamp() - :hours * interval '1 hour')",
                    id=self._all_steps_taken,
                    event=event,
                    step=taken,
                    hours=len(steps) - number,
                )
        environment.may_be_rebooted.discard(
            lookup.show_machine(self._fleet.connection, self._all_steps_taken).provider_id
        )
        return environment

    def missing(self, environment: Environment) -> list[str]:
        shown = lookup.show_machine(environment.fleet.connection, self._all_steps_taken)
        return super().missing(environment) + ([] if shown.quarantined_at else ["the machine is not quarantined"])


class ProviderOutage(Recoveries):
    """The provider answers 503 to all steps for longer than the whole policy takes."""

    name = "recoverer, provider outage"
    policy = defaults.policy("reboot:1:grace=60,quarantine")

    def arrange(self) -> Environment:
        environment = super().arrange()
        environment.api.faults.add(FakeAnswer(method="POST", path="/devices/{id}/actions", times=12, status=503))
        return environment

    def missing(self, environment: Environment) -> list[str]:
        quarantined = [
            machine_id
            for machine_id in self._unhealthy
            if lookup.show_machine(environment.fleet.connection, machine_id).quarantined_at
        ]
        return [
            each for each in super().missing(environment) if not any(str(machine) in each for machine in quarantined)
        ]
