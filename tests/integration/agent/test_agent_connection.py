import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agent.shepherd_agent.ed25519 import PrivateKey
from agent.shepherd_agent.reports.connection import EndpointChannel
from agent.shepherd_agent.reports.endpoint import Endpoint, NotDelivered
from agent.shepherd_agent.reports.reporter import Reporter
from simulator.providers.kit.http_server import HttpRequest, Reply, Server
from tests.support.agents.agent_server import certificate


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
        self.requests.append(request)
        treatment = self.treatments.pop(0) if len(self.treatments) > 1 else self.treatments[0]
        if isinstance(treatment, threading.Event):
            treatment.wait()
            return None
        return treatment


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HttpsServer]:
    with closing(HttpsServer(*certificate(tmp_path))) as server:
        yield server


@pytest.mark.parametrize(
    ("headers", "handshakes"), [({}, [False]), ({"Connection": "close"}, [False, True, True])], ids=["kept", "closed"]
)
def test_a_connection_is_kept_or_its_session_resumed(
    server: HttpsServer, headers: dict[str, str], handshakes: list[bool]
) -> None:
    """A TLS handshake has ten times the bytes of a heartbeat; one that resumes a session sends no certificate."""
    server.treatments = [Reply(status=200, headers=headers)]
    reporter = server.reporter()
    for _ in range(3):
        reporter.send("heartbeat", b"")
    assert len(server.requests) == 3
    assert server.handshakes == handshakes


def test_the_certificate_is_verified_again_in_time(server: HttpsServer) -> None:
    """A resumed session proves nothing about a certificate that has expired since."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.load_verify_locations(cadata=server.ca)
    channel = EndpointChannel("127.0.0.1", int(server.url.rpartition(":")[2]), tls, verify_seconds=0.0)
    for _ in range(2):
        assert channel.kept() is None
        connection = channel.connect(time.monotonic() + 10)
        connection.exchange(b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n", time.monotonic() + 10, 10)
        channel.keep(connection, reusable=True)
    channel.close()
    assert server.handshakes == [False, False]


def test_a_connection_that_was_closed_meanwhile_costs_nothing(server: HttpsServer) -> None:
    """Servers close idle connections after a minute or so; the agent sees that before it sends."""
    reporter = server.reporter()
    reporter.send("heartbeat", b"")
    kept = reporter.endpoint._channel._kept
    assert kept is not None
    server.treatments = [None, Reply(status=200)]
    kept.sock.sendall(b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
    assert socket.socket.recv(kept.sock, 1, socket.MSG_PEEK) == b""  # the server has ended it
    reporter.send("heartbeat", b"")
    assert len(server.requests) == 3
    assert server.handshakes == [False, True]


@pytest.mark.parametrize("again", [False, True], ids=["kept", "new too"])
def test_a_connection_that_dies_on_the_way_loses_no_heartbeat(server: HttpsServer, again: bool) -> None:
    """It is sent once more, with a later time, for the first may have arrived; but not twice to one in trouble."""
    server.treatments = [Reply(status=200), None, None if again else Reply(status=200)]
    reporter = server.reporter()
    reporter.send("heartbeat", b"")
    if again:
        with pytest.raises(NotDelivered) as lost:
            reporter.send("heartbeat", b"")
        assert not lost.value.answered
    else:
        reporter.send("heartbeat", b"")
    assert len(server.handshakes) == 2
    times = [int(request.headers["Shepherd-Time"]) for request in server.requests]
    assert times == sorted(set(times))
    assert len({request.headers["Shepherd-Signature"] for request in server.requests}) == 3


def test_a_connection_forgotten_on_the_way_loses_no_heartbeat(server: HttpsServer) -> None:
    """A firewall that has dropped it swallows the request. Later ones must not wait for the same thing again."""
    swallowed = threading.Event()
    server.treatments = [Reply(status=200), swallowed, Reply(status=200)]
    reporter = server.reporter(3)
    try:
        reporter.send("heartbeat", b"")
        reporter.send("heartbeat", b"")
    finally:
        swallowed.set()
    channel = reporter.endpoint._channel
    assert len(server.requests) == 3
    assert 0 < channel._longest_idle < 3
    channel.forgotten_after(0)
    reporter.send("heartbeat", b"")
    assert len(server.handshakes) == 3


def test_a_kept_connection_gets_no_more_time(server: HttpsServer) -> None:
    """However many connections a heartbeat takes, its time limit holds for them together."""
    never = threading.Event()
    server.treatments = [Reply(status=200), never]
    reporter = server.reporter(1)
    reporter.send("heartbeat", b"")
    try:
        with pytest.raises(NotDelivered, match="no answer within 1 s"):
            reporter.send("heartbeat", b"")
    finally:
        never.set()


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-sshd\r\n"], ids=["nothing", "of another protocol"])
def test_an_impostor_delivers_nothing_nor_does_nobody(answer: bytes) -> None:
    def impose() -> None:
        with listener.accept()[0] as connection:
            connection.recv(1 << 16)
            connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = Endpoint(f"http://127.0.0.1:{listener.getsockname()[1]}", b"")
        impostor = threading.Thread(target=impose)
        impostor.start()
        with pytest.raises(NotDelivered):
            endpoint.post("heartbeat", b"", dict)
        impostor.join()
    with pytest.raises(NotDelivered, match="refused"):
        endpoint.post("heartbeat", b"", dict)


def test_an_answer_that_is_cut_off_is_no_answer(server: HttpsServer) -> None:
    """The half of a HeartbeatResponse may be a valid one that asks for something else."""
    server.treatments = [Reply(status=200, body=b"1234", cut=True)]
    with pytest.raises(NotDelivered, match="IncompleteRead"):
        server.reporter().send("heartbeat", b"")


def test_a_request_has_no_header_that_can_be_done_without(server: HttpsServer) -> None:
    """They would be a third of its bytes; nor can the machine id, which came from outside, smuggle one in."""
    server.reporter().send("heartbeat", b"body")
    (request,) = server.requests
    assert request.content == b"body"
    names = ["Host", "Content-Type", "Content-Length", "Shepherd-Machine", "Shepherd-Time", "Shepherd-Signature"]
    assert request.headers.keys() == names
    with pytest.raises(NotDelivered, match="not valid"):
        Endpoint(server.url, server.ca).post("heartbeat", b"", lambda: {names[3]: "id\r\nShepherd-Time: 1"})
    assert len(server.requests) == 1
