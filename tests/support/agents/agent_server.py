"""A server that agents report to, which a test scripts; it believes no signature that it has not checked."""

import ssl
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from shepherd_core.domain.pb.callback_pb2 import HeartbeatRequest, HeartbeatResponse

from simulator.closeable import Closeable
from simulator.environment.certificate import make
from simulator.providers.kit.http_server import HttpRequest, Reply, Server


class Request(NamedTuple):
    path: str
    time: str
    signature: bytes
    body: bytes

    @property
    def heartbeat(self) -> HeartbeatRequest:
        return HeartbeatRequest.FromString(self.body)

    def verify(self, key: bytes) -> None:
        signed = b"\n".join((b"shepherd-agent-v1", b"POST", self.path.encode(), self.time.encode(), self.body))
        Ed25519PublicKey.from_public_bytes(key).verify(self.signature, signed)


class Answer(NamedTuple):
    status: int = 200
    message: HeartbeatResponse | bytes = b""
    time: str = ""


def certificate(folder: Path) -> tuple[ssl.SSLContext, bytes]:
    tls, ca = make("127.0.0.1", folder)
    return tls, ssl.PEM_cert_to_DER_cert(ca.read_text())


class AgentServer(Closeable):
    """An HTTP server at a free port of 127.0.0.1 that answers as *answer* says."""

    def __init__(
        self, answer: Callable[[Request], Answer] = lambda _: Answer(), tls: ssl.SSLContext | None = None
    ) -> None:
        self.requests: list[Request] = []
        self.answer = answer
        self._server = Server(self._reply, "127.0.0.1", tls)
        self.url = self._server.url

    def __enter__(self) -> Self:
        self._server.start()
        return self

    @property
    def heard(self) -> set[str]:
        return {request.heartbeat.machine_id for request in self.requests}

    def close(self) -> None:
        self._server.close()

    def _reply(self, http: HttpRequest) -> Reply:
        signature = b64decode(http.headers["Shepherd-Signature"], validate=True)
        request = Request(http.path, http.headers["Shepherd-Time"], signature, http.content)
        answer = self.answer(request)
        self.requests.append(request)
        body = answer.message if isinstance(answer.message, bytes) else answer.message.SerializeToString()
        time = {"Shepherd-Time": answer.time} if answer.time else {}
        return Reply(status=answer.status, body=body, headers={"Connection": "close", **time})
