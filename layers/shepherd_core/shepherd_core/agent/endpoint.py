"""
The agent API: takes heartbeats, and answers them.

An agent signs each request with the key that it returned at takeover, and names
its machine in a header. ``judgement`` says who is believed.
"""

from __future__ import annotations

from base64 import b64decode
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from shepherd_core import telemetry
from shepherd_core.agent.heartbeats import HeartbeatRefused, SignedBody
from shepherd_core.agent.judgement import Judgement
from shepherd_core.domain.errors.bmdb import BmdbError
from shepherd_core.domain.pb.callback_pb2 import HeartbeatResponse

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from shepherd_core.agent.judgement import Limits
    from shepherd_core.bmdb.connection import Connection

MACHINE_HEADER, TIME_HEADER, SIGNATURE_HEADER = "shepherd-machine", "shepherd-time", "shepherd-signature"

_RETRY_SECONDS = "10"
_LONGEST_ADDRESS = 64
_MINUTE = 60_000
_REFUSALS_A_MINUTE = 1_000
"""Lines in the log at most, whatever strangers send: a line costs more than the request."""


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """A request as it arrived."""

    method: str
    path: str
    """The whole path, as the client requested it."""
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes
    received_at: int
    """When it arrived, in milliseconds since the Unix epoch."""
    address: str = ""
    """The address that it came from, for the log."""


@dataclass(frozen=True, slots=True)
class AgentResponse:
    """The response to a request. The body is a HeartbeatResponse if the status is 200, else a line of text."""

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
            **({"retry-after": _RETRY_SECONDS} if self.status is HTTPStatus.SERVICE_UNAVAILABLE else {}),
        }


class AgentApi:
    """The agent API. Belongs to the thread that owns *connection*: one request at a time."""

    def __init__(self, connection: Connection, limits: Limits) -> None:
        self.connection = connection
        self._limits = limits
        self._judgement = Judgement(connection, limits)
        self._minute = 0
        self._told: set[tuple[UUID | str, str]] = set()
        """Whose refusals of this minute are in the log, and why."""

    def close(self) -> None:
        """Close the connection to the BMDB."""
        self.connection.close()

    def handle(self, request: AgentRequest) -> AgentResponse:
        """
        Record the reports in *request* and return the response, also if the BMDB is down.

        A plain heartbeat costs one round trip, two if its key is not cached, and writes
        no log. May run twice: the second is a replay, and refused.

        Raises:
            SecretError, SourceError: a secret or document for the connection to the BMDB cannot be read.
        """
        machine_id = None
        try:
            self._check(request)
            signed = _signed(request)
            machine_id = signed.machine_id()
            outcome = self._judgement.judge(machine_id, signed, request.received_at)
        except HeartbeatRefused as refusal:
            self._tell(machine_id, request, refusal)
            time = refusal.time or request.received_at
            return AgentResponse(refusal.status, time, f"{refusal.text}\n".encode())
        except BmdbError as error:
            telemetry.error("request failed: the BMDB cannot be used", machine_id=machine_id, cause=error)
            return AgentResponse(HTTPStatus.SERVICE_UNAVAILABLE, request.received_at, b"try again later\n")
        response = HeartbeatResponse(report_interval_seconds=self._limits.interval_seconds)
        if outcome.request is not None and outcome.generation is not None:
            response.installation_request.MergeFromString(outcome.request)
            response.installation_request.generation = outcome.generation
        return AgentResponse(HTTPStatus.OK, outcome.time, response.SerializeToString())

    def _tell(self, machine_id: UUID | None, request: AgentRequest, refusal: HeartbeatRefused) -> None:
        """Log a refusal, once a minute for each machine (each address that names none) and reason."""
        address, minute = request.address[:_LONGEST_ADDRESS], request.received_at // _MINUTE
        if minute != self._minute:
            self._minute, self._told = minute, set()
        told = machine_id or address, refusal.why
        if told in self._told or len(self._told) == _REFUSALS_A_MINUTE:
            return
        self._told.add(told)
        telemetry.warning(
            "request refused", status=refusal.status, machine_id=machine_id, why=refusal.why, address=address
        )

    def _check(self, request: AgentRequest) -> None:
        """Refuse requests that are wrong, no matter who sent them."""
        prefix = request.path.removesuffix("/heartbeat")
        if prefix == request.path or self._limits.path_prefix not in {None, prefix}:
            raise HeartbeatRefused(HTTPStatus.NOT_FOUND, "not found")
        if request.method != "POST":
            raise HeartbeatRefused(HTTPStatus.METHOD_NOT_ALLOWED, "only POST is allowed")
        if request.headers.get("content-encoding", "identity") != "identity":
            raise HeartbeatRefused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body must not be compressed")
        if len(request.body) > self._limits.body_bytes:
            text = f"the body is longer than {self._limits.body_bytes} bytes"
            raise HeartbeatRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)


def _signed(request: AgentRequest) -> SignedBody:
    try:
        signature = b64decode(request.headers.get(SIGNATURE_HEADER, ""), validate=True)
    except ValueError:
        signature = b""
    machine, time = (request.headers.get(name, "") for name in (MACHINE_HEADER, TIME_HEADER))
    return SignedBody(machine, request.path, time, signature, request.body)
