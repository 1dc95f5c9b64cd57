"""
A network that fails at a chosen place: a TCP proxy in front of PostgreSQL, a provider or a machine's SSH.

Everything that a client sends until the other side answers is a request; request
and answer are an exchange. So the proxy can break any protocol in the middle
without knowing it. Of PostgreSQL it knows three things: a COMMIT; the end of an
answer, because only then the effect has certainly happened; and how to have a
statement carried out whose commit comes late.
"""

import selectors
import socket
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from simulator.environment.tcp_proxy import TcpProxy
from tests.support.bmdb.breaking_connection import LateCommit

Where = Literal["connect", "request", "answer", "after", "commit"]
"""
Before any data; after half of the request; after half of the answer; done, but without an answer; without an answer,
and committed only when another client waits for the locks (PostgreSQL alone).
"""

How = Literal["cut", "reset", "half-close", "stall"]
"""
Closed in both directions; reset (RST); closed in the client's direction only; open but silent, so that the server
waits for a client that gave up long ago.
"""

WHERE: tuple[Where, ...] = get_args(Where)[:-1]
HOW: tuple[How, ...] = get_args(How)

_CHUNK = 1 << 16
_READY = b"Z\0\0\0\5"
"""The beginning of the message that ends every answer of PostgreSQL; one byte follows."""
_IDLE = b"I"
_SYNC = b"S\0\0\0\4"
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER, with nothing to linger for


@dataclass(frozen=True)
class Break:
    """One connection breaks, at exchange *number*, counted from 1 since the proxy was armed."""

    number: int
    where: Where
    how: How

    def __str__(self) -> str:
        return f"{self.how} at {self.where} {self.number}"


@dataclass
class _Exchange:
    number: int = 0
    answered: bool = True
    answer: bytes = b""
    client_bytes: int = 0
    """Of the whole connection."""
    ready: bytes = b""
    """The transaction state that the server reported last."""


class Proxy(TcpProxy):
    """Forwards data, slowly if configured, and breaks one connection if armed."""

    def __init__(
        self, target: Path | tuple[str, int], address: str = "127.0.0.1", *, port: int = 0, speaks_sql: bool = False
    ) -> None:
        """*speaks_sql*: the target is PostgreSQL."""
        self._speaks_sql = speaks_sql
        self._break: Break | None = None
        self._over = threading.Event()
        self._late: list[LateCommit] = []
        self._counting = threading.Lock()
        self.connections = 0
        """Number of connections."""
        self.names: list[str] = []
        """The requests in order; for PostgreSQL with their kind."""
        self.broke = False
        """Whether the break that was armed has happened."""
        self.delay_seconds = 0.0
        """Delay of every piece of data."""
        self.trickling = False
        """Whether bytes are forwarded one by one."""
        self.client_bytes = float("inf")
        """Number of bytes from a client after which its connection is closed."""
        super().__init__(target, address, port=port)

    def arm(self, broken: Break | None) -> None:
        """Break there, or nowhere if None, and count from 1."""
        self._break, self.broke = broken, False
        self.connections, self.names = 0, []

    def let_go(self) -> None:
        """Let the late commits happen, and wait for them."""
        for late in self._late:
            late.let_go()

    def close(self) -> None:
        """Break all connections, including stalled ones."""
        self.let_go()
        self._over.set()
        super().close()

    def _forward_all(self, client: socket.socket, server: socket.socket) -> None:
        with self._counting:
            self.connections += 1
            connection = self.connections
        if self._strikes("connect", connection):
            self._break_connection(client)
            return
        exchange = _Exchange()
        with selectors.DefaultSelector() as selector:
            for each in (client, server):
                selector.register(each, selectors.EVENT_READ)
            while True:
                # One at a time: the server's data is handled before the client's answer to it.
                source = selector.select()[-1][0].fileobj
                data = (client if source is client else server).recv(_CHUNK)
                if not data:
                    return
                if not (self._ask if source is client else self._answer)(exchange, data, client, server):
                    break
        self._break_connection(client)

    def _ask(self, exchange: _Exchange, data: bytes, client: socket.socket, server: socket.socket) -> bool:
        """Forward the client's data; False: break now."""
        if exchange.answered:
            exchange.number, exchange.answered, exchange.answer = self._begin(data), False, b""
        if self._strikes("request", exchange.number):
            server.sendall(data[: len(data) // 2])
            return False
        if self._strikes("commit", exchange.number) and _commits(data, exchange.ready):
            self._delay_commit(data, client, server)
            return False
        exchange.client_bytes += len(data)
        if exchange.client_bytes > self.client_bytes:
            return False
        self._pass_on(data, server)
        return True

    def _answer(self, exchange: _Exchange, data: bytes, client: socket.socket, server: socket.socket) -> bool:
        """Forward the server's data; False: break now."""
        exchange.answered = True
        exchange.answer += data
        if exchange.answer[-len(_READY) - 1 : -1] == _READY:
            exchange.ready = exchange.answer[-1:]
        if self._strikes("answer", exchange.number):
            client.sendall(data[: len(data) // 2])
            return False
        if self._strikes("after", exchange.number):  # forward nothing; break once the answer is complete
            return self._speaks_sql and exchange.answer[-len(_READY) - 1 : -1] != _READY
        self._pass_on(data, client)
        return True

    def _delay_commit(self, request: bytes, client: socket.socket, server: socket.socket) -> None:
        """Have a statement carried out for a client that does not see the answer."""
        while request[:1] == b"B" and request[-len(_SYNC) :] != _SYNC:
            request += client.recv(_CHUNK)
        with server.makefile("rb") as answers:
            late = LateCommit(str(self._target), server, answers, request)
            self._late.append(late)
            self.broke = True
            client.shutdown(socket.SHUT_RDWR)
            late.wait()

    def _begin(self, request: bytes) -> int:
        with self._counting:
            self.names.append(_name(request) if self._speaks_sql else "")
            return len(self.names)

    def _strikes(self, where: Where, number: int) -> bool:
        return self._break is not None and (self._break.where, self._break.number) == (where, number)

    def _break_connection(self, client: socket.socket) -> None:
        """Break the connection of *client*; the caller then closes the rest of it."""
        self.broke = True
        if self._break is None:
            return
        if self._break.how == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            with self._lock:
                self._sockets.discard(client)
            client.close()
        elif self._break.how == "half-close":
            client.shutdown(socket.SHUT_WR)
            with suppress(OSError):  # the client resets, or the proxy is closed
                while client.recv(_CHUNK):
                    pass
        elif self._break.how == "stall":
            self._over.wait()

    def _pass_on(self, data: bytes, sink: socket.socket) -> None:
        if self.delay_seconds:
            time.sleep(self.delay_seconds)
        if not self.trickling:
            sink.sendall(data)
            return
        for byte in data:
            sink.sendall(bytes((byte,)))


def _commits(request: bytes, state: bytes) -> bool:
    """Return whether *request*, sent in this transaction *state*, makes the server commit."""
    name = _name(request)
    return name == "COMMIT" or (name == "statement" and state == _IDLE)


def _name(request: bytes) -> str:
    """Return the kind of a request in PostgreSQL's protocol; COMMIT and the like by their keyword."""
    kind = request[:1]
    if kind == b"Q":
        return request[5:].rstrip(b"\0").split()[0].decode()
    return {b"P": "prepare", b"B": "statement", b"C": "forget", b"X": "goodbye"}.get(kind, "startup")
