"""PostgreSQL servers that speak TLS, with certificates of the tests' own, at an address that counts as remote."""

import os
import shutil
import socket
import ssl
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
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


def encrypting_postgres() -> Path | None:
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        configuration = subprocess.run([folder / "pg_config", "--configure"], check=True, capture_output=True).stdout
        if b"openssl" in configuration:
            return folder
    return None


@contextmanager
def running(programs: Path, certificate: Path) -> Iterator[int]:
    """Run a PostgreSQL with *certificate* and its key; ``USER`` with ``PASSWORD`` may use the port, with TLS alone."""
    # Not in the tests' own folder: the path of a Unix socket must be short.
    with tempfile.TemporaryDirectory(prefix="bmdb-") as name:
        folder = Path(name)
        data, log, output = folder / "data", folder / "log", folder / "output"
        data.mkdir(mode=0o700)
        log.touch()
        pem = folder / "server.pem"
        pem.write_bytes(certificate.read_bytes())
        pem.chmod(0o600)
        user = "nobody" if os.geteuid() == 0 else None  # PostgreSQL refuses to run as root
        if user is not None:
            for each in (folder, *folder.iterdir()):
                shutil.chown(each, user)

        def run(program: str, *arguments: str) -> None:
            with output.open("wb") as file:  # not a pipe: the server would keep it open
                command: list[str | Path] = [programs / program, *arguments]
                done = subprocess.run(command, check=False, stdout=file, stderr=file, user=user)
            assert done.returncode == 0, output.read_text() + log.read_text()

        run("initdb", "--auth=trust", "-U", "postgres", "-D", str(data))
        rules = f"local all all trust\nhostssl all {USER} all scram-sha-256\n"
        (data / "pg_hba.conf").write_text(rules)
        with socket.create_server((ADDRESS, 0)) as free:
            port: int = free.getsockname()[1]
        options = {
            "listen_addresses": ADDRESS,
            "port": port,
            "unix_socket_directories": folder,
            "fsync": "off",
            "ssl": "on",
            "ssl_cert_file": pem,
            "ssl_key_file": pem,
        }
        with (data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in options.items())
        run("pg_ctl", "-w", "-D", str(data), "-l", str(log), "start")
        try:
            make_user(folder / f".s.PGSQL.{port}")
            yield port
        finally:
            run("pg_ctl", "-w", "-m", "immediate", "-D", str(data), "stop")


def make_user(path: Path) -> None:
    with pg8000.native.Connection("postgres", database="postgres", unix_sock=str(path), ssl_context=False) as admin:
        admin.run("SET password_encryption = 'scram-sha-256'")
        admin.run(f"CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'")
