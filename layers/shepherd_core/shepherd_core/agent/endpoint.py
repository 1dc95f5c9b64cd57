"""
The agent API: verifies who sent a request, records the report and answers it.

An agent signs each request with the key that it returned at takeover, and names
its machine in a header. A wrong machine, key, signature or time gets the same
answer after the same work, so that the answer does not reveal which machines
exist; the log has the reason. Nothing of a body is decoded before its signature
has been verified. Faults in a body are named in the answer, so that an agent can
leave that part out.

Keys are cached, so that a heartbeat usually costs one round trip. A cached key
is not trusted: the statement that records a heartbeat compares it with the key
on record. If the statement refuses it, or the cached key does not fit the
signature, the BMDB is asked, as for an unknown machine.
"""

from __future__ import annotations

from base64 import b64decode
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING
from uuid import UUID

from google.protobuf.message import DecodeError
from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

from shepherd_core import telemetry
from shepherd_core.agent.new_endpoint import NewEndpoint
from shepherd_core.bmdb.agents import reports
from shepherd_core.domain.errors import BmdbError
from shepherd_core.domain.pb.callback_pb2 import HeartbeatRequest, HeartbeatResponse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.domain.pb.callback_pb2 import AgentHardwareReport, OSInstallationReport

MACHINE_HEADER, TIME_HEADER, SIGNATURE_HEADER = "shepherd-machine", "shepherd-time", "shepherd-signature"

_DOMAIN = b"shepherd-agent-v1"
_SIGNATURE_BYTES = 64
_TIME_DIGITS = 15  # the year 33658
_LONGEST_ADDRESS = 64
_LARGEST = 2**63 - 1
_CACHED_KEYS = 100_000
"""Machines whose key is cached; about 30 MB."""
_MOST_PARTS = 512
"""Processors, disks, network ports and warnings of a hardware report. A large server has some 200 disks."""


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """A request as it arrived."""

    method: str
    path: str
    """As the client requested it, with all parts before the last."""
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes
    received_at: int
    """When it arrived, in milliseconds since the Unix epoch."""
    address: str = ""
    """The address that it came from, for the log."""


@dataclass(frozen=True, slots=True)
class AgentResponse:
    """The response: a HeartbeatResponse if the status is 200, else a line of text."""

    status: HTTPStatus
    time: int
    """Milliseconds since the Unix epoch, by the database's clock if it was asked. A header unless the status is 200."""
    body: bytes

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers by lower-case name."""
        if self.status is HTTPStatus.OK:
            return {"content-type": "application/x-protobuf"}  # its bytes are paid for with every heartbeat
        return {
            "content-type": "text/plain; charset=utf-8",
            TIME_HEADER: str(self.time),
            **({"allow": "POST"} if self.status is HTTPStatus.METHOD_NOT_ALLOWED else {}),
        }


@dataclass(frozen=True, slots=True)
class _Signed:
    """The signature of a request, and the message that it signs."""

    signature: bytes
    message: bytes

    def by(self, public_key: bytes) -> bool:
        try:
            VerifyKey(public_key).verify(self.message, self.signature)
        except BadSignatureError:
            return False
        return True


@dataclass(slots=True)
class _Known:
    """What is cached about the agent of a machine. Times are in milliseconds since the Unix epoch."""

    key: bytes
    reported_at: int = 0
    hardware_at: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request, or one agent, may ask for."""

    body_bytes: int
    stale_seconds: float
    """By how much the time of a signature may differ from the database's clock."""
    report_seconds: float
    """The least time between two reports of an agent, as far as this process knows; 0: none."""
    hardware_seconds: float
    """The same between two hardware reports."""


class _Refused(Exception):
    """A request is refused, with a text for the agent and a reason for the log. Never leaves this module."""

    def __init__(self, status: HTTPStatus, text: str, why: str = "", time: int | None = None) -> None:
        self.status = status
        self.text = text
        self.why = why or text
        self.time = time


