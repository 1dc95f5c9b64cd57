"""The web server of the console, on this computer's own address only."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from shepherdctl.console import connection_owner
from shepherdctl.console.app import Console
from shepherdctl.console.bmdb_reader import BmdbReader
from shepherdctl.console.guard import Access

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

    from shepherd_core.settings.functions.bmdb import BmdbSettings

_ADDRESS = "127.0.0.1"
_STOP_SECONDS = 30
_REQUEST_SECONDS = 10
"""For a request to arrive whole; a browser on this computer needs milliseconds."""
_ROOT = 0
"""Root may do everything anyway, and forwards ports into containers and virtual machines."""


class _OwnConnection(H11Protocol):
    """
    A connection of the user who started the console; it ends at once if it is another user's.

    Others may have seen the token, or the cookie, which browsers send to every port of this
    computer. It also ends if a request does not arrive whole in time.
    """

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Take the connection, if it is our user's or nobody knows whose."""
        super().connection_made(transport)
        client, server = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        if client is None or connection_owner.user_id(client, server) not in {None, _ROOT, os.getuid()}:
            transport.abort()
        else:
            self._await_request()

    def data_received(self, data: bytes) -> None:
        """Read the next part of a request."""
        super().data_received(data)
        if self._late is not None and self.conn.their_state is not h11.IDLE:
            self._late.cancel()
            self._late = None
        elif self._late is None and self.conn.their_state is h11.IDLE:
            self._await_request()

    def _await_request(self) -> None:
        self._late = self.loop.call_later(_REQUEST_SECONDS, self.transport.close)


@contextmanager
def console(settings: BmdbSettings, port: int) -> Iterator[tuple[uvicorn.Server, socket.socket, Access]]:
    """
    Yield a server for the BMDB of *settings*, its socket, and its ``Access``. Run ``server.run(sockets=[socket])``.

    *port* 0 is any free one. Requests are not logged: an address may contain the token.

    Raises:
        OSError: the port is taken.
    """
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as listening, closing(BmdbReader(settings)) as bmdb:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((_ADDRESS, port))
        listening.listen()  # a browser may connect before the server runs
        access = Access(listening.getsockname()[1])
        config = uvicorn.Config(
            Console(bmdb, access).application(),
            http=_OwnConnection,
            log_level="error",  # what others send is not worth a line
            access_log=False,
            server_header=False,
            proxy_headers=False,  # with them, a client could claim another address
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=1,
        )
        yield uvicorn.Server(config), listening, access


@contextmanager
def background(settings: BmdbSettings) -> Iterator[Access]:
    """Yield the ``Access`` of a console that runs in a thread until the end of the block. It takes requests at once."""
    with console(settings, 0) as (server, listening, access):
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            yield access
        finally:
            server.should_exit = True
            thread.join(_STOP_SECONDS)
