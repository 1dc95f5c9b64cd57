"""
A network that fails at a chosen place: a TCP proxy in front of PostgreSQL, a provider or a machine's SSH.

Everything that a client sends until the other side answers is a request; request
and answer are an exchange. So the proxy can break any protocol in the middle
without knowing it. Of PostgreSQL it knows three things: what is asked; the end of
an answer, because only then the effect has certainly happened; and how to have a
statement carried out whose commit comes late.
"""

import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import pg8000.native
from shepherd_core.settings.functions.bmdb import BmdbSettings

from simulator.environment.tcp_proxy import TcpProxy

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

Lost = Literal["request", "answer", "late"]
"""
The part that is lost.

REQUEST: the server does nothing. ANSWER: the server has done it. LATE: the answer
is lost while the server is still working: it holds the locks, and commits when
another statement waits for them (``LateCommit``).
"""

_CHUNK = 1 << 16
_READY = b"Z\0\0\0\5"
"""The beginning of the message that ends every answer of PostgreSQL; one byte follows: the state of the transaction."""
_READY_BYTES = len(_READY) + 1
_IDLE = b"I"
_SYNC = b"S\0\0\0\4"
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER, with nothing to linger for
_PAUSE_SECONDS = 0.002
_LONGEST_SECONDS = 60


@dataclass(frozen=True)
class Break:
    """One connection breaks, at exchange *number*, counted from 1 since the proxy was armed."""

    number: int
    where: Where
    how: How

    def __str__(self) -> str:
        return f"{self.how} at {self.where} {self.number}"


@dataclass
class _Loss:
    lost: Lost | None
    """None: nothing."""
    of: str
    """The kind of the request."""
    meanwhile: Callable[[], object]
    stubborn: bool = False
    after: int = 0
    """How many such requests pass before."""


@dataclass
class _Exchange:
    number: int = 0
    answered: bool = True
    answer: bytes = b""
    where: Where | None = None
    """Where it breaks."""
    loss: _Loss | None = None
    state: bytes = b""
    """Of the transaction, as the server reported it last."""

    @property
    def complete(self) -> bool:
        return self.answer[-_READY_BYTES:-1] == _READY


