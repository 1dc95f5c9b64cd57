"""A real HTTP server on loopback that answers as a test says: the edge behind requests and boto3."""

import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Request:
    """What arrived."""

    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Answer:
    """What is sent back."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    repeat: int = 1
    """How often *body* is sent in a row, for an answer that is too large for memory."""
    pause_seconds: float = 0
    """How long to wait after each of these."""
    missing: int = 0
    """How many bytes of the promised length are never sent: the connection breaks."""


class ScriptedServer:
    """Answers every request with what *answer* returns, and remembers the requests."""

    def __init__(self, answer: Callable[[Request], Answer]) -> None:
        self.answer = answer
        self.requests: list[Request] = []
        self.url = ""


@contextmanager
def scripted_server(answer: Callable[[Request], Answer], tls: ssl.SSLContext | None = None) -> Iterator[ScriptedServer]:
    """Serve on a free port of 127.0.0.1; over TLS if a context is given."""
    script = ScriptedServer(answer)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            request = Request(
                self.path, dict(self.headers), self.rfile.read(int(self.headers.get("Content-Length") or 0))
            )
            script.requests.append(request)
            answer = script.answer(request)
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            length = len(answer.body) * answer.repeat
            if answer.status != 304:
                self.send_header("Content-Length", str(length + answer.missing))
            self.end_headers()
            for _ in range(answer.repeat):
                self.wfile.write(answer.body)
                time.sleep(answer.pause_seconds)
            self.close_connection = self.close_connection or answer.missing > 0

        do_POST = do_PUT = do_GET  # noqa: N815 - the names that http.server looks for

        def log_message(self, *args: object) -> None:
            """Tell nothing: the test looks at the requests."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, *args: object) -> None:
            """Tell nothing of clients that break off: some tests make them."""

    with Server(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        script.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield script
        finally:
            server.shutdown()
            thread.join()
