"""Scenarios that write records and touch no machine: the Updater, the agent API, an installation request."""

import functools
from collections.abc import Mapping
from http import HTTPStatus
from uuid import UUID

from shepherd_core.agent.endpoint import AgentRequest
from shepherd_core.domain.clock import SystemClock
from shepherd_core.domain.pb.agent_pb2 import Node
from shepherd_core.domain.pb.callback_pb2 import AgentHardwareReport, HeartbeatRequest, OSInstallationReport
from shepherd_core.telemetry import Metric

from tests.chaos.crash_points import Context, Points
from tests.chaos.stage.access import Access, update
from tests.chaos.stage.environment import Environment
from tests.support.agents.signed_agent import SignedAgent, endpoint
from tests.support.bmdb.fleet import HOUR, Fleet
from tests.support.command_line import CommandLine


class Updates:
    """Two machines without a recorded status, one that is steady, and one that the provider does not list."""

    name = "updater"

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._wanted: dict[UUID, str] = {}
        self.access = Access()

    def arrange(self) -> Environment:
        environment = Environment(self._fleet, SystemClock())
        machines = [self._fleet.started_machine() for _ in range(4)]
        self._fleet.sql("UPDATE machines SET machine_created_at = now() - interval '1 day'")
        devices = [environment.machine_at_provider(machine_id) for machine_id in machines]
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
        return update(provider, connection, points.clock, HOUR)

    def missing(self, environment: Environment) -> list[str]:
        rows = environment.fleet.sql("SELECT machine_id, provider_status, provider_ip_address FROM machine_provided")
        found = [f"{machine_id} is {status}" for machine_id, status, _ in rows if status != self._wanted[machine_id]]
        listed = [(machine_id, at) for machine_id, _, at in rows if self._wanted[machine_id] == "Running"]
        found += [f"{machine_id} is recorded at {at}" for machine_id, at in listed if at != "192.0.2.1"]
        unfinished = environment.fleet.sql("SELECT 1 FROM provider_listings WHERE listed_at IS NOT NULL") == []
        return found + (["no listing was compared completely"] if unfinished else [])


class Reports:
    """
    One agent reports its hardware and the success of an installation; another one sends only heartbeats.

    A report without an answer is sent again in a new request, as the agent does. An
    answered request is replayed unchanged, as an attacker may do.
    """

    name = "agent_api"

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._agents: list[SignedAgent] = []
        self._unanswered: list[tuple[SignedAgent, HeartbeatRequest]] = []
        self._faults: list[str] = []

    def arrange(self) -> Environment:
        environment = Environment(self._fleet, SystemClock())
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

    def request(self) -> AgentRequest:
        return next(agent.request(message) for agent, message in self._unanswered[1:])

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
        first = self._agents[0].machine_id
        wanted = {
            "hardware report": ("SELECT 1 FROM machine_hardware_report WHERE machine_id = :id", [[1]]),
            "outcome": (
                "SELECT generation, os_installation_result FROM machine_os_installation_report WHERE machine_id = :id",
                [[1, "Success"]],
            ),
            "end of what it needs": ("SELECT process FROM machine_need WHERE machine_id = :id", [[None]]),
        }
        found = [
            f"the {what} is missing" for what, (q, rows) in wanted.items() if environment.fleet.sql(q, id=first) != rows
        ]
        without_heartbeat = environment.fleet.sql(
            "SELECT machine_id FROM machine_agent_started EXCEPT SELECT machine_id FROM machine_agent_heartbeat"
        )
        found += [f"{machine_id} has no heartbeat" for (machine_id,) in without_heartbeat]
        return found + self._faults + (["a report has no answer"] if self._unanswered else [])


class Installing:
    """An operator requests an installation, and repeats the command when no answer came."""

    name = "install"

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._machine: UUID | None = None

    def arrange(self) -> Environment:
        environment = Environment(self._fleet, SystemClock())
        self._machine = self._fleet.started_machine()
        return environment

    def tick(self, environment: Environment, points: Points) -> object:
        return CommandLine(environment.fleet.settings)(
            *("machine", "install", str(self._machine), "--yes"),
            *("--image", "https://images.example.com/metropolis.img", "--sha256", "0f" * 32),
        )

    def missing(self, environment: Environment) -> list[str]:
        rows = environment.fleet.sql("SELECT machine_id, generation FROM machine_os_installation_request")
        return [] if rows == [[self._machine, 1]] else [f"expected one installation request, got {rows}"]
