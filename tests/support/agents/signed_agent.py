"""An agent in a test's hand: it signs what the test says, with code that is neither the agent's nor the endpoint's."""

from base64 import b64encode
from uuid import UUID

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from shepherd_core.agent.endpoint import AgentApi, AgentRequest
from shepherd_core.agent.judgement import Limits
from shepherd_core.bmdb.connection import Connection
from shepherd_core.domain.pb.callback_pb2 import HeartbeatRequest, OSInstallationReport

from tests.support.bmdb.fleet import Fleet

RECEIVED_AT = 12_345
"""What the requests say about their arrival; no database's time is like it."""
MAX_BODY_BYTES = 65_536
ADDRESS = "192.0.2.13"


def endpoint(
    connection: Connection, *, report_seconds: float = 0, hardware_seconds: float = 0, interval: int = 0
) -> AgentApi:
    """Return an endpoint as a process of its own would have it; without limits to how often agents report."""
    return AgentApi(connection, Limits(report_seconds, hardware_seconds, interval))


def database_time(fleet: Fleet) -> int:
    return int(fleet.sql("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")[0][0])


class SignedAgent:
    """The agent of a machine, whose key is on record unless the test changes that."""

    def __init__(self, fleet: Fleet, machine_id: UUID | None = None) -> None:
        """Plant a machine that this agent was just started on; or be started on *machine_id*, with a new key."""
        self._fleet = fleet
        self._key = Ed25519PrivateKey.generate()
        self._signed_at = 0
        self.machine_id = machine_id or fleet.started_machine()
        fleet.change(
            f"INSERT INTO machine_agent_started VALUES ('{self.machine_id}', clock_timestamp(), "
            f"'\\x{self.key.hex()}') ON CONFLICT (machine_id) DO UPDATE "
            "SET agent_started_at = excluded.agent_started_at, agent_public_key = excluded.agent_public_key",
            f"DELETE FROM machine_agent_heartbeat WHERE machine_id = '{self.machine_id}'",
        )

    @property
    def key(self) -> bytes:
        return self._key.public_key().public_bytes_raw()

    def request(
        self,
        message: HeartbeatRequest | bytes | None = None,
        *,
        at: int | str | None = None,
        path: str = "/heartbeat",
        domain: bytes = b"shepherd-agent-v1",
        machine_id: UUID | None = None,
        received_at: int = RECEIVED_AT,
    ) -> AgentRequest:
        """Return a signed request, by default a plain heartbeat; *at* is its time, *machine_id* whom it is from."""
        if at is None:
            self._signed_at = at = max(self._signed_at + 1, database_time(self._fleet))
        message = HeartbeatRequest() if message is None else message
        if isinstance(message, HeartbeatRequest):
            named = HeartbeatRequest(machine_id=str(machine_id or self.machine_id))
            named.MergeFrom(message)
            message = named.SerializeToString()
        signed = b"\n".join((domain, b"POST", path.encode(), str(at).encode(), message))
        headers = {
            "shepherd-machine": str(machine_id or self.machine_id),
            "shepherd-time": str(at),
            "shepherd-signature": b64encode(self._key.sign(signed)).decode(),
        }
        return AgentRequest("POST", path, headers, message, received_at, ADDRESS)

    def outcome(self, generation: int, error: str | None = None) -> AgentRequest:
        report = OSInstallationReport(generation=generation)
        if error is None:
            report.success.SetInParent()
        else:
            report.error.error = error
        return self.request(HeartbeatRequest(installation_report=report))
