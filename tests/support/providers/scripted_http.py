import json
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    port: int
    """The client's, which tells connections apart."""


@dataclass(frozen=True)
class Answer:
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    repeat: int = 1
    """How often *body* is sent in a row, for an answer that is too large for memory."""
    pause_seconds: float = 0
    """How long to wait after each of these."""
    missing: int = 0
    """How many bytes of the promised length are never sent: the connection breaks."""
    head: bytes | None = None
    """What is sent in place of status and headers; the connection breaks after the body."""


DROPPED = Answer(head=b"")
"""The connection is closed without a word."""


def said(status: int, **body: Any) -> Answer:
    return Answer(status, json.dumps(body).encode())


def in_turn(*answers: Answer) -> Callable[[Request], Answer]:
    """Return a function that gives each request the next of *answers*, and the last one to all that follow."""
    left = list(answers)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


class Script(ThreadingHTTPServer):
    """Answers every request with what *answer* returns, and remembers the requests."""

    def __init__(self, answer: Callable[[Request], Answer], tls: ssl.SSLContext | None = None) -> None:
        self.answer = answer
        self.requests: list[Request] = []
        self.left = threading.Event()
        """Set when a client breaks a connection."""
        super().__init__(("127.0.0.1", 0), _Handler)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_: object) -> None:
        """Tell nothing of clients that break off: some tests make them."""
        if isinstance(sys.exception(), OSError):
            self.left.set()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Script

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = Request(self.command, self.path, dict(self.headers), body, self.client_address[1])
        self.server.requests.append(request)
        answer = self.server.answer(request)
        if answer.head is None:
            self._send_head(answer)
        else:
            self.wfile.write(answer.head)
        for _ in range(answer.repeat):
            self.wfile.write(answer.body)
            time.sleep(answer.pause_seconds)
        self.close_connection = self.close_connection or answer.missing > 0 or answer.head is not None

    do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 - the names that http.server looks for

    def _send_head(self, answer: Answer) -> None:
        self.send_response_only(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.status not in (204, 304):
            self.send_header("Content-Length", str(len(answer.body) * answer.repeat + answer.missing))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Tell nothing: the test looks at the requests."""


@contextmanager
def scripted_server(answer: Callable[[Request], Answer], tls: ssl.SSLContext | None = None) -> Iterator[Script]:
    with Script(answer, tls) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