class AgentApi:
    """The agent API. Belongs to the thread that owns *connection*: one request at a time."""

    def __init__(self, connection: Connection, limits: Limits, new_endpoint: str | None = None) -> None:
        """Make the API; with *new_endpoint*, agents that report at another one are told of it."""
        self.connection = connection
        self._limits = limits
        self._new_endpoint = NewEndpoint(new_endpoint)
        self._known: dict[UUID, _Known] = {}
        # Used if a machine has no key, so that the work is the same. Its private half is discarded.
        self._dummy_key = SigningKey.generate().verify_key.encode()

    def close(self) -> None:
        """Close the connection to the BMDB."""
        self.connection.close()

    def handle(self, request: AgentRequest) -> AgentResponse:
        """
        Record the report in *request* and return the response, also if the BMDB is down.

        A plain heartbeat costs one round trip, two if its key is not cached, and
        writes no log. May run twice: the second is a replay, and refused.

        Raises:
            SecretError, SourceError: a secret or document for the connection to the BMDB cannot be read.
        """
        machine_id: UUID | None = None
        try:
            self._check(request)
            machine_id = _machine_id(request)
            reply = _accepted(self._record(machine_id, request))
        except _Refused as refusal:
            # One short line: a sender can cause any number of them.
            telemetry.warning(
                "request refused",
                status=refusal.status,
                machine_id=machine_id,
                address=request.address[:_LONGEST_ADDRESS],
                why=refusal.why,
            )
            return AgentResponse(refusal.status, refusal.time or request.received_at, f"{refusal.text}\n".encode())
        except BmdbError as error:
            telemetry.error("request failed: the BMDB cannot be used", machine_id=machine_id, cause=error)
            return AgentResponse(HTTPStatus.SERVICE_UNAVAILABLE, request.received_at, b"try again later\n")
        return AgentResponse(HTTPStatus.OK, reply.time, _response(reply, self._new_endpoint.told(machine_id, request)))

    def _check(self, request: AgentRequest) -> None:
        """Refuse requests that are wrong whoever sent them."""
        if not request.path.endswith("/heartbeat"):
            raise _Refused(HTTPStatus.NOT_FOUND, "not found")
        if request.method != "POST":
            raise _Refused(HTTPStatus.METHOD_NOT_ALLOWED, "only POST is allowed")
        longest = self._limits.body_bytes
        if len(request.body) > longest:
            raise _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is longer than {longest} bytes")

    def _record(self, machine_id: UUID, request: AgentRequest) -> reports.HeartbeatReply:
        """Record the report if the machine's agent signed it, and return the BMDB's answer."""
        signed = _signed(request)
        known = self._known.get(machine_id)
        heartbeat = None
        if signed.by(known.key if known else self._dummy_key) and known:
            heartbeat = _heartbeat(machine_id, request)
            self._check_pace(known, heartbeat, request.received_at)
            if (reply := self._try(heartbeat, known, request.received_at)) is not None:
                return reply
        agent = reports.reporting_agent(self.connection, machine_id)
        if not signed.by(agent.public_key or self._dummy_key) or agent.public_key is None:
            raise _unauthorized("the signature is not by its agent" if agent.public_key else "it has no agent", agent)
        heartbeat = heartbeat or _heartbeat(machine_id, request)
        # The cached key was tried above; it would fail again.
        if known is None or agent.public_key != known.key:
            new = _Known(agent.public_key)
            if (reply := self._try(heartbeat, new, request.received_at)) is not None:
                if len(self._known) >= _CACHED_KEYS:
                    self._known.clear()
                self._known[machine_id] = new
                return reply
        raise _unauthorized(self._why_not_accepted(heartbeat, agent), agent)

    def _check_pace(self, known: _Known, heartbeat: reports.Heartbeat, now: int) -> None:
        """Refuse an agent that reports too often: a machine in wrong hands could fill the database."""
        times = [(known.reported_at, self._limits.report_seconds, "reports")]
        if heartbeat.hardware is not None:
            times.append((known.hardware_at, self._limits.hardware_seconds, "hardware reports"))
        for last, seconds, what in times:
            if 0 <= now - last < seconds * 1000:
                raise _Refused(HTTPStatus.TOO_MANY_REQUESTS, f"{what} come more often than every {seconds:g} s")

    def _try(self, heartbeat: reports.Heartbeat, agent: _Known, now: int) -> reports.HeartbeatReply | None:
        reply = reports.accept_heartbeat(self.connection, heartbeat, agent.key, self._limits.stale_seconds)
        if reply is not None:
            agent.reported_at = now
            agent.hardware_at = now if heartbeat.hardware is not None else agent.hardware_at
        return reply

    def _why_not_accepted(self, heartbeat: reports.Heartbeat, agent: reports.Agent) -> str:
        """Return why a heartbeat with a valid signature was not recorded."""
        if not heartbeat.signed_at:
            return "it has no signing time"
        early = agent.time - heartbeat.signed_at
        if abs(early) > self._limits.stale_seconds * 1000:
            return f"it was signed {abs(early) / 1000:.0f} s {'ago' if early > 0 else 'ahead'}"
        if agent.signed_at is not None and heartbeat.signed_at <= agent.signed_at:
            return "it is not later than the last one"
        return "its agent was replaced"


