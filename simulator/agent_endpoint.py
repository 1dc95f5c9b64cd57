"""Where the agents of simulated machines report to."""

from __future__ import annotations

import logging
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Self

from google.protobuf.message import DecodeError
from shepherd_core.pb.callback_pb2 import HeartbeatRequest

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable
    from types import TracebackType

_LOG = logging.getLogger(__name__)
_LONGEST_REQUEST = 1 << 20


class AgentEndpoint:
    """
    An HTTP server at a free port of 127.0.0.1, open from the start, that takes heartbeats.

    *record* gets the machine id of each heartbeat. It is never called twice at
    the same time; if it raises, the agent gets status 500 and the log the reason.
    """

    def __init__(self, record: Callable[[str], None], *, tls: ssl.SSLContext | None = None) -> None:
        """Open the endpoint; with *tls* it speaks HTTPS."""
        self.outage = False
        """While true, nothing is recorded and every request is answered with status 503."""
        self.refused = 0
        """How many requests were not answered with status 200."""
        self._record = record
        self._counting = threading.Lock()
        self._recording = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), self._handler())
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_port}"
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

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 5
            """Seconds for a client that stops in the middle, as silenced agents do."""

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                status = (
                    endpoint._receive(self.path, self.rfile.read(length))
                    if 0 <= length <= _LONGEST_REQUEST
                    else HTTPStatus.REQUEST_ENTITY_TOO_LARGE
                )
                if status is not HTTPStatus.OK:
                    with endpoint._counting:
                        endpoint.refused += 1
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's signature
                _LOG.debug(format, *args)

        return Handler

    def _receive(self, path: str, body: bytes) -> HTTPStatus:
        if self.outage:
            return HTTPStatus.SERVICE_UNAVAILABLE
        if path != "/heartbeat":
            return HTTPStatus.NOT_FOUND
        try:
            machine_id = HeartbeatRequest.FromString(body).machine_id
        except DecodeError:
            machine_id = ""
        if not machine_id:
            return HTTPStatus.BAD_REQUEST
        try:
            with self._recording:
                self._record(machine_id)
        except Exception:  # noqa: BLE001 - whatever it was, the agent gets an answer and the log the reason
            _LOG.exception("the heartbeat of machine %s was not recorded", machine_id)
            return HTTPStatus.INTERNAL_SERVER_ERROR
        # An empty body is the HeartbeatResponse that asks for nothing.
        return HTTPStatus.OK


class _Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = False

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002 - the library's signature
        """Log what the library would print: agents that are killed break off anywhere."""
        _LOG.debug("a request from %s broke off", client_address, exc_info=True)
