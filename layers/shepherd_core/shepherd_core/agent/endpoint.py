"""
The endpoint that agents report to: who sent a request is verified, and what it says recorded and answered.

An agent signs each request with the key that it named at takeover. Whatever is
wrong with machine, key, signature or time gets one answer, after the same work,
so that nobody learns from it which machines there are; the log says what it
was. What is wrong with a body is told, so that an agent can leave it out.

Keys are remembered, so that a heartbeat usually costs one round trip. Nothing is
believed for that: the statement that records a heartbeat compares the key with
the one on record. If it does not take it, or the remembered key does not fit
the signature, the BMDB is asked, as for a machine that was never heard of.
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
from shepherd_core.bmdb.agents import reports
from shepherd_core.domain.errors import BmdbError
from shepherd_core.domain.pb.callback_pb2 import HeartbeatRequest, HeartbeatResponse, OSInstallationRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.domain.pb.callback_pb2 import AgentHardwareReport, OSInstallationReport

TIME_HEADER, SIGNATURE_HEADER = "shepherd-time", "shepherd-signature"

_DOMAIN = b"shepherd-agent-v1"
_SIGNATURE_BYTES = 64
_TIME_DIGITS = 15  # the year 33658
_LARGEST = 2**63 - 1
_REMEMBERED = 100_000
"""Machines whose key is remembered; 30 MB or so."""


@dataclass(frozen=True, slots=True)
class Request:
    """What arrived."""

    method: str
    path: str
    """As the client requested it, with everything that stands before the last part."""
    headers: Mapping[str, str]
    """By their names in lower case."""
    body: bytes
    received_at: int
    """When it arrived, in milliseconds since the Unix epoch."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent back: a HeartbeatResponse if the status is 200, else a line of text."""

    status: HTTPStatus
    time: int
    """For the header Shepherd-Time: milliseconds since the Unix epoch, by the database if it was asked."""
    body: bytes

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers by their names in lower case."""
        taken = self.status is HTTPStatus.OK
        return {
            "content-type": "application/x-protobuf" if taken else "text/plain; charset=utf-8",
            TIME_HEADER: str(self.time),
            **({"allow": "POST"} if self.status is HTTPStatus.METHOD_NOT_ALLOWED else {}),
        }


@dataclass(frozen=True, slots=True)
class _Signed:
    """What proves who sent a request."""

    signature: bytes
    message: bytes

    def by(self, public_key: bytes) -> bool:
        try:
            VerifyKey(public_key).verify(self.message, self.signature)
        except BadSignatureError:
            return False
        return True


class _Refused(Exception):
    """Why a request is not taken, for the agent and for the log. Never leaves this module."""

    def __init__(self, status: HTTPStatus, text: str, why: str = "", time: int | None = None) -> None:
        self.status = status
        self.text = text
        self.why = why or text
        self.time = time


class AgentApi:
    """The endpoint. Belongs to the thread that owns *connection*: one request at a time."""

    def __init__(self, connection: Connection, *, max_body_bytes: int, stale_seconds: float) -> None:
        """Take bodies of *max_body_bytes* at most, signed no more than *stale_seconds* from now by the database."""
        self.connection = connection
        self._max_body_bytes = max_body_bytes
        self._stale_seconds = stale_seconds
        self._keys: dict[UUID, bytes] = {}
        # Stands in where there is no key, so that the work is the same. Nobody has its private half.
        self._nobodys_key = SigningKey.generate().verify_key.encode()

    def handle(self, request: Request) -> Answer:
        """
        Record what *request* reports, and return what to answer; that the BMDB is away is an answer too.

        A plain heartbeat is one round trip, two if its key is not remembered,
        and writes no log. May run twice: the second is a replay, and refused.

        Raises:
            SecretError, SourceError: what it takes to connect to the BMDB cannot be had.
        """
        machine_id: UUID | None = None
        try:
            self._check(request)
            machine_id, message = _decoded(request.body)
            heartbeat, signed = _heartbeat(machine_id, message, request)
            heard = _accepted(self._heard(heartbeat, signed))
        except _Refused as refusal:
            # One short line: how many there are is up to whoever sends them.
            telemetry.warning("a request was refused", status=refusal.status, machine_id=machine_id, why=refusal.why)
            return Answer(refusal.status, refusal.time or request.received_at, f"{refusal.text}\n".encode())
        except BmdbError as error:
            telemetry.error("a request could not be taken", machine_id=machine_id, cause=error)
            return Answer(HTTPStatus.SERVICE_UNAVAILABLE, request.received_at, b"try again later\n")
        return Answer(HTTPStatus.OK, heard.time, _response(heard))

    def _check(self, request: Request) -> None:
        """Refuse what needs no look into the body."""
        if not request.path.endswith("/heartbeat"):
            raise _Refused(HTTPStatus.NOT_FOUND, "there is nothing here")
        if request.method != "POST":
            raise _Refused(HTTPStatus.METHOD_NOT_ALLOWED, "only POST is allowed")
        if len(request.body) > self._max_body_bytes:
            raise _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is longer than {self._max_body_bytes} bytes")

    def _heard(self, heartbeat: reports.Heartbeat, signed: _Signed) -> reports.Heard:
        """Return what the BMDB says to *heartbeat*, if it is the agent's."""
        machine_id = heartbeat.machine_id
        key = self._keys.get(machine_id, self._nobodys_key)
        if signed.by(key) and (heard := self._taken(heartbeat, key)) is not None:
            return heard
        agent = reports.reporting_agent(self.connection, machine_id)
        if not signed.by(agent.public_key or self._nobodys_key):
            raise _unauthorized("the signature is not by its agent" if agent.public_key else "it has no agent", agent)
        # With the key that was remembered it was tried; another attempt would fail as well.
        untried = agent.public_key if agent.public_key != key else None
        if untried is not None and (heard := self._taken(heartbeat, untried)) is not None:
            if len(self._keys) >= _REMEMBERED:
                self._keys.clear()
            self._keys[machine_id] = untried
            return heard
        raise _unauthorized(self._why_not_taken(heartbeat, agent), agent)

    def _taken(self, heartbeat: reports.Heartbeat, key: bytes) -> reports.Heard | None:
        return reports.take(self.connection, heartbeat, key, self._stale_seconds)

    def _why_not_taken(self, heartbeat: reports.Heartbeat, agent: reports.Agent) -> str:
        """Return why a heartbeat was not recorded whose signature is right."""
        if not heartbeat.signed_at:
            return "it does not say when it was signed"
        early = agent.time - heartbeat.signed_at
        if abs(early) > self._stale_seconds * 1000:
            return f"it was signed {abs(early) / 1000:.0f} s {'ago' if early > 0 else 'ahead'}"
        if agent.signed_at is not None and heartbeat.signed_at <= agent.signed_at:
            return "it is not later than the last one"
        return "its agent is another one by now"