def _accepted(report: reports.HeartbeatReply) -> reports.HeartbeatReply:
    if report.refused:
        text = "the generation of the installation report goes backwards, or was never asked for"
        raise _Refused(HTTPStatus.BAD_REQUEST, text, time=report.time)
    return report


def _unauthorized(why: str, agent: reports.Agent) -> _Refused:
    return _Refused(HTTPStatus.UNAUTHORIZED, "not authorized", why, agent.time)


def _machine_id(request: AgentRequest) -> UUID:
    try:
        return UUID(request.headers.get(MACHINE_HEADER, ""))
    except ValueError as error:
        raise _Refused(HTTPStatus.BAD_REQUEST, "the header Shepherd-Machine is not a UUID") from error


def _signed(request: AgentRequest) -> _Signed:
    try:
        signature = b64decode(request.headers.get(SIGNATURE_HEADER, ""), validate=True)
    except ValueError:
        signature = b""
    parts = (request.method, request.path, request.headers.get(TIME_HEADER, ""))
    signed = b"\n".join((_DOMAIN, *(part.encode(errors="surrogatepass") for part in parts), request.body))
    # A malformed signature takes the same time to verify as a wrong one.
    return _Signed(signature if len(signature) == _SIGNATURE_BYTES else bytes(_SIGNATURE_BYTES), signed)


def _heartbeat(machine_id: UUID, request: AgentRequest) -> reports.Heartbeat:
    """Return the heartbeat in *request*, whose signature has been verified."""
    try:
        message = HeartbeatRequest.FromString(request.body)
    except DecodeError as error:
        raise _Refused(HTTPStatus.BAD_REQUEST, "the body is not a HeartbeatRequest") from error
    if message.machine_id != str(machine_id):
        raise _Refused(HTTPStatus.BAD_REQUEST, "the machine_id is not that of the header Shepherd-Machine")
    time = request.headers.get(TIME_HEADER, "")
    readable = time.isascii() and time.isdigit() and len(time) <= _TIME_DIGITS
    return reports.Heartbeat(
        machine_id=machine_id,
        signed_at=int(time) if readable else 0,
        hardware=_hardware(message.hardware_report) if message.HasField("hardware_report") else None,
        installation=_installation(message.installation_report) if message.HasField("installation_report") else None,
    )


def _hardware(report: AgentHardwareReport) -> reports.Hardware:
    node = report.report
    parts = len(node.cpu) + len(node.block_device) + len(node.network_interface) + len(report.warning)
    if parts > _MOST_PARTS:
        raise _Refused(HTTPStatus.BAD_REQUEST, f"the hardware report has {parts} parts, more than {_MOST_PARTS}")
    sums = {
        "hardware_threads": sum(cpu.hardware_threads for cpu in node.cpu),
        "memory_bytes": node.memory_installed_bytes,
        "disks": len(node.block_device),
        "disk_bytes": sum(disk.capacity_bytes for disk in node.block_device),
    }
    for name, value in sums.items():
        if not 0 <= value <= _LARGEST:
            raise _Refused(HTTPStatus.BAD_REQUEST, f"the {name} of the hardware report are {value}")
    return reports.Hardware(raw=report.SerializeToString(), **sums)


def _installation(report: OSInstallationReport) -> reports.Installation:
    outcome = report.WhichOneof("result")
    if outcome is None:
        raise _Refused(HTTPStatus.BAD_REQUEST, "the installation report has no result")
    return reports.Installation(
        raw=report.SerializeToString(),
        generation=report.generation,
        result="Success" if outcome == "success" else "Error",
    )


def _response(report: reports.HeartbeatReply, endpoint: str) -> bytes:
    """Return the HeartbeatResponse."""
    response = HeartbeatResponse(endpoint=endpoint)
    if report.request is not None:
        generation, raw = report.request
        response.installation_request.MergeFromString(raw)
        response.installation_request.generation = generation
    return response.SerializeToString()
