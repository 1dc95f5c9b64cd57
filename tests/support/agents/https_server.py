"""An HTTPS server for agents that does with each request what a test says."""

import ssl
import threading
from pathlib import Path

from agent.shepherd_agent.ed25519 import PrivateKey
from agent.shepherd_agent.reports.endpoint import Endpoint
from agent.shepherd_agent.reports.reporter import Reporter
from simulator.environment.certificate import make
from simulator.providers.kit.http_server import HttpRequest, Reply, Server


def certificate(folder: Path) -> tuple[ssl.SSLContext, bytes]:
    tls, ca = make("127.0.0.1", folder)
    return tls, ssl.PEM_cert_to_DER_cert(ca.read_text())


class HttpsServer:
    """An HTTPS server that is told how to treat each request, in their order; after the last, as the last."""

    def __init__(self, tls: ssl.SSLContext, ca: bytes) -> None:
        self.endpoints: list[Endpoint] = []
        self.requests: list[HttpRequest] = []
        self.treatments: list[Reply | threading.Event | None] = [Reply(status=200)]
        self.handshakes: list[bool] = []
        """One for each connection: whether the TLS session was resumed."""
        handshakes = self.handshakes

        class Recorded(ssl.SSLSocket):
            def do_handshake(self, block: bool = False) -> None:
                super().do_handshake(block)
                handshakes.append(bool(self.session_reused))

        tls.sslsocket_class = Recorded
        self.ca = ca
        self._server = Server(self._answer, "127.0.0.1", tls)
        self.url = self._server.url
        self._server.start()

    def reporter(self, seconds: float = 10.0) -> Reporter:
        self.endpoints.append(Endpoint(self.url, self.ca, seconds))
        return Reporter(self.endpoints[-1], PrivateKey(b"k" * 32), "id")

    def close(self) -> None:
        for endpoint in self.endpoints:
            endpoint.close()
        self._server.close()

    def _answer(self, request: HttpRequest) -> Reply | None:
        """Answer, or end the connection, or keep the client waiting until the event is set."""
        self.requests.append(request)
        treatment = self.treatments.pop(0) if len(self.treatments) > 1 else self.treatments[0]
        if isinstance(treatment, threading.Event):
            treatment.wait()
            return None
        return treatment
