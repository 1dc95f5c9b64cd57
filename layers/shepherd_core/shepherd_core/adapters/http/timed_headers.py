"""
Connections that are cut off if the headers of an answer are not complete in time.

The timeout of a socket begins again with each byte, so a server that sends its
headers byte by byte could hold a loop forever.
"""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def _timed(connection: HTTPConnection) -> Iterator[None]:
    """Cut *connection* off if the block takes longer than its timeout for reading."""
    sock, seconds = connection.sock, connection.timeout
    if sock is None or not isinstance(seconds, int | float):
        yield
        return
    late = threading.Event()

    def cut() -> None:
        late.set()
        with suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)  # not that of TLS, which may wait

    timer = threading.Timer(seconds, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if late.is_set():
            raise TimeoutError(f"the headers of the answer took longer than {seconds:.1f} s")


class TimedHTTPConnection(HTTPConnection):
    """As its base class; raises TimeoutError if the headers of an answer take too long."""

    def getresponse(self) -> Any:
        """Return the answer, whose headers are complete."""
        with _timed(self):
            return super().getresponse()


class TimedHTTPSConnection(TimedHTTPConnection, HTTPSConnection):
    """The same over TLS."""


class _HTTPPool(HTTPConnectionPool):
    ConnectionCls = TimedHTTPConnection


class _HTTPSPool(HTTPSConnectionPool):
    ConnectionCls = TimedHTTPSConnection


POOLS = {"http": _HTTPPool, "https": _HTTPSPool}
"""The classes of pools of such connections, by scheme."""
