"""An HTTP server for the tests of the Equinix adapter, which answers request after request as a test says."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Reply:
    """What the scripted server answers with."""

    status: int = 200
    body: bytes = b'{"fine": true}'
    headers: dict[str, str] = field(default_factory=dict)

    def send(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer."""
        handler.send_response_only(self.status)
        for name, value in {"Content-Length": str(len(self.body)), **self.headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(self.body)


class Drop(Reply):
    """Closes the connection without a word."""

    def send(self, handler: BaseHTTPRequestHandler) -> None:
        """Do not answer."""
        handler.close_connection = True


class Cut(Reply):
    """Promises more than it sends."""

    def send(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer in part."""
        self.headers["Content-Length"] = str(len(self.body) + 100)
        super().send(handler)
        handler.close_connection = True


def said(status: int, **body: Any) -> Reply:
    """Return a reply with a JSON body."""
    return Reply(status, json.dumps(body).encode())


class Script(ThreadingHTTPServer):
    """Answers each request with the next reply; the last one answers all further ones."""

    daemon_threads = True  # idle connections must not hold up the end of a test

    def __init__(self) -> None:
        self.replies: list[Reply | Callable[[BaseHTTPRequestHandler], None]] = [Reply()]
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        """Method, path and headers, the names in lower case."""
        self.bodies: list[bytes] = []
        self.leave = threading.Event()
        """Set at the end of the test, so that what waits does not wait longer."""
        self.lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        """Return the base URL."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def take(self, handler: BaseHTTPRequestHandler, body: bytes) -> Reply | Callable[[BaseHTTPRequestHandler], None]:
        """Record the request and return what to do with it."""
        with self.lock:
            self.bodies.append(body)
            self.requests.append((handler.command, handler.path, {k.lower(): v for k, v in handler.headers.items()}))
            return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Script
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Answer by the script."""
        reply = self.server.take(self, self.rfile.read(int(self.headers.get("Content-Length", 0))))
        if isinstance(reply, Reply):
            reply.send(self)
        else:
            reply(self)

    do_POST = do_GET  # noqa: N815 - the name that http.server calls

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the overridden method
        """Stay silent."""


@contextmanager
def serving() -> Iterator[Script]:
    """Run a scripted server."""
    with Script() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.leave.set()
            server.shutdown()
            thread.join()
