"""The web server of the console, on this computer's own address only."""

from __future__ import annotations

import socket
import threading
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import uvicorn

from shepherdctl.console.app import Console
from shepherdctl.console.bmdb_reader import BmdbReader
from shepherdctl.console.guard import Access

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shepherd_core.settings.functions.bmdb import BmdbSettings

_ADDRESS = "127.0.0.1"
_STOP_SECONDS = 30


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
            log_level="warning",
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
