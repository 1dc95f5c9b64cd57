"""
Scenarios: an arranged fleet, one invocation of a loop or a command, and the result that must be reached in the end.

A tick builds everything, connection and adapters included, as a cold function
does, so that no state in memory passes from one tick to the next.
"""

import functools
import json
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Protocol
from uuid import UUID

import requests
from shepherd_core.adapters.agent_file import OperatorsAgent
from shepherd_core.adapters.ssh.dialer import SshDialer
from shepherd_core.bmdb.listings.decommissioning import RemovalRequest
from shepherd_core.bmdb.machines import lookup
from shepherd_core.domain.clock import Clock, Deadline
from shepherd_core.domain.errors.provider import ProviderRefused
from shepherd_core.domain.machine import ProviderId
from shepherd_core.domain.pb.agent_pb2 import Node
from shepherd_core.domain.pb.callback_pb2 import AgentHardwareReport, HeartbeatRequest, OSInstallationReport
from shepherd_core.domain.provider import Capability
from shepherd_core.loops.initializer import Initializer
from shepherd_core.operator.adopt_forget import Adopt, Forget
from shepherd_core.operator.drift_repair import DriftRepair
from shepherd_core.operator.release import Release
from shepherd_core.providers.equinix.adapter import EquinixProvider
from shepherd_core.providers.equinix.objects import token_tag
from shepherd_core.providers.static import StaticProvider
from shepherd_core.rules.drift import FRESH_SECONDS, DriftKind
from shepherd_core.telemetry import Metric

from simulator.machines.pool import MachinePool
from simulator.providers.equinix.api import EquinixApi
from tests.chaos.crash_points import Context, Points
from tests.chaos.stage.environment import (
    API_KEY,
    INVOCATION_SECONDS,
    PREFIX,
    PUBLIC_KEY,
    SESSION_SECONDS,
    START,
    Access,
    Environment,
    equinix_settings,
    provision,
    run,
    update,
)
from tests.support.agents.signed_agent import SignedAgent, endpoint
from tests.support.bmdb.capacity import provided
from tests.support.bmdb.fleet import HOUR, PROVIDER, Fleet
from tests.support.waiting import eventually

