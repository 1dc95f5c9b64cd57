"""The HTTP side of the simulated APIs: connections, requests and replies, nothing of their meaning."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import logging
import socket
import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from email.message import Message

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.02


@dataclass(frozen=True, kw_only=True)
class HttpRequest:
    """A request as it came."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Message
    """By name, in any case."""
    content: bytes
    client: str
    """The address that it came from."""


@dataclass(kw_only=True)
class Reply:
    """An answer: a text body is sent as it is, None not at all, anything else as JSON."""

    status: int
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    """Only the first half is sent before the connection is closed."""


class Server(http.server.ThreadingHTTPServer):
    """Gives every request to *answer*, which returns None to close the connection."""

    daemon_threads = False  # so that closing waits for them
    request_queue_size = 128

    def __init__(self, answer: Callable[[HttpRequest], Reply | None], address: str) -> None:
        self.answer = answer
        self._open_lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self.serve_forever, args=(_POLL_SECONDS,), name="simulated-api")
        self._thread.daemon = True
        super().__init__((address, 0), _Handler)

    def server_bind(self) -> None:
        """Bind without asking the name service who we are."""
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment] # always IPv4

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """End all connections and threads."""
        if self._thread.ident is not None:
            self.shutdown()
            self._thread.join()
        with self._open_lock:
            for connection in self._open:
                with contextlib.suppress(OSError):  # the client was faster
                    connection.shutdown(socket.SHUT_RDWR)
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Remember the connection, then let a thread of its own serve it."""
        with self._open_lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget the connection and close it."""
        with self._open_lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - named by socketserver
        """Let clients go away in the middle; log anything else."""
        if not isinstance(sys.exception(), ConnectionError):
            _log.exception("a simulated API could not serve a connection")


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        request = HttpRequest(
            method=self.command,
            path=parts.path,
            query=dict(parse_qsl(parts.query, keep_blank_values=True)),
            headers=self.headers,
            content=self.rfile.read(int(self.headers.get("Content-Length") or 0)),
            client=self.client_address[0],
        )
        reply = self.server.answer(request)
        if reply is None:
            self.close_connection = True
        else:
            self._send(reply)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815 - named by http.server

    def _send(self, reply: Reply) -> None:
        text = reply.body if isinstance(reply.body, str) else json.dumps(reply.body)
        content = b"" if reply.body is None else text.encode()
        kind = "text/html" if isinstance(reply.body, str) else "application/json; charset=utf-8"
        reason = http.client.responses.get(reply.status, "Unknown")
        headers = dict(reply.headers) if reply.body is None else {"Content-Type": kind, **reply.headers}
        if reply.status != http.HTTPStatus.NO_CONTENT:
            headers["Content-Length"] = str(len(content))
        if reply.cut:
            self.close_connection = True
            content = content[: len(content) // 2]
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.wfile.write(f"{self.protocol_version} {reply.status} {reason}\r\n{head}\r\n".encode() + content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - named by http.server
        """Stay silent: the caller counts."""
