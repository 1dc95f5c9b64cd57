"""What operators and agents do beside the loops, and beside each other, to the machines of a world."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shepherd_core.bmdb.agents import installation
from shepherd_core.bmdb.listings import decommissioning, provisioning
from shepherd_core.bmdb.machines import queries
from shepherd_core.bmdb.recovery import remediation
from shepherd_core.bmdb.session import Session
from shepherd_core.domain.pb.agent_pb2 import Node
from shepherd_core.domain.pb.callback_pb2 import AgentHardwareReport, HeartbeatRequest, MetropolisInstallation

from tests.chaos.stage.environment import SESSION_SECONDS
from tests.support.agents.signed_agent import SignedAgent, endpoint
from tests.support.bmdb.fleet import HOUR
from tests.support.bmdb.returnable import ORDER

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from tests.chaos.crash_points import Points
    from tests.chaos.stage.environment import World
    from tests.support.bmdb.fleet import Fleet

_WANTED = MetropolisInstallation(image_url="https://images.example.com/metropolis.img", image_sha256=bytes(32))
_HARDWARE = HeartbeatRequest(hardware_report=AgentHardwareReport(report=Node(manufacturer="ours")))


DEEDS = ("forget", "heartbeat", "install", "report", "resume", "retry", "unquarantine")
"""What ``Operators`` do, by name."""


class Operators:
    """One machine that recovery gave up on, paused and in backoff, and one that the provider has no more."""

    def __init__(self, fleet: Fleet) -> None:
        """Work in *fleet*."""
        self._fleet = fleet
        self._given_up: UUID
        self._pause: UUID
        self._vanished: SignedAgent

    def arrange(self, world: World) -> None:
        """Plant the machines. The vanished one's agent never reported, and may do so any moment."""
        fleet = self._fleet
        machine_id = self._given_up = fleet.unhealthy_machine()
        device = world.machine_at_provider(machine_id)
        world.may_be_rebooted.add(device)
        fleet.change(machine_id, f"INSERT INTO machine_quarantine VALUES ('{machine_id}', now(), 'planted', '')")
        fleet.sql(
            "INSERT INTO work_backoff VALUES (:id, 'ShepherdAgentStart', now() + interval '1 minute', 'planted', 60)",
            id=machine_id,
        )
        self._pause = queries.pause(fleet.connection, owner="somebody", reason="new memory", machine_id=machine_id)
        self._vanished = SignedAgent(fleet)
        world.api.forget(world.machine_at_provider(self._vanished.machine_id))

    def left(self) -> list[str]:
        """Return what is still to be done for the one that was given up, if nobody keeps the loops from it any more."""
        rows = self._fleet.sql(
            "SELECT 1 FROM machine_need n WHERE n.machine_id = :id AND n.process = 'ShepherdAgentStart' "
            "AND NOT EXISTS (SELECT 1 FROM pauses x WHERE x.machine_id = n.machine_id)",
            id=self._given_up,
        )
        return [f"{self._given_up} has no agent"] if rows else []

    def deeds(self, world: World, points: Points) -> dict[str, Callable[[], object]]:
        """Return what may be done, by name; each once."""
        return {
            "unquarantine": lambda: remediation.unquarantine(
                world.connect(), self._given_up, reason="somebody: mended", grace_seconds=HOUR
            ),
            "resume": lambda: queries.resume(world.connect(), self._pause),
            "retry": lambda: remediation.retry(world.connect(), self._given_up, reason="somebody: mended"),
            "install": lambda: self._install(world),
            "forget": lambda: self._forget(world, points),
            "report": lambda: self._report(world, points, _HARDWARE),
            "heartbeat": lambda: self._report(world, points, HeartbeatRequest()),
        }

    def _install(self, world: World) -> object:
        connection = world.connect()
        return installation.request(connection, self._given_up, _WANTED, installation.load(connection, self._given_up))

    def _forget(self, world: World, points: Points) -> object:
        session = Session.open(world.connect(), points.clock, "forget", "chaos", SESSION_SECONDS)
        try:
            if provisioning.take_lock(session, "equinix") is not None:
                decommissioning.forget(session, "equinix", self._vanished.machine_id, ORDER)
        finally:
            session.close()
        return None

    def _report(self, world: World, points: Points, message: HeartbeatRequest) -> object:
        request = points.aside(lambda: self._vanished.request(message))
        return endpoint(world.connect()).handle(request)
