"""The web server of the console, on this computer's own address only."""

from __future__ import annotations

import socket
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import uvicorn

from shepherdctl.console.app import application
from shepherdctl.console.guard import Access
from shepherdctl.console.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shepherd_core.settings.functions import BmdbSettings

_ADDRESS = "127.0.0.1"


@contextmanager
def console(settings: BmdbSettings, port: int) -> Iterator[tuple[uvicorn.Server, socket.socket, Access]]:
    """
    Return a server for the BMDB of *settings*, its socket, and what opens it: ``server.run(sockets=[socket])`` serves.

    *port* 0 is any free one. Nothing is logged about a request: its address may contain the token.

    Raises:
        OSError: the port is taken.
    """
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as listening, closing(Store(settings)) as store:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((_ADDRESS, port))
        access = Access(listening.getsockname()[1])
        config = uvicorn.Config(
            application(store, access),
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=1,
        )
        yield uvicorn.Server(config), listening, access
