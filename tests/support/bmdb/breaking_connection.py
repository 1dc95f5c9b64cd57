"""A proxy in front of a database server that breaks connections on demand, and lets commits arrive late."""

import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import pg8000.native
from shepherd_core.settings.functions.bmdb import BmdbSettings

from simulator.environment.tcp_proxy import TcpProxy

_BIND = b"B"
_QUERY = b"Q"
_SYNC = b"S"
_READY = b"Z"
_ROW = b"D"
_IDLE = b"I"
_PAUSE_SECONDS = 0.002
_LONGEST_SECONDS = 60

Lost = Literal["request", "answer", "late"]
"""
The part that is lost.

REQUEST: the server does nothing. ANSWER: the server has done it. LATE: the answer
is lost while the server is still working: it holds the locks, and commits when
another statement waits for them (``LateCommit``).
"""


@dataclass
class _Loss:
    lost: Lost | None
    """None: the server still waits for a lock."""
    of: bytes
    """The beginning of the request."""
    meanwhile: Callable[[], object]
    silent: bool = False
    stubborn: bool = False
    after: int = 0
    """How many such requests pass before."""


class BreakingConnection(TcpProxy):
    """
    Forwards connections to a server, and breaks one when a request arrives for which a loss was ordered.

    It reads the messages of PostgreSQL's protocol, so that it can break exactly
    before the request is forwarded, or after the server has answered it.
    """

    def __init__(self, settings: BmdbSettings) -> None:
        self._armed: list[_Loss] = []
        self._late: list[LateCommit] = []
        self.requests = 0
        """How often a client asked something and waited for the answer."""
        self._server = f"{settings.bmdb_host}/.s.PGSQL.{settings.bmdb_port}"
        super().__init__(Path(self._server))
        self.settings = settings.model_copy(update={"bmdb_host": "127.0.0.1", "bmdb_port": self.port})

    def close(self) -> None:
        """Break all connections, and accept no more."""
        self.let_go()
        super().close()

    def lose(
        self,
        lost: Lost,
        *,
        commit: bool = False,
        meanwhile: Callable[[], object] = lambda: None,
        silent: bool = False,
        stubborn: bool = False,
        after: int = 0,
    ) -> None:
        """
        Lose the next statement, the one *after* so many, or with *commit* the next COMMIT; several calls lose several.

        *meanwhile* runs after that, before the client notices. For a late loss: with
        *silent* the connection stays open without an answer; with *stubborn* only
        ``let_go`` commits it.
        """
        of = _QUERY + b"COMMIT" if commit else _BIND
        self._armed.append(_Loss(lost, of, meanwhile, silent, stubborn, after))

    def leave(self, once: Callable[[], object]) -> None:
        """Break the connection while the next statement waits for a lock, when *once*, which awaits that, returns."""
        self._armed.append(_Loss(None, _BIND, once))

    def let_go(self) -> None:
        """Let late commits happen, and wait for them; what was to be lost, and was never sent, is not lost later."""
        self._armed.clear()
        for late in self._late:
            late.let_go()

    @property
    def armed(self) -> int:
        return len(self._armed)

    def _forward_all(self, client: socket.socket, server: socket.socket) -> None:
        with client.makefile("rb") as requests, server.makefile("rb") as answers:
            server.sendall(_startup(requests))
            state = _answer(answers, client)
            while request := _request(requests):
                self.requests += 1
                if self._armed and self._is_armed(request):
                    self._lose(self._armed.pop(0), request, state, client, server, answers)
                    return
                server.sendall(request)
                state = _answer(answers, client)
                if not state:
                    return

    def _lose(
        self, loss: _Loss, request: bytes, state: bytes, client: socket.socket, server: socket.socket, answers: BinaryIO
    ) -> None:
        if loss.lost == "late" and (state == _IDLE or request.startswith(_QUERY)):
            late = LateCommit(self._server, server, answers, request)
            self._late.append(late)
            loss.meanwhile()
            if not loss.silent:
                client.shutdown(socket.SHUT_RDWR)
            late.wait(stubborn=loss.stubborn)
            return
        if loss.lost != "request":
            server.sendall(request)
        if loss.lost in ("answer", "late"):
            _answer(answers, None)
        loss.meanwhile()
        if loss.lost is None:  # the server does not notice that its client is gone
            client.shutdown(socket.SHUT_RDWR)
            _answer(answers, None)

    def _is_armed(self, request: bytes) -> bool:
        loss = self._armed[0]
        if loss.of == _BIND:
            found = request.startswith(_BIND)
        else:
            found = request.startswith(_QUERY) and request[5:].startswith(loss.of[1:])
        loss.after -= found
        return found and loss.after < 0


class LateCommit:
    """
    A request whose client is gone; the server executes it, and commits when another statement waits for its locks.

    Others see a commit that hangs at the server: the locks are held, the change is
    not visible, and in the end it becomes visible. *request* is a statement outside
    of a transaction, or a COMMIT.
    """

    def __init__(self, path: str, server: socket.socket, answers: BinaryIO, request: bytes) -> None:
        self._path, self._server, self._answers = path, server, answers
        self._let_go, self._over = threading.Event(), threading.Event()
        self._commit = request
        if not request.startswith(_QUERY):
            self._commit = _query("COMMIT")
            self._ask(_query("BEGIN"))
            self._ask(request)
        self._ask(_query("SET idle_in_transaction_session_timeout = 0"))  # else the server would end the hanging commit
        self._process = int(self._ask(_query("SELECT pg_backend_pid()")))

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
        """Execute a request, and return the last column of its last row, if there is one."""
        self._server.sendall(request)
        found = b""
        while message := _message(self._answers):
            if message[:1] == _ROW:
                found = message[11:]
            if message[:1] == _READY:
                return found
        return found


def _query(text: str) -> bytes:
    return _QUERY + struct.pack("!i", len(text) + 5) + text.encode() + b"\0"


def _startup(requests: BinaryIO) -> bytes:
    """Return the first message of the protocol, which has no type."""
    length = requests.read(4)
    return length + requests.read(struct.unpack("!i", length)[0] - 4)


def _message(stream: BinaryIO) -> bytes:
    head = stream.read(5)
    return head + stream.read(struct.unpack("!i", head[1:])[0] - 4) if len(head) == 5 else b""


def _request(requests: BinaryIO) -> bytes:
    """Return everything up to the message that asks for an answer; nothing if the client is gone."""
    request = b""
    while message := _message(requests):
        request += message
        if message[:1] in (_SYNC, _QUERY):
            return request
    return b""


def _answer(answers: BinaryIO, client: socket.socket | None) -> bytes:
    """Forward everything until the server is ready again, and return its state then; nothing if it is gone."""
    while message := _message(answers):
        if client is not None:
            client.sendall(message)
        if message[:1] == _READY:
            return message[5:]
    return b""
