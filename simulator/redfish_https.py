"""The servers of simulated BMCs: HTTPS, each at a port of its own, and nothing of what is said there."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import logging
import selectors
import socket
import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable
    from email.message import Message

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Call:
    """A request."""

    method: str
    path: str
    headers: Message[str, str]
    body: Any
    """What was sent as JSON; bytes if it was something else, None if nothing."""


@dataclass(kw_only=True)
class Reply:
    """An answer: bytes and text are sent as they are, None not at all, anything else as JSON."""

    status: int
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    """Only the first half is sent before the connection is closed."""


class Listener(http.server.ThreadingHTTPServer):
    """One BMC at a port of *address*; *answer* returns None to close the connection."""

    daemon_threads = True
    request_queue_size = 32

    def __init__(self, address: str, tls: ssl.SSLContext, answer: Callable[[Call], Reply | None]) -> None:
        self.answer = answer
        self.tls = tls
        """Its certificate; another one is used from the next connection on."""
        super().__init__((address, 0), _Handler)

    @property
    def port(self) -> int:
        """Return the port that was free."""
        return int(self.server_address[1])

    def server_bind(self) -> None:
        """Bind without asking the name service who we are."""
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment] # always IPv4

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Shake hands in the thread of the connection: a client may take its time for it."""
        with self.tls.wrap_socket(request, server_side=True) as secured:
            _Handler(secured, client_address, self)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - named by socketserver
        """Let clients go away in the middle, or not trust us; log anything else."""
        if not isinstance(sys.exception(), OSError):
            _log.exception("a simulated BMC could not serve a connection")


class Listeners:
    """Any number of listeners, for which one thread waits."""

    def __init__(self, listeners: list[Listener]) -> None:
        self._listeners = listeners
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="bmcs", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End them all."""
        self._wake.close()
        self._thread.join()
        self._woken.close()
        for listener in self._listeners:
            listener.server_close()

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            for listener in self._listeners:
                selector.register(listener, selectors.EVENT_READ, listener)
            while True:
                for key, _ in selector.select():
                    if key.data is None:
                        return
                    key.data.handle_request()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Listener

    def _serve(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            body = json.loads(content) if content else None
        except ValueError:
            body = content
        reply = self.server.answer(Call(method=self.command, path=self.path, headers=self.headers, body=body))
        self.close_connection = True
        if reply is not None:
            with contextlib.suppress(OSError):  # the client was tired of waiting
                self._send(reply)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815 - named by http.server

    def _send(self, reply: Reply) -> None:
        match reply.body:
            case bytes():
                content = reply.body
            case None:
                content = b""
            case str():
                content = reply.body.encode()
            case _:
                content = json.dumps(reply.body).encode()
        reason = http.client.responses.get(reply.status, "Unknown")
        headers = {"Content-Type": "application/json", "Connection": "close", **reply.headers}
        if reply.status != http.HTTPStatus.NO_CONTENT:
            headers["Content-Length"] = str(len(content))
        if reply.cut:
            content = content[: len(content) // 2]
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.wfile.write(f"{self.protocol_version} {reply.status} {reason}\r\n{head}\r\n".encode() + content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - named by http.server
        """Stay silent: the BMC remembers what it was asked."""