class Proxy(TcpProxy):
    """Forwards data, byte by byte if configured, and breaks one connection if armed."""

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
        self.trickling = False
        """Whether bytes are forwarded one by one."""
        super().__init__(target, address, port=port)

    def arm(self, broken: Break) -> None:
        self._break, self.broke = broken, False
        self.connections, self.names = 0, []

    def let_go(self) -> None:
        """Let the late commits happen, and wait for them."""
        for late in self._late:
            late.let_go()

    def close(self) -> None:
        self.let_go()
        self._over.set()
        super().close()

    def _forward_all(self, client: socket.socket, server: socket.socket) -> None:
        with self._counting:
            self.connections += 1
            place = ("connect", self.connections)
        if self._break is not None and (self._break.where, self._break.number) == place:
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
        if exchange.loss is not None:
            exchange.loss.meanwhile()
        self._break_connection(client)

    def _ask(self, exchange: _Exchange, data: bytes, client: socket.socket, server: socket.socket) -> bool:
        """Forward the client's data; False: break now."""
        if exchange.answered:
            exchange.answered, exchange.answer = False, b""
            self._begin(exchange, _name(data) if self._speaks_sql else "")
        if exchange.where == "request":
            server.sendall(data[: len(data) // 2])
            return False
        if exchange.where == "commit" and _commits(data, exchange.state):
            self._delay_commit(exchange, data, client, server)
            return False
        self._pass_on(data, server)
        return True

    def _answer(self, exchange: _Exchange, data: bytes, client: socket.socket, server: socket.socket) -> bool:
        """Forward the server's data; False: break now."""
        exchange.answered = True
        exchange.answer += data
        if exchange.complete:
            exchange.state = exchange.answer[-1:]
        if exchange.where == "answer":
            client.sendall(data[: len(data) // 2])
            return False
        if exchange.where == "after":  # forward nothing; break once the answer is complete
            return self._speaks_sql and not exchange.complete
        self._pass_on(data, client)
        return True

    def _delay_commit(self, exchange: _Exchange, request: bytes, client: socket.socket, server: socket.socket) -> None:
        """Have a statement carried out for a client that does not see the answer."""
        late = LateCommit(str(self._target), server, _whole(request, client))
        self._late.append(late)
        self.broke = True
        loss, exchange.loss = exchange.loss, None
        if loss is not None:
            loss.meanwhile()
        client.shutdown(socket.SHUT_RDWR)
        late.wait(stubborn=loss is not None and loss.stubborn)

    def _begin(self, exchange: _Exchange, name: str) -> None:
        with self._counting:
            self.names.append(name)
            exchange.number = len(self.names)
        if self._break is not None and self._break.number == exchange.number:
            exchange.where = self._break.where

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
        if not self.trickling:
            sink.sendall(data)
            return
        for byte in data:
            sink.sendall(bytes((byte,)))


class BreakingConnection(Proxy):
    """Forwards connections to a database server, and breaks one when a request comes for which a loss was ordered."""

    def __init__(self, settings: BmdbSettings) -> None:
        self._armed: list[_Loss] = []
        super().__init__(Path(settings.bmdb_host) / f".s.PGSQL.{settings.bmdb_port}", speaks_sql=True)
        self.settings = settings.model_copy(update={"bmdb_host": "127.0.0.1", "bmdb_port": self.port})

    @property
    def requests(self) -> int:
        """Return how often a client asked something and waited for the answer."""
        return sum(name not in ("startup", "goodbye") for name in self.names)

    @property
    def armed(self) -> int:
        return len(self._armed)

    def lose(
        self,
        lost: Lost,
        *,
        commit: bool = False,
        meanwhile: Callable[[], object] = lambda: None,
        stubborn: bool = False,
        after: int = 0,
    ) -> None:
        """
        Lose the next statement, the one *after* so many, or with *commit* the next COMMIT; several calls lose several.

        *meanwhile* runs after that, before the client notices. A late loss that is *stubborn* is committed by
        ``let_go`` alone.
        """
        self._armed.append(_Loss(lost, "COMMIT" if commit else "statement", meanwhile, stubborn, after))

    def before(self, number: int, happening: Callable[[], object]) -> None:
        """Let something happen just before the statement with this number is passed on."""
        self._armed.append(_Loss(None, "statement", happening, after=number - 1))

    def let_go(self) -> None:
        """Let late commits happen, and wait for them; what was to be lost, and was never sent, is not lost later."""
        self._armed.clear()
        super().let_go()

    def _begin(self, exchange: _Exchange, name: str) -> None:
        super()._begin(exchange, name)
        if not self._armed or self._armed[0].of != name:
            return
        self._armed[0].after -= 1
        if self._armed[0].after < 0:
            loss = self._armed.pop(0)
            if loss.lost is None:
                loss.meanwhile()
                return
            exchange.loss = loss
            alone = name == "COMMIT" or exchange.state == _IDLE
            where: dict[Lost, Where] = {"request": "request", "answer": "after", "late": "commit" if alone else "after"}
            exchange.where = where[loss.lost]


class LateCommit:
    """
    A request whose client is gone; the server executes it, and commits when another statement waits for its locks.

    Others see a commit that hangs at the server: the locks are held, the change is
    not visible, and in the end it becomes visible. *request* is a statement outside
    of a transaction, or a COMMIT.
    """

    def __init__(self, path: str, server: socket.socket, request: bytes) -> None:
        self._path, self._server = path, server
        self._let_go, self._over = threading.Event(), threading.Event()
        self._commit = request
        if _name(request) != "COMMIT":
            self._commit = _query("COMMIT")
            self._ask(_query("BEGIN"))
            self._ask(request)
        self._ask(_query("SET idle_in_transaction_session_timeout = 0"))  # else the server would end the hanging commit
        row = self._ask(_query("SELECT 'process ' || pg_backend_pid()"))
        self._process = int(row.partition(b"process ")[2].partition(b"C")[0])

    def let_go(self) -> None:
        self._let_go.set()
        assert self._over.wait(_LONGEST_SECONDS)

    def wait(self, *, stubborn: bool = False) -> None:
        """Commit when another statement waits for the locks (unless *stubborn*) or ``let_go`` is called."""
        end = time.monotonic() + _LONGEST_SECONDS
        try:
            with pg8000.native.Connection(
                "postgres", database="postgres", unix_sock=self._path, ssl_context=False
            ) as observer:
                while not self._let_go.is_set() and time.monotonic() < end:
                    if not stubborn and self._is_waited_for(observer):
                        break
                    time.sleep(_PAUSE_SECONDS)
            self._ask(self._commit)
        finally:
            self._over.set()

    def _is_waited_for(self, observer: pg8000.native.Connection) -> bool:
        waiting = "wait_event_type = 'Lock' AND :process = ANY(pg_blocking_pids(pid))"
        rows = observer.run(f"SELECT count(*) FROM pg_stat_activity WHERE {waiting}", process=self._process)
        return bool(rows and rows[0][0])

    def _ask(self, request: bytes) -> bytes:
        """Execute a request, and return the answer."""
        self._server.sendall(request)
        answer = b""
        while answer[-_READY_BYTES:-1] != _READY and (more := self._server.recv(_CHUNK)):
            answer += more
        return answer


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


def _whole(request: bytes, client: socket.socket) -> bytes:
    """Return a request with what the client has still to send of it."""
    while request[:1] == b"B" and request[-len(_SYNC) :] != _SYNC:
        request += client.recv(_CHUNK)
    return request


def _query(text: str) -> bytes:
    return b"Q" + struct.pack("!i", len(text) + 5) + text.encode() + b"\0"