def _accepted(heard: reports.Heard) -> reports.Heard:
    if heard.refused:
        text = "the generation of the installation report goes backwards, or was never asked for"
        raise _Refused(HTTPStatus.BAD_REQUEST, text, time=heard.time)
    return heard


def _unauthorized(why: str, agent: reports.Agent) -> _Refused:
    return _Refused(HTTPStatus.UNAUTHORIZED, "not authorized", why, agent.time)


def _decoded(body: bytes) -> tuple[UUID, HeartbeatRequest]:
    try:
        message = HeartbeatRequest.FromString(body)
    except DecodeError as error:
        raise _Refused(HTTPStatus.BAD_REQUEST, "the body is not a HeartbeatRequest") from error
    try:
        return UUID(message.machine_id), message
    except ValueError as error:
        raise _Refused(HTTPStatus.BAD_REQUEST, "the machine_id is not a UUID") from error


def _heartbeat(machine_id: UUID, message: HeartbeatRequest, request: Request) -> tuple[reports.Heartbeat, _Signed]:
    """Return what *request* reports, and what proves it."""
    time = request.headers.get(TIME_HEADER, "")
    readable = time.isascii() and time.isdigit() and len(time) <= _TIME_DIGITS
    heartbeat = reports.Heartbeat(
        machine_id=machine_id,
        signed_at=int(time) if readable else 0,
        hardware=_hardware(message.hardware_report) if message.HasField("hardware_report") else None,
        installation=_installation(message.installation_report) if message.HasField("installation_report") else None,
    )
    try:
        signature = b64decode(request.headers.get(SIGNATURE_HEADER, ""), validate=True)
    except ValueError:
        signature = b""
    parts = (request.method, request.path, time)
    signed = b"\n".join((_DOMAIN, *(part.encode(errors="surrogatepass") for part in parts), request.body))
    # What is no signature is verified like one that is wrong.
    return heartbeat, _Signed(signature if len(signature) == _SIGNATURE_BYTES else bytes(_SIGNATURE_BYTES), signed)


def _hardware(report: AgentHardwareReport) -> reports.Hardware:
    node = report.report
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


def _response(heard: reports.Heard) -> bytes:
    """Return the HeartbeatResponse."""
    if heard.request is None:
        return b""
    generation, raw = heard.request
    wanted = OSInstallationRequest.FromString(raw)
    wanted.generation = generation
    return HeartbeatResponse(installation_request=wanted).SerializeToString()
