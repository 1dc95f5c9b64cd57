"""The HTTPS servers of simulated BMCs, each at its own port, with one thread for all."""

import selectors
import socket
import threading
from collections.abc import Collection

from simulator.providers.kit.http_server import Server


class BmcServers:
    """Any number of servers, for which one thread accepts connections; they must not be started."""

    def __init__(self, listeners: Collection[Server]) -> None:
        self._listeners = listeners
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="bmcs", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close all servers."""
        self._wake.close()
        self._thread.join()
        self._woken.close()
        for listener in self._listeners:
            listener.close()

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            for listener in self._listeners:
                selector.register(listener, selectors.EVENT_READ, listener)
            while True:
                for key, _ in selector.select():
                    if key.data is None:
                        return
                    key.data.handle_request()
