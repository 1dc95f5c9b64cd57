"""The HTTP server of everything that is simulated: connections, requests and replies."""

import http.client
import http.server
import json
import logging
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import Message
from typing import Any
from urllib.parse import parse_qsl, urlsplit

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.02


@dataclass(frozen=True, kw_only=True)
class HttpRequest:
    """A request as received."""

    method: str
    target: str
    """Path and query, as sent."""
    path: str
    query: Mapping[str, str]
    headers: Message
    """By name, in any case."""
    content: bytes
    client: str
    """The IP address of the client."""

    @property
    def body(self) -> Any:
        """Return the content as JSON: None if there is none, the bytes if it is not JSON."""
        try:
            return json.loads(self.content) if self.content else None
        except ValueError:
            return self.content


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer: bytes and text are sent as they are, None not at all, anything else as JSON."""

    status: int
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """``Connection: close`` closes the connection."""
    cut: bool = False
    """Send only the first half, then close the connection."""


class Server(http.server.ThreadingHTTPServer):
    """
    A server at a free port of *address*, with *tls* for HTTPS; answers from ``start`` to ``close``.

    Calls *answer* for each request, in one thread for each connection; *answer* returns None to close the connection.
    """

    daemon_threads = False  # so that ``close`` waits for them
    request_queue_size = 256
    client_seconds: float | None = None
    """How long a client may pause in the middle; None: any time."""

    def __init__(
        self, answer: Callable[[HttpRequest], Reply | None], address: str, tls: ssl.SSLContext | None = None
    ) -> None:
        self.answer = answer
        self.tls = tls
        """Holds the certificate; a change is used from the next connection on."""
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._thread: threading.Thread | None = None
        super().__init__((address, 0), _Handler)
        self.url = f"{'http' if tls is None else 'https'}://{address}:{self.server_port}"

    def server_bind(self) -> None:
        """Bind without a name lookup."""
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment] # always IPv4

    def start(self) -> None:
        """Begin to answer."""
        self._thread = threading.Thread(
            target=self.serve_forever, args=(_POLL_SECONDS,), name="simulated-http", daemon=True
        )
        self._thread.start()

    def close(self, *, drain: bool = False) -> None:
        """End all connections and threads; with *drain*, answer the requests that have begun."""
        if self._thread is not None:
            self.shutdown()
            self._thread.join()
        with self._lock:
            for connection in () if drain else self._open:
                disconnect(connection)
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Remember the connection, then serve it in a new thread."""
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection; the TLS handshake is done here, where a slow client delays no other."""
        request.settimeout(self.client_seconds)
        if self.tls is None:
            super().finish_request(request, client_address)
            return
        with self._lock:
            encrypted = self.tls.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
            self._open.add(encrypted)
        with encrypted:
            try:
                encrypted.do_handshake()
                super().finish_request(encrypted, client_address)
            finally:
                with self._lock:
                    self._open.discard(encrypted)

    def shutdown_request(self, request: Any) -> None:
        """Forget the connection and close it."""
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - named by socketserver
        """Log errors, except those of clients that disconnect, time out or do not trust the certificate."""
        if not isinstance(sys.exception(), OSError):
            _log.exception("a simulated server could not serve a connection")


def disconnect(connection: socket.socket) -> None:
    """Shut a connection down; threads that wait for it see its end."""
    with suppress(OSError):  # not connected any more
        # An SSLSocket's own shutdown drops its TLS state, which another thread may be using.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        request = HttpRequest(
            method=self.command,
            target=self.path,
            path=parts.path,
            query=dict(parse_qsl(parts.query, keep_blank_values=True)),
            headers=self.headers,
            content=self.rfile.read(max(0, int(self.headers.get("Content-Length") or 0))),
            client=self.client_address[0],
        )
        reply = self.server.answer(request)
        if reply is None:
            self.close_connection = True
        else:
            self._send(reply)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815 - named by http.server

    def _send(self, reply: Reply) -> None:
        headers = dict(reply.headers)
        match reply.body:
            case None:
                content = b""
            case bytes():
                content = reply.body
            case str():
                content = reply.body.encode()
                headers.setdefault("Content-Type", "text/html")
            case _:
                content = json.dumps(reply.body).encode()
                headers.setdefault("Content-Type", "application/json; charset=utf-8")
        if reply.status != http.HTTPStatus.NO_CONTENT:
            headers["Content-Length"] = str(len(content))
        if reply.cut or headers.get("Connection") == "close":
            self.close_connection = True
        if reply.cut:
            content = content[: len(content) // 2]
        reason = http.client.responses.get(reply.status, "Unknown")
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.wfile.write(f"{self.protocol_version} {reply.status} {reason}\r\n{head}\r\n".encode() + content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - named by http.server
        """Log nothing: the callers count requests."""
