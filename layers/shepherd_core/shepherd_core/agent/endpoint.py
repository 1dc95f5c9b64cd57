"""
The agent API: takes heartbeats, alone or in batches, and answers them.

An agent signs each request with the key that it returned at takeover, and names
its machine in a header. ``judgement`` says who is believed.
"""

from __future__ import annotations

from base64 import b64decode
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING

from shepherd_core.agent import batch
from shepherd_core.agent.heartbeats import HeartbeatRefused, SignedBody
from shepherd_core.agent.judgement import Judgement
from shepherd_core.agent.new_endpoint import NewEndpoint
from shepherd_core.agent.received_request import TIME_HEADER, AgentResponse, ReceivedRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shepherd_core.agent.judgement import Limits
    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.settings.relays import Relays

MACHINE_HEADER, SIGNATURE_HEADER = "shepherd-machine", "shepherd-signature"

_HEARTBEAT, _BATCH = "/heartbeat", "/heartbeats"


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


class AgentApi:
    """The agent API. Belongs to the thread that owns *connection*: one request at a time."""

    def __init__(self, connection: Connection, limits: Limits, relays: Relays, new_endpoint: str | None = None) -> None:
        """Make the API; with *new_endpoint*, agents that report at another one are told of it."""
        self.connection = connection
        self._limits = limits
        self._new_endpoint = NewEndpoint(new_endpoint)
        self._judgement = Judgement(connection, limits, relays)

    def close(self) -> None:
        """Close the connection to the BMDB."""
        self.connection.close()

    def handle(self, request: AgentRequest) -> AgentResponse:
        """
        Record the reports in *request* and return the response, also if the BMDB is down.

        A plain heartbeat, or a batch of them, costs one round trip, two if a key is not
        cached, and writes no log. May run twice: the second is a replay, and refused.

        Raises:
            SecretError, SourceError: a secret or document for the connection to the BMDB cannot be read.
        """
        relayed = request.path.endswith(_BATCH)
        told = partial(self._new_endpoint.told, request=request, relayed=relayed)
        received = ReceivedRequest(request.received_at, request.address, told, relayed=relayed)
        try:
            self._check(request)
            if relayed:
                return self._answer_batch(request, received)
            return self._judgement.judge([_signed(request)], received)[0]
        except HeartbeatRefused as refusal:
            return received.refuse(refusal)
        finally:
            received.close()

    def _answer_batch(self, request: AgentRequest, received: ReceivedRequest) -> AgentResponse:
        path = request.path.removesuffix(_BATCH) + _HEARTBEAT
        entries = batch.decode(request.body, path, self._limits.body_bytes)
        judged = iter(self._judgement.judge([each for each in entries if isinstance(each, SignedBody)], received))
        answers = [
            (each.signature, next(judged)) if isinstance(each, SignedBody) else (b"", received.refuse(each))
            for each in entries
        ]
        # If nothing of a batch was accepted, AWS must count a refusal or a failure, as for a single heartbeat.
        status = HTTPStatus(min(answer.status for _, answer in answers))
        return AgentResponse(status, request.received_at, batch.encode(answers), relayed=True)

    def _check(self, request: AgentRequest) -> None:
        """Refuse requests that are wrong, no matter who sent them."""
        prefix = request.path.rpartition("/")[0]
        if not request.path.endswith((_HEARTBEAT, _BATCH)) or self._limits.path_prefix not in {None, prefix}:
            raise HeartbeatRefused(HTTPStatus.NOT_FOUND, "not found")
        if request.method != "POST":
            raise HeartbeatRefused(HTTPStatus.METHOD_NOT_ALLOWED, "only POST is allowed")
        if request.headers.get("content-encoding", "identity") != "identity":
            raise HeartbeatRefused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body must not be compressed")
        longest = self._limits.batch_bytes if request.path.endswith(_BATCH) else self._limits.body_bytes
        if len(request.body) > longest:
            raise HeartbeatRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is longer than {longest} bytes")


def _signed(request: AgentRequest) -> SignedBody:
    try:
        signature = b64decode(request.headers.get(SIGNATURE_HEADER, ""), validate=True)
    except ValueError:
        signature = b""
    machine, time = (request.headers.get(name, "") for name in (MACHINE_HEADER, TIME_HEADER))
    return SignedBody(machine, request.path, time, signature, request.body)
