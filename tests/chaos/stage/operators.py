"""Commands of operators and reports of agents, to run concurrently with the loops and with each other."""

from collections.abc import Callable
from uuid import UUID

from shepherd_core.bmdb.agents import installation
from shepherd_core.bmdb.listings import decommissioning, provisioning
from shepherd_core.bmdb.listings.decommissioning import RemovalRequest
from shepherd_core.bmdb.machines import pauses
from shepherd_core.bmdb.recovery import remediation
from shepherd_core.bmdb.session import Session
from shepherd_core.domain.pb.agent_pb2 import Node
from shepherd_core.domain.pb.callback_pb2 import AgentHardwareReport, HeartbeatRequest, MetropolisInstallation
from shepherd_core.rules.drift import FRESH_SECONDS

from tests.chaos.crash_points import Points
from tests.chaos.stage.environment import SESSION_SECONDS, Environment
from tests.support.agents.signed_agent import SignedAgent, endpoint
from tests.support.bmdb.fleet import Fleet

_ORDER = RemovalRequest("me", "it is slow", FRESH_SECONDS)

_WANTED = MetropolisInstallation(image_url="https://images.example.com/metropolis.img", image_sha256=bytes(32))
_HARDWARE = HeartbeatRequest(hardware_report=AgentHardwareReport(report=Node(manufacturer="ours")))


COMMANDS = ("forget", "heartbeat", "install", "report", "resume", "retry", "unquarantine")
"""The names of what ``Operators.commands`` returns."""


class Operators:
    """Operators of a quarantined machine, paused and in backoff, and of one that vanished."""

    def __init__(self, fleet: Fleet) -> None:
        """Work in *fleet*."""
        self._fleet = fleet
        self._quarantined: UUID
        self._pause: UUID
        self._vanished: SignedAgent

    def arrange(self, environment: Environment) -> None:
        """Create the machines. The agent of the vanished one never reported, and may do so at any moment."""
        fleet = self._fleet
        machine_id = self._quarantined = fleet.unhealthy_machine()
        device = environment.machine_at_provider(machine_id)
        environment.may_be_rebooted.add(device)
        fleet.quarantine(machine_id, "test")
        fleet.sql(
            "INSERT INTO work_backoff VALUES (:id, 'ShepherdAgentStart', now() + interval '1 minute', 'test', 60)",
            id=machine_id,
        )
        self._pause = pauses.pause(fleet.connection, owner="somebody", reason="new memory", machine_id=machine_id)
        self._vanished = SignedAgent(fleet)
        environment.api.forget(environment.machine_at_provider(self._vanished.machine_id))

    def left(self) -> list[str]:
        """Return what the loops must still do for the quarantined machine, unless it is paused."""
        rows = self._fleet.sql(
            "SELECT 1 FROM machine_need n WHERE n.machine_id = :id AND n.process = 'ShepherdAgentStart' "
            "AND NOT EXISTS (SELECT 1 FROM pauses x WHERE x.machine_id = n.machine_id)",
            id=self._quarantined,
        )
        return [f"{self._quarantined} has no agent"] if rows else []

    def commands(self, environment: Environment, points: Points) -> dict[str, Callable[[], object]]:
        """Return the commands and reports by name; each may run once."""
        return {
            "unquarantine": lambda: remediation.unquarantine(
                environment.connect(), self._quarantined, reason="somebody: repaired"
            ),
            "resume": lambda: pauses.resume(environment.connect(), self._pause),
            "retry": lambda: remediation.retry(environment.connect(), self._quarantined, reason="somebody: repaired"),
            "install": lambda: self._install(environment),
            "forget": lambda: self._forget(environment, points),
            "report": lambda: self._report(environment, points, _HARDWARE),
            "heartbeat": lambda: self._report(environment, points, HeartbeatRequest()),
        }

    def _install(self, environment: Environment) -> object:
        connection = environment.connect()
        return installation.request(
            connection, self._quarantined, _WANTED, installation.load(connection, self._quarantined)
        )

    def _forget(self, environment: Environment, points: Points) -> object:
        session = Session.open(environment.connect(), points.clock, "forget", "chaos", SESSION_SECONDS)
        try:
            if provisioning.take_lock(session, "equinix") is not None:
                decommissioning.forget(session, "equinix", self._vanished.machine_id, _ORDER)
        finally:
            session.close()
        return None

    def _report(self, environment: Environment, points: Points, message: HeartbeatRequest) -> object:
        request = points.aside(lambda: self._vanished.request(message))
        return endpoint(environment.connect()).handle(request)
