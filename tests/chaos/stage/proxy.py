"""
A network that fails where a test says: a TCP port in front of PostgreSQL, of the provider or of a machine's SSH.

What a client says until the other side speaks is a request, and with what comes
back an exchange; so it needs no knowledge of a protocol to break in the middle
of any. Of PostgreSQL it knows three things: what a COMMIT looks like, when an
answer is complete, because only then the effect is sure to have happened, and
how to have a statement carried out whose commit comes late.
"""

from __future__ import annotations

import selectors
import socket
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from simulator.environment.tcp_proxy import TcpProxy
from tests.support.bmdb.breaking_connection import LateCommit

if TYPE_CHECKING:
    from pathlib import Path

Where = Literal["connect", "request", "answer", "after", "commit"]
"""
Before a word was said; half of the request arrived; half of the answer arrived; all was done and no answer came; no
answer came, and what was done is committed when somebody waits for it (PostgreSQL alone).
"""

How = Literal["cut", "reset", "half-close", "stall"]
"""
Closed in both directions; reset (RST); closed in the client's direction only; nothing is carried any more, nor is its
end, so that the server goes on waiting for a client that gave up long ago.
"""

WHERE: tuple[Where, ...] = get_args(Where)[:-1]
HOW: tuple[How, ...] = get_args(How)

_CHUNK = 1 << 16
_READY = b"Z\0\0\0\5"
"""How the message of PostgreSQL begins that ends every answer; one byte follows."""
_IDLE = b"I"
_SYNC = b"S\0\0\0\4"
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER, with nothing to linger for


@dataclass(frozen=True)
class Break:
    """One connection breaks, at the exchange *number* of all that there were since this was armed, from 1."""

    number: int
    where: Where
    how: How

    def __str__(self) -> str:
        return f"{self.how} at {self.where} {self.number}"


@dataclass
class _Exchange:
    """The exchange that a connection is at."""

    number: int = 0
    answered: bool = True
    answer: bytes = b""
    client_bytes: int = 0
    """Of the whole connection."""
    ready: bytes = b""
    """In which state the server was when it said last that it is."""


class Proxy(TcpProxy):
    """Carries what it is given, slowly if told to, and breaks once what it is armed for."""

    def __init__(
        self, target: Path | tuple[str, int], address: str = "127.0.0.1", *, port: int = 0, speaks_sql: bool = False
    ) -> None:
        """*speaks_sql*: what is behind it is PostgreSQL."""
        self._speaks_sql = speaks_sql
        self._break: Break | None = None
        self._over = threading.Event()
        self._late: list[LateCommit] = []
        self._counting = threading.Lock()
        self.connections = 0
        """How many were made."""
        self.names: list[str] = []
        """The requests, in their order; of PostgreSQL with what they are."""
        self.struck = False
        """Whether the break that was armed has happened."""
        self.delay_seconds = 0.0
        """So long everything takes."""
        self.trickling = False
        """Whether bytes come one by one."""
        self.client_bytes = float("inf")
        """After so many of a client's bytes its connection is closed."""
        super().__init__(target, address, port=port)

    def arm(self, broken: Break | None) -> None:
        """Break there, or nowhere, and count from the beginning."""
        self._break, self.struck = broken, False
        self.connections, self.names = 0, []

    def let_go(self) -> None:
        """Let commits that are late happen, and wait for that."""
        for late in self._late:
            late.let_go()

    def close(self) -> None:
        """Break all connections, those that were stalled too."""
        self.let_go()
        self._over.set()
        super().close()

    def _forward_all(self, client: socket.socket, server: socket.socket) -> None:
        with self._counting:
            self.connections += 1
            connection = self.connections
        if self._strikes("connect", connection):
            self._harm(client)
            return
        exchange = _Exchange()
        with selectors.DefaultSelector() as selector:
            for each in (client, server):
                selector.register(each, selectors.EVENT_READ)
            while True:
                # One at a time: what the server said is dealt with before what it is answered.
                source = selector.select()[-1][0].fileobj
                data = (client if source is client else server).recv(_CHUNK)
                if not data:
                    return
                if not (self._ask if source is client else self._answer)(exchange, data, client, server):
                    break
        self._harm(client)

    def _ask(self, exchange: _Exchange, data: bytes, client: socket.socket, server: socket.socket) -> bool:
        """Carry what the client says; False: it is time to break."""
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
        """Carry what the server says; False: it is time to break."""
        exchange.answered = True
        exchange.answer += data
        if exchange.answer[-len(_READY) - 1 : -1] == _READY:
            exchange.ready = exchange.answer[-1:]
        if self._strikes("answer", exchange.number):
            client.sendall(data[: len(data) // 2])
            return False
        if self._strikes("after", exchange.number):  # nothing is carried any more; once it has happened, it breaks
            return self._speaks_sql and exchange.answer[-len(_READY) - 1 : -1] != _READY
        self._pass_on(data, client)
        return True

    def _delay_commit(self, request: bytes, client: socket.socket, server: socket.socket) -> None:
        """Have a statement carried out for a client that hears no more of it."""
        while request[:1] == b"B" and request[-len(_SYNC) :] != _SYNC:
            request += client.recv(_CHUNK)
        with server.makefile("rb") as answers:
            late = LateCommit(str(self._target), server, answers, request)
            self._late.append(late)
            self.struck = True
            client.shutdown(socket.SHUT_RDWR)
            late.wait()

    def _begin(self, request: bytes) -> int:
        """Count an exchange and return its number."""
        with self._counting:
            self.names.append(_name(request) if self._speaks_sql else "")
            return len(self.names)

    def _strikes(self, where: Where, number: int) -> bool:
        return self._break is not None and (self._break.where, self._break.number) == (where, number)

    def _harm(self, client: socket.socket) -> None:
        """Break the connection of *client*; when this returns, the rest of it is closed."""
        self.struck = True
        if self._break is None:
            return
        if self._break.how == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            with self._lock:
                self._sockets.discard(client)
            client.close()
        elif self._break.how == "half-close":
            client.shutdown(socket.SHUT_WR)
            with suppress(OSError):  # it resets, or the proxy is closed
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
    """Return whether the server commits when it has carried out *request*, which it was ready for in this *state*."""
    name = _name(request)
    return name == "COMMIT" or (name == "statement" and state == _IDLE)


def _name(request: bytes) -> str:
    """Return what a request of PostgreSQL's protocol is: COMMIT and the like by their word."""
    kind = request[:1]
    if kind == b"Q":
        return request[5:].rstrip(b"\0").split()[0].decode()
    return {b"P": "prepare", b"B": "statement", b"C": "forget", b"X": "goodbye"}.get(kind, "startup")
