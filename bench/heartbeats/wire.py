"""
The bytes of a heartbeat on the wire, both ways, between the agent's own code and an HTTPS server, counted by a proxy.

Payload is what the proxy forwards. Each segment that the kernel counts on its side of the connection (``TCP_INFO``)
adds 52 bytes: 20 of IPv4, 20 of TCP, 12 of its timestamps. A SYN has 8 more, and its answer, which the kernel does not
count there, 60. Segments are those of a path with an MTU of 1500. The request has the length of one to a Lambda
Function URL, with its long host name. The server answers what the function answered, and adds the headers that AWS
adds, or as few as HTTP allows.
"""

import selectors
import socket
import ssl
import struct
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

from shepherd_core.domain.pb.callback_pb2 import HeartbeatRequest

from agent.shepherd_agent.ed25519 import PrivateKey
from agent.shepherd_agent.reports.endpoint import Endpoint
from agent.shepherd_agent.reports.reporter import Reporter
from bench.results import median
from simulator.environment.certificate import make
from simulator.providers.kit.http_server import Reply, Server

_HEADERS = 52
"""Of a TCP segment over IPv4, with timestamps."""
_SYN, _SYN_ANSWER = 8, 60
_SEGMENT = 1448
_TCP_INFO, _SEGMENTS_AT = 192, 136
_HOST = "abcdefghijklmnopqrstuvwxyz012345.lambda-url.us-east-1.on.aws"
_MACHINE = "01234567-89ab-cdef-0123-456789abcdef"
_STACK = "/01234567-89ab-cdef-0123-456789abcdef"
_IDLE_SECONDS = 0.4
"""After that long the server ends a connection, unless it keeps it."""
_ACKNOWLEDGED_SECONDS = 0.1
"""After that long the last acknowledgement has come."""

HEADERS: dict[str, dict[str, str]] = {
    "as few headers as possible": {},
    "HTTP API": {
        "Date": "Sun, 22 Nov 2026 20:00:00 GMT",
        "Connection": "keep-alive",
        "Apigw-Requestid": "JKvvIjsHoAMEJWg=",
    },
    "Function URL": {
        "Date": "Sun, 22 Nov 2026 20:00:00 GMT",
        "Connection": "keep-alive",
        "x-amzn-RequestId": "5eee8b3d-0123-4567-89ab-0123456789ab",
        "X-Amzn-Trace-Id": "Root=1-62ce8595-0123456789abcdef01234567;Parent=0123456789abcdef;Sampled=0;"
        "Lineage=1:01234567:0",
    },
}
"""Headers that the way to the function adds to its answers."""


class Counter:
    """A proxy at a free port that forwards connections and counts the bytes that clients sent, and that they got."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _SEGMENT)
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._ended = (0, 0)
        self._open: dict[socket.socket, list[int]] = {}
        threading.Thread(target=self._accept, daemon=True).start()

    def count(self) -> tuple[int, int]:
        """Return the bytes so far, of all connections."""
        with self._lock:
            counts = [self._ended, *(_on_wire(each, payload) for each, payload in self._open.items())]
        return sum(count[0] for count in counts), sum(count[1] for count in counts)

    @property
    def connections(self) -> int:
        """The number of connections that have not ended."""
        with self._lock:
            return len(self._open)

    def close(self) -> None:
        """Accept no more."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with self._lock:
                    self._open[client] = [0, 0]
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._target) as server:
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with suppress(OSError), selectors.DefaultSelector() as selector:
                selector.register(client, selectors.EVENT_READ, (0, server))
                selector.register(server, selectors.EVENT_READ, (1, client))
                while selector.get_map():
                    for key, _ in selector.select():
                        self._forward(selector, client, key)
            time.sleep(_ACKNOWLEDGED_SECONDS)  # for the last acknowledgement
            with self._lock:
                count = _on_wire(client, self._open.pop(client))
                self._ended = (self._ended[0] + count[0], self._ended[1] + count[1])

    def _forward(self, selector: selectors.BaseSelector, client: socket.socket, key: selectors.SelectorKey) -> None:
        """Forward one chunk, or the end."""
        number, sink = key.data
        data = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]  # it is a socket
        with self._lock:
            self._open[client][number] += len(data)
        if data:
            sink.sendall(data)
        else:
            selector.unregister(key.fileobj)
            with suppress(OSError):
                sink.shutdown(socket.SHUT_WR)


def _on_wire(client: socket.socket, payload: Sequence[int]) -> tuple[int, int]:
    info = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO)
    sent, received = struct.unpack_from("=II", info, _SEGMENTS_AT)
    return payload[0] + received * _HEADERS + _SYN, payload[1] + sent * _HEADERS + _SYN_ANSWER


class _ClosingServer(Server):
    client_seconds = _IDLE_SECONDS


def measure(
    body: bytes, headers: Mapping[str, str], interval: int, repeats: int
) -> dict[str, dict[str, tuple[float, float]]]:
    """Return the bytes of a heartbeat, sent and received, by connection (new, resumed, kept) and added headers."""
    answer = Reply(status=200, body=body, headers=headers)
    return {
        connection: {way: _one(answer, interval, repeats, connection, added) for way, added in HEADERS.items()}
        for connection in ("new", "resumed", "kept")
    }


def _one(
    answer: Reply, interval: int, repeats: int, connection: str, headers: Mapping[str, str]
) -> tuple[float, float]:
    reply = Reply(status=answer.status, body=answer.body, headers={**answer.headers, **headers})
    with tempfile.TemporaryDirectory() as folder:
        tls, ca = make("127.0.0.1", Path(folder))
        certificate = ssl.PEM_cert_to_DER_cert(ca.read_text())
    server = (_ClosingServer if connection == "resumed" else Server)(lambda _: reply, "127.0.0.1", tls)
    server.start()
    with closing(server), closing(Counter(server.server_port)) as counter:
        place = f"127.0.0.1:{counter.port}"
        url = f"https://{place}{_STACK}".ljust(len(f"https://{_HOST}{_STACK}"), "x")
        message = HeartbeatRequest(machine_id=_MACHINE, report_interval_seconds=interval).SerializeToString()

        def reporter() -> Reporter:
            return Reporter(Endpoint(url, certificate), PrivateKey(b"k" * 32), _MACHINE)

        steady = reporter()
        counts = []
        for _ in range(repeats + 2):  # the first are not in a steady state
            before = counter.count()
            each = reporter() if connection == "new" else steady
            each.send("heartbeat", message)
            if connection == "new":
                each.endpoint.close()
            # Of a connection that the server ends, the agent's part of the end comes with the next heartbeat.
            time.sleep(_ACKNOWLEDGED_SECONDS + (_IDLE_SECONDS if connection == "resumed" else 0))
            while connection == "new" and counter.connections:
                time.sleep(_ACKNOWLEDGED_SECONDS)
            after = counter.count()
            counts.append((after[0] - before[0], after[1] - before[1]))
        steady.endpoint.close()
    return median([count[0] for count in counts[2:]]), median([count[1] for count in counts[2:]])
