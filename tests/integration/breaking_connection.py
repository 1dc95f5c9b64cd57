"""A server's socket through which connections break when a test says so."""

from __future__ import annotations

import shutil
import socket
import struct
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from shepherd_core.config import BmdbSettings

_BIND = b"B"
_QUERY = b"Q"
_SYNC = b"S"
_READY = b"Z"

Lost = Literal["request", "answer"]
"""What is lost: the request, so that the server does nothing; or the answer, when the server has done it."""


class BreakingConnection:
    """
    Forwards connections to a server, and breaks the one over which an armed request comes.

    It reads the messages of PostgreSQL's protocol, so that it breaks exactly
    there: before the request is forwarded, or after the server has answered it.
    """

    def __init__(self, settings: BmdbSettings) -> None:
        self._server = f"{settings.bmdb_host}/.s.PGSQL.{settings.bmdb_port}"
        # Not in pytest's folder: the path of a Unix socket must be short.
        self._folder = tempfile.mkdtemp(prefix="break-")
        self.settings = settings.model_copy(update={"bmdb_host": self._folder})
        self._armed: list[tuple[Lost, bytes, Callable[[], object]]] = []
        self.requests = 0
        """How often a client asked something and waited for the answer."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(Path(self._folder) / f".s.PGSQL.{settings.bmdb_port}"))
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(timeout=10)
        shutil.rmtree(self._folder)

    def lose(self, lost: Lost, *, commit: bool = False, meanwhile: Callable[[], object] = lambda: None) -> None:
        """
        Lose the next statement, or with *commit* the next COMMIT; several calls lose several, one after another.

        *meanwhile* runs after that and before the client notices.
        """
        self._armed.append((lost, _QUERY + b"COMMIT" if commit else _BIND, meanwhile))

    @property
    def armed(self) -> int:
        """Return how many of the losses that were asked for have not happened."""
        return len(self._armed)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(client,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server:
            server.connect(self._server)
            requests, answers = client.makefile("rb"), server.makefile("rb")
            with requests, answers:
                server.sendall(_startup(requests))
                _answer(answers, client)
                while request := _request(requests):
                    self.requests += 1
                    if self._armed and self._is_armed(request):
                        lost, _, meanwhile = self._armed.pop(0)
                        if lost == "answer":
                            server.sendall(request)
                            _answer(answers, None)
                        meanwhile()
                        return
                    server.sendall(request)
                    if not _answer(answers, client):
                        return

    def _is_armed(self, request: bytes) -> bool:
        what = self._armed[0][1]
        if what == _BIND:
            return request.startswith(_BIND)
        return request.startswith(_QUERY) and request[5:].startswith(what[1:])


if TYPE_CHECKING:
    from typing import BinaryIO


def _startup(requests: BinaryIO) -> bytes:
    """Return the first message, which has no type."""
    length = requests.read(4)
    return length + requests.read(struct.unpack("!i", length)[0] - 4)


def _message(stream: BinaryIO) -> bytes:
    head = stream.read(5)
    return head + stream.read(struct.unpack("!i", head[1:])[0] - 4) if len(head) == 5 else b""


def _request(requests: BinaryIO) -> bytes:
    """Return everything up to what asks for an answer; nothing if the client is gone."""
    request = b""
    while message := _message(requests):
        request += message
        if message[:1] in (_SYNC, _QUERY):
            return request
    return b""


def _answer(answers: BinaryIO, client: socket.socket | None) -> bool:
    """Pass on everything up to where the server is ready again; False: it is gone."""
    while message := _message(answers):
        if client is not None:
            client.sendall(message)
        if message[:1] == _READY:
            return True
    return False
