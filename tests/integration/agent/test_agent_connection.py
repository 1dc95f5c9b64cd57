"""The agent's connection to its endpoint: kept, resumed, and never a reason to lose a heartbeat."""

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agent.shepherd_agent.reports.connection import EndpointChannel
from agent.shepherd_agent.reports.endpoint import Endpoint, NotDelivered
from simulator.providers.kit.http_server import Reply
from tests.support.agents.https_server import HttpsServer, certificate

CLOSE = {"Connection": "close"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HttpsServer]:
    """Return a running server."""
    with closing(HttpsServer(*certificate(tmp_path))) as server:
        yield server


def test_a_connection_is_used_for_many_heartbeats(server: HttpsServer) -> None:
    """A TLS handshake has ten times the bytes of a heartbeat."""
    reporter = server.reporter()
    for _ in range(3):
        reporter.send("heartbeat", b"")
    assert len(server.requests) == 3
    assert server.handshakes == [False]


def test_a_session_is_resumed_if_the_connection_is_not_kept(server: HttpsServer) -> None:
    """Then no certificate is sent. Each resumed connection makes the next one possible."""
    server.treatments = [Reply(status=200, headers=CLOSE)]
    reporter = server.reporter()
    for _ in range(3):
        reporter.send("heartbeat", b"")
    assert server.handshakes == [False, True, True]


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


def test_a_connection_that_dies_on_the_way_loses_no_heartbeat(server: HttpsServer) -> None:
    """It is sent once more, with a later time: the first may have arrived, and this one must be no replay."""
    server.treatments = [Reply(status=200), None, Reply(status=200)]
    reporter = server.reporter()
    reporter.send("heartbeat", b"")
    reporter.send("heartbeat", b"")
    assert len(server.handshakes) == 2
    times = [int(request.headers["Shepherd-Time"]) for request in server.requests]
    assert times == sorted(set(times))
    assert len({request.headers["Shepherd-Signature"] for request in server.requests}) == 3


def test_a_new_connection_that_dies_is_not_tried_again(server: HttpsServer) -> None:
    """The pause between heartbeats is what spares an endpoint in trouble."""
    server.treatments = [Reply(status=200), None]
    reporter = server.reporter()
    reporter.send("heartbeat", b"")
    with pytest.raises(NotDelivered) as lost:
        reporter.send("heartbeat", b"")
    assert not lost.value.answered
    assert len(server.requests) == 3


def test_a_connection_that_was_forgotten_on_the_way_loses_no_heartbeat(server: HttpsServer) -> None:
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


def test_an_answer_that_is_cut_off_is_no_answer(server: HttpsServer) -> None:
    """The half of a HeartbeatResponse may be a valid one that asks for something else."""
    server.treatments = [Reply(status=200, body=b"1234", cut=True)]
    with pytest.raises(NotDelivered, match="IncompleteRead"):
        server.reporter().send("heartbeat", b"")


def test_a_request_has_no_header_that_can_be_done_without(server: HttpsServer) -> None:
    """They would be a third of its bytes."""
    server.reporter().send("heartbeat", b"body")
    (request,) = server.requests
    assert request.content == b"body"
    assert request.headers.keys() == [
        "Host",
        "Content-Type",
        "Content-Length",
        "Shepherd-Machine",
        "Shepherd-Time",
        "Shepherd-Signature",
    ]


def test_a_header_cannot_be_smuggled_in(server: HttpsServer) -> None:
    """The machine id is text that came from outside."""
    endpoint = Endpoint(server.url, server.ca)
    with pytest.raises(NotDelivered, match="not valid"):
        endpoint.post("heartbeat", b"", lambda: {"Shepherd-Machine": "id\r\nShepherd-Time: 1"})
    assert server.requests == []
