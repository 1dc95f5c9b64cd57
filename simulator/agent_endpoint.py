"""Where the agents of simulated machines report to: an HTTP server, and what may be behind it."""

from __future__ import annotations

import base64
import logging
import threading
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Self

from google.protobuf.message import DecodeError
from shepherd_core.pb.callback_pb2 import HeartbeatRequest

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from simulator.lambda_service import LambdaService

_LOG = logging.getLogger(__name__)
_LONGEST_REQUEST = 10 << 20
"""What API Gateway takes at most."""


@dataclass(frozen=True)
class Request:
    """What an agent sent."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Reply:
    """What it is answered. An empty body is the HeartbeatResponse that asks for nothing."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class AgentEndpoint:
    """
    An HTTP server at a free port of *address*, open from the start.

    *receive* gets each request, from many threads; if it raises, the agent
    gets status 500 and the log the reason.
    """

    def __init__(
        self, receive: Callable[[Request], Reply], *, tls: ssl.SSLContext | None = None, address: str = "127.0.0.1"
    ) -> None:
        """Open the endpoint; with *tls* it speaks HTTPS."""
        self.outage = False
        """While true, nothing is passed on and every request is answered with status 503."""
        self.refused = 0
        """How many requests were not answered with status 200."""
        self._receive = receive
        self._counting = threading.Lock()
        self._server = _Server((address, 0), self._handler())
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://{address}:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="agent-endpoint")
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the endpoint; returns when the last request is answered."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, request: Request) -> Reply:
        if self.outage:
            return Reply(HTTPStatus.SERVICE_UNAVAILABLE)
        try:
            return self._receive(request)
        except Exception:  # noqa: BLE001 - whatever it was, the agent gets an answer and the log the reason
            _LOG.exception("a request to %s came to nothing", request.path)
            return Reply(HTTPStatus.INTERNAL_SERVER_ERROR)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 5
            """Seconds for a client that stops in the middle, as silenced agents do."""

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                if 0 <= length <= _LONGEST_REQUEST:
                    headers = {name.lower(): value for name, value in self.headers.items()}
                    reply = endpoint._answer(Request("POST", self.path, headers, self.rfile.read(length)))
                else:
                    reply = Reply(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
                if reply.status != HTTPStatus.OK:
                    with endpoint._counting:
                        endpoint.refused += 1
                self.send_response(reply.status)
                for name, value in {**reply.headers, "Content-Length": str(len(reply.body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(reply.body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's signature
                _LOG.debug(format, *args)

        return Handler


def recording(record: Callable[[str], None]) -> Callable[[Request], Reply]:
    """Return what takes every heartbeat unverified; *record* gets the machine id of each, never two at a time."""
    lock = threading.Lock()

    def receive(request: Request) -> Reply:
        if request.path != "/heartbeat":
            return Reply(HTTPStatus.NOT_FOUND)
        try:
            machine_id = HeartbeatRequest.FromString(request.body).machine_id
        except DecodeError:
            machine_id = ""
        if not machine_id:
            return Reply(HTTPStatus.BAD_REQUEST)
        with lock:
            record(machine_id)
        return Reply(HTTPStatus.OK)

    return receive


def invoking(service: Callable[[], LambdaService], function: str) -> Callable[[Request], Reply]:
    """Return what an HTTP API does: it hands each request to *function* as an event of payload version 2.0."""

    def receive(request: Request) -> Reply:
        event = {
            "version": "2.0",
            "routeKey": f"{request.method} {request.path}",
            "rawPath": request.path,
            "rawQueryString": "",
            "headers": dict(request.headers),
            "requestContext": {
                "http": {"method": request.method, "path": request.path},
                "stage": "$default",
                "timeEpoch": int(time.time() * 1000),
            },
            "body": base64.b64encode(request.body).decode(),
            "isBase64Encoded": True,
        }
        invocation = service().invoke(function, event)
        answer = invocation.result
        if answer is None:  # throttled, killed or raised: an HTTP API tells them apart no further
            return Reply(HTTPStatus.SERVICE_UNAVAILABLE)
        body = answer.get("body", "")
        return Reply(
            answer["statusCode"],
            answer.get("headers", {}),
            base64.b64decode(body) if answer.get("isBase64Encoded") else body.encode(),
        )

    return receive


class _Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = False

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002 - the library's signature
        """Log what the library would print: agents that are killed break off anywhere."""
        _LOG.debug("a request from %s broke off", client_address, exc_info=True)
