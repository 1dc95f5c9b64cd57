"""A TCP proxy in front of a port or of PostgreSQL's Unix socket, for clients that cannot reach it directly."""

import selectors
import socket
import ssl
import struct
import threading
from contextlib import suppress
from pathlib import Path

from simulator.closeable import Closeable
from simulator.providers.kit.http_server import disconnect

_CHUNK = 1 << 16
_TLS_REQUEST = struct.pack("!ii", 8, 80_877_103)
"""The first message of a PostgreSQL client that asks for TLS: length and code."""


class TcpProxy(Closeable):
    """Forwards every connection to *port* of *address*, from the start. Safe to use from any thread."""

    def __init__(
        self,
        target: Path | tuple[str, int],
        address: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
        *,
        port: int = 0,
    ) -> None:
        """*target* is a Unix socket, or address and port. With *tls*, clients must ask for TLS, which ends here."""
        self._target = target
        self._tls = tls
        self._passable = threading.Event()
        self._passable.set()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._closed = False
        self._listener = socket.create_server((address, port))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, name="tcp-proxy")]
        self._threads[0].start()

    def stall(self) -> None:
        """Forward nothing, not even the end of a connection, as if all packets were lost."""
        self._passable.clear()

    def resume(self) -> None:
        """Forward what has been waiting, and go on."""
        self._passable.set()

    def close(self) -> None:
        """End all connections and accept no more."""
        with self._lock:
            self._closed = True
            for each in (self._listener, *self._sockets):
                disconnect(each)
        self._passable.set()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            with self._lock:
                if self._closed:
                    client.close()
                    return
                self._sockets.add(client)
                self._threads = [thread for thread in self._threads if thread.is_alive()]
                thread = threading.Thread(target=self._serve, args=(client,), name="tcp-proxy")
                self._threads.append(thread)
                thread.start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError), self._greeted(client) as greeted, self._connected() as server:
            for each in (greeted, server):
                if each.family != socket.AF_UNIX:
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._forward_all(greeted, server)
        with self._lock:
            self._sockets = {each for each in self._sockets if each.fileno() >= 0}

    def _connected(self) -> socket.socket:
        if isinstance(self._target, tuple):
            return socket.create_connection(self._target)
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(str(self._target))
        except OSError:
            server.close()
            raise
        return server

    def _forward_all(self, client: socket.socket, server: socket.socket) -> None:
        """Forward a connection until either side ends it or fails."""
        with selectors.DefaultSelector() as selector:
            selector.register(client, selectors.EVENT_READ, server)
            selector.register(server, selectors.EVENT_READ, client)
            while all(self._forward(key.fileobj, key.data) for key, _ in selector.select()):  # type: ignore[arg-type] # sockets
                pass

    def _forward(self, source: socket.socket, sink: socket.socket) -> bool:
        """Forward one chunk of *source*; return False at its end."""
        data = source.recv(_CHUNK)
        while isinstance(source, ssl.SSLSocket) and source.pending():
            data += source.recv(_CHUNK)
        self._passable.wait()
        sink.sendall(data)
        return bool(data)

    def _greeted(self, client: socket.socket) -> socket.socket:
        """
        Return the connection to forward, after the TLS handshake if there is one.

        Raises:
            OSError: the client does not ask for TLS, or does not trust the certificate.
        """
        if self._tls is None:
            return client
        if client.recv(len(_TLS_REQUEST), socket.MSG_WAITALL) != _TLS_REQUEST:
            raise ConnectionAbortedError
        client.sendall(b"S")
        with self._lock:
            encrypted = self._tls.wrap_socket(client, server_side=True, do_handshake_on_connect=False)
            self._sockets.add(encrypted)
        try:
            encrypted.do_handshake()
        except OSError:
            encrypted.close()
            raise
        return encrypted
