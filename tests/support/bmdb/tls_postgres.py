import socket
import ssl
from pathlib import Path

import pg8000.native

from simulator.environment.tcp_proxy import TcpProxy

ADDRESS = "127.0.0.2"
"""This machine, like all of 127/8; but Shepherd does not treat it as local, and verifies its certificate."""

USER, PASSWORD = "keeper", "correct-horse-battery"


class TlsProxy(TcpProxy):
    """
    A TCP port in front of a Unix socket, as a pooler would be: for a PostgreSQL that was built without TLS.

    With *tls* it encrypts like PostgreSQL; without, the server itself says that
    it does not. Without *path* it completes the TLS handshake and sends nothing more.
    """

    def __init__(self, path: Path | None, tls: ssl.SSLContext | None, address: str = ADDRESS) -> None:
        self.encrypted = 0
        """How many connections were encrypted."""
        super().__init__(path or Path(), address, tls)
        if path is None:
            self.stall()

    def _greeted(self, client: socket.socket) -> socket.socket:
        greeted = super()._greeted(client)
        self.encrypted += self._tls is not None
        return greeted

    def _connected(self) -> socket.socket:
        self._passable.wait()
        return super()._connected()


def make_user(path: Path) -> None:
    with pg8000.native.Connection("postgres", database="postgres", unix_sock=str(path), ssl_context=False) as admin:
        admin.run("SET password_encryption = 'scram-sha-256'")
        admin.run(f"CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'")
