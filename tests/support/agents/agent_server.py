"""A server that agents report to, which a test scripts; it believes no signature that it has not checked."""

import threading
from base64 import b64decode
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from shepherd_core.domain.pb.callback_pb2 import HeartbeatRequest, HeartbeatResponse


class Request(NamedTuple):
    """What arrived."""

    path: str
    time: str
    signature: bytes
    body: bytes

    @property
    def heartbeat(self) -> HeartbeatRequest:
        """The message."""
        return HeartbeatRequest.FromString(self.body)

    def verify(self, key: bytes) -> None:
        """Raise InvalidSignature unless the holder of *key* signed it."""
        signed = b"\n".join((b"shepherd-agent-v1", b"POST", self.path.encode(), self.time.encode(), self.body))
        Ed25519PublicKey.from_public_bytes(key).verify(self.signature, signed)


class Answer(NamedTuple):
    """What is sent back."""

    status: int = 200
    message: HeartbeatResponse | bytes = b""
    time: str = ""


class AgentServer:
    """An HTTP server at a free port of 127.0.0.1 that answers as *answer* says."""

    def __init__(self, answer: Callable[[Request], Answer] = lambda _: Answer()) -> None:
        self.requests: list[Request] = []
        self.answer = answer
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = Request(
                    self.path,
                    self.headers["Shepherd-Time"],
                    b64decode(self.headers["Shepherd-Signature"], validate=True),
                    self.rfile.read(int(self.headers["Content-Length"])),
                )
                answer = server.answer(request)
                server.requests.append(request)
                body = answer.message if isinstance(answer.message, bytes) else answer.message.SerializeToString()
                self.send_response(answer.status)
                self.send_header("Content-Length", str(len(body)))
                if answer.time:
                    self.send_header("Shepherd-Time", answer.time)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's signature
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
