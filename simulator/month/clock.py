"""A clock that the simulation moves, for the functions and for their database."""

import time
from contextlib import closing

from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.schema.migrate import migrate
from shepherd_core.bmdb.wire.driver import Driver
from shepherd_core.domain.clock import SystemClock
from shepherd_core.domain.errors.bmdb import BmdbUnavailable

from simulator.closeable import Assembled
from simulator.environment.postgres import Postgres

# Views and defaults keep what a name meant when they were made, so these come before the migrations.
_CLOCK = """
CREATE TABLE simulated_clock AS SELECT interval '0' AS ahead;
CREATE FUNCTION clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
    AS 'SELECT pg_catalog.clock_timestamp() + (SELECT ahead FROM public.simulated_clock)';
CREATE FUNCTION statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE
    AS 'SELECT pg_catalog.statement_timestamp() + (SELECT ahead FROM public.simulated_clock)';
CREATE FUNCTION now() RETURNS timestamptz LANGUAGE sql STABLE
    AS 'SELECT pg_catalog.now() + (SELECT ahead FROM public.simulated_clock)';
"""


class SimulatedClock(SystemClock):
    """The clock of this machine, moved ahead; whoever sleeps moves it."""

    def __init__(self) -> None:
        """Begin with the present time."""
        self.ahead = 0.0

    def monotonic(self) -> float:
        """Return the seconds since an arbitrary moment."""
        return time.monotonic() + self.ahead

    def time_of_day(self) -> int:
        """Return the milliseconds since the Unix epoch."""
        return super().time_of_day() + round(1000 * self.ahead)

    def sleep(self, seconds: float) -> None:
        """Let *seconds* pass at once."""
        self.ahead += max(0.0, seconds)


class _SimulatedConnection(Connection):
    """A connection to a database whose clock is simulated."""

    def __init__(self, bmdb: "SimulatedBmdb") -> None:
        super().__init__(bmdb.settings, None, bmdb.clock)
        self._bmdb = bmdb

    def _open(self) -> Driver:
        if self._bmdb.down:
            message = "the database is down"
            raise BmdbUnavailable(message)
        driver = super()._open()
        driver.run("SET search_path = public, pg_catalog; SET synchronous_commit = off")
        return driver


class SimulatedBmdb(Assembled):
    """A BMDB whose clock the simulation moves, and which it takes down."""

    def __init__(self, clock: SimulatedClock) -> None:
        """Exist from entry to exit."""
        super().__init__()
        self.clock = clock
        self.down = False
        self._connections: list[Connection] = []

    def _make(self) -> None:
        postgres = self._enter(Postgres)
        self.settings = postgres.new_database("template1")
        self._admin = self.connection()
        self._admin.transact(lambda: self._admin.script(_CLOCK))
        migrate(self._admin)

    def connection(self) -> Connection:
        """Return a new connection, which is closed with this."""
        made = self._enter(lambda: closing(_SimulatedConnection(self)))
        self._connections.append(made)
        return made

    def set_down(self, *, down: bool) -> None:
        """Take the database down, or up again."""
        self.down = down
        for each in self._connections if down else ():
            each.close()

    def move(self, seconds: float) -> None:
        """Let *seconds* pass."""
        self.clock.ahead += seconds
        was, self.down = self.down, False
        statement = f"UPDATE simulated_clock SET ahead = {self.clock.ahead} * interval '1 second'"  # noqa: S608 - a number
        self._admin.transact(lambda: self._admin.script(statement))
        self.down = was