AGENT = """\
#!/usr/bin/env python3
import os, sys

def field(number, content):
    return bytes([number << 3 | 2, len(content)]) + content

init = sys.stdin.buffer.read()
here = os.path.dirname(os.path.realpath(sys.argv[0]))
key = os.urandom(32)
with open(f"{here}/last-key", "w") as file:
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


class Arranged:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.access = Access()


class Provisioning(Arranged):
    """Free capacity, a machine limit, a vanished machine, and an intent whose capacity is used by others."""

    name = "provisioner"

    def arrange(self) -> Environment:
        environment = Environment(self._fleet, reservations=5, limit=4)
        used, free = environment.api.reservations()[:2]
        environment.api.occupy(used)
        # Two intents without a machine: an old one on capacity that is used by others, and one of a second ago.
        for capacity, age in ((used, 2 * HOUR), (free, 1)):
            self._fleet.sql(
                "INSERT INTO machine_creation_intent (machine_id, provider, capacity_id, intended_at) "
                "VALUES (:id, 'equinix', :capacity, clock_timestamp() - :age * interval '1 second')",
                id=self._fleet.bare_machine(),
                capacity=capacity,
                age=age,
            )
        environment.api.forget(environment.at_provider(self._fleet.provided_machine()))
        return environment

    def tick(self, environment: Environment, points: Context) -> Mapping[Metric, float]:
        connection = self.access.connect(environment)
        return provision(self.access.equinix(environment, points.clock), connection, points.clock, environment.limit)

    def missing(self, environment: Environment) -> list[str]:
        # The vanished machine counts towards the limit until an operator forgets it.
        return environment.unprovided(environment.limit - 1)


class OneCapacity(Provisioning):
    name = "provisioner, one capacity"

    def arrange(self) -> Environment:
        return Environment(self._fleet, reservations=1, limit=2)


class AgentStarts(Arranged):
    """Two machines that need their agent; the disk of one is full at first."""

    name = "initializer"
    at_once = 1
    _ids: dict[str, UUID]

    def __init__(self, fleet: Fleet, pool: MachinePool, private_key: str, folder: Path) -> None:
        super().__init__(fleet)
        self._pool = pool
        self._key = private_key
        self._agent = folder / "agent"
        self._agent.write_text(AGENT)

    def arrange(self) -> Environment:
        self._ids = {}
        for name in self._pool.names():
            for file in ("agent", "last-key"):
                (self._pool.disk(name) / "root" / file).unlink(missing_ok=True)
            machine_id = self._ids[name] = self._fleet.provided_machine()
            self._fleet.change(f"UPDATE machine_provided SET provider_id = '{name}' WHERE machine_id = '{machine_id}'")
        self._pool.fill_disk(self._pool.names()[0])
        return Environment(self._fleet, pool=self._pool)

    def tick(self, environment: Environment, points: Context) -> Mapping[Metric, float]:
        access = self.access
        at = {name: access.addresses.get(name, self._pool.address(name)) for name in self._pool.names()}
        listing = json.dumps([{"ID": name, "Addr": at[name]} for name in at]).encode()
        dialer = SshDialer(self._key, "root", self._pool.port, connect_timeout=5)
        loop = Initializer(
            StaticProvider(lambda: listing),
            points.stepped(dialer),
            lambda: (OperatorsAgent(str(self._agent)).fetch(), b""),
            START,
        )
        connection = access.connect(environment)
        result = run(loop, PROVIDER, connection, points.clock, self.at_once, access.machine_seconds)
        self._pool.free_disk(self._pool.names()[0])
        return result

    def missing(self, environment: Environment) -> list[str]:
        found = []
        for name, machine_id in self._ids.items():
            file = self._pool.disk(name) / "root/last-key"
            key = lookup.show_machine(environment.fleet.connection, machine_id).agent_public_key
            if key is None or not file.exists() or key != file.read_text():
                found.append(f"{name} is known by the key {key}, and not by that of its agent")
        return found


class Updates(Arranged):
    """Two machines without a recorded status, one that is steady, and one that the provider does not list."""

    name = "updater"
    _wanted: dict[UUID, str]

    def arrange(self) -> Environment:
        environment = Environment(self._fleet)
        machines = [self._fleet.started_machine() for _ in range(4)]
        devices = [environment.at_provider(machine_id) for machine_id in machines]
        self._fleet.sql(
            "UPDATE machine_provided SET provider_status = 'Running', provider_ip_address = '192.0.2.9' "
            "WHERE machine_id = :id",
            id=machines[2],
        )
        environment.api.forget(devices[3])
        self._wanted = {**dict.fromkeys(machines, "Running"), machines[3]: "Missing"}
        return environment

    def tick(self, environment: Environment, points: Context) -> Mapping[Metric, float]:
        provider, connection = self.access.equinix(environment, points.clock), self.access.connect(environment)
        return update(provider, connection, points.clock)

    def missing(self, environment: Environment) -> list[str]:
        rows = environment.fleet.sql("SELECT machine_id, provider_status, provider_ip_address FROM machine_provided")
        found = [f"{machine_id} is {status}" for machine_id, status, _ in rows if status != self._wanted[machine_id]]
        listed = [(machine_id, at) for machine_id, _, at in rows if self._wanted[machine_id] == "Running"]
        found += [f"{machine_id} is recorded at {at}" for machine_id, at in listed if at != "192.0.2.1"]
        unfinished = environment.fleet.sql("SELECT 1 FROM provider_listings WHERE listed_at IS NOT NULL") == []
        return found + (["no listing was compared completely"] if unfinished else [])


class Reports(Arranged):
    """
    One agent reports its hardware and the success of an installation; another one sends only heartbeats.

    A report without an answer is sent again in a new request, as the agent does. An
    answered request is replayed unchanged, as an attacker may do.
    """

    name = "agent_api"
    _agents: list[SignedAgent]
    _unanswered: list[tuple[SignedAgent, HeartbeatRequest]]
    _faults: list[str]

    def arrange(self) -> Environment:
        environment = Environment(self._fleet)
        self._agents = [SignedAgent(self._fleet), SignedAgent(self._fleet)]
        environment.healthy = [agent.machine_id for agent in self._agents]
        self._fleet.request_installation(self._agents[0].machine_id, 1)
        outcome = OSInstallationReport(generation=1)
        outcome.success.SetInParent()
        self._unanswered = [
            (self._agents[1], HeartbeatRequest()),
            (self._agents[0], HeartbeatRequest(hardware_report=AgentHardwareReport(report=Node(manufacturer="ours")))),
            (self._agents[0], HeartbeatRequest(installation_report=outcome)),
        ]
        self._faults = []
        return environment

    def tick(self, environment: Environment, points: Points) -> object:
        api = endpoint(environment.connect())
        for agent, message in list(self._unanswered):
            request = points.aside(functools.partial(agent.request, message))
            status = api.handle(request).status
            if status is not HTTPStatus.OK:
                continue  # a concurrent invocation sent the same; the agent repeats it
            if (agent, message) in self._unanswered:
                self._unanswered.remove((agent, message))
            if api.handle(request).status is HTTPStatus.OK:
                self._faults.append("a request was accepted twice")
        return None

    def missing(self, environment: Environment) -> list[str]:
        wanted = {
            "SELECT 1 FROM machine_hardware_report": [[1]],
            "SELECT generation, os_installation_result FROM machine_os_installation_report": [[1, "Success"]],
            "SELECT process FROM machine_need": [[None]],
        }
        found = [
            f"{query}: {rows}"
            for query in wanted
            if (rows := environment.fleet.sql(f"{query} WHERE machine_id = :id", id=self._agents[0].machine_id))
            != wanted[query]
        ]
        without_heartbeat = environment.fleet.sql(
            "SELECT machine_id FROM machine_agent_started EXCEPT SELECT machine_id FROM machine_agent_heartbeat"
        )
        found += [f"{machine_id} has no heartbeat" for (machine_id,) in without_heartbeat]
        return found + self._faults + (["a report has no answer"] if self._unanswered else [])


class Deleting(EquinixProvider):
    """The adapter with a release method: machines are released as the API does it."""

    capabilities = EquinixProvider.capabilities | {Capability.RELEASE}

    def __init__(self, api: EquinixApi, clock: Clock) -> None:
        super().__init__(equinix_settings(api), lambda: API_KEY, lambda: PUBLIC_KEY, clock)
        self._api_server = api

    def release(self, provider_id: ProviderId, deadline: Deadline) -> None:
        """Delete the device, and return when it is gone; a device that is gone, or going, counts as released."""
        url = f"{self._api_server.url}/devices/{provider_id}"
        answer = requests.delete(url, headers={"X-Auth-Token": API_KEY}, timeout=deadline.left(10))
        going = answer.status_code == 422 and "deprovisioning" in answer.text
        if answer.status_code not in (204, 404) and not going:
            raise ProviderRefused(str(answer.status_code))
        eventually(lambda: provider_id not in {device.id for device in self._api_server.snapshot()})


class Decommissioning(Arranged):
    """A machine to release, a vanished one to forget, and one with an intent to adopt."""

    name = "operator"
    _released: UUID
    _forgotten: UUID
    _adopted: ProviderId

    def arrange(self) -> Environment:
        fleet = self._fleet
        environment = Environment(fleet)
        self._released, self._forgotten = (fleet.provided_machine() for _ in range(2))
        environment.to_release[environment.at_provider(self._released)] = self._released
        environment.api.forget(environment.at_provider(self._forgotten))
        begun = fleet.bare_machine()
        fleet.sql("INSERT INTO machine_creation_intent (machine_id, provider) VALUES (:id, 'equinix')", id=begun)
        made = environment.api.add_active_device(f"{PREFIX}{begun}", [token_tag(begun)], racked=False).id
        self._adopted = ProviderId(made)
        return environment

    def tick(self, environment: Environment, points: Points) -> object:
        clock, order = points.clock, RemovalRequest("an operator", "chaos", FRESH_SECONDS)
        repair = DriftRepair(Deleting(environment.api, clock), environment.connect(), clock, 0, SESSION_SECONDS)
        deadline = Deadline(clock, INVOCATION_SECONDS)
        for action in (
            Adopt((self._adopted,), DriftKind.ADOPTABLE, 0, order.owner),
            Forget((self._forgotten,), order),
            Release((self._released,), order),
        ):
            repair.carry_out(action, action.evaluate(repair.compare(deadline)), deadline, "chaos")
        return None

    def missing(self, environment: Environment) -> list[str]:
        rows = self._fleet.sql("SELECT machine_id, how FROM machine_tombstone")
        wanted = {self._forgotten: "Forgotten", self._released: "Released"}
        found = [] if dict(rows) == wanted else [f"{rows} left, and not {wanted}"]
        found += [] if list(provided(self._fleet)) == [self._adopted] else [f"{self._adopted} is not adopted"]
        there = [each.id for each in environment.api.snapshot()]
        return found + ([] if there == [self._adopted] else [f"{there} are at the provider"])
