"""A real PostgreSQL for the tests that need one: one server for all, one database for each."""

import os
from collections.abc import Iterator
from functools import cache

import pg8000.native
import pytest
from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.session import Session
from shepherd_core.domain.clock import SystemClock
from shepherd_core.settings.functions.bmdb import BmdbSettings

from simulator.environment.postgres import Postgres
from tests.conftest import ManualClock
from tests.support.bmdb.breaking_connection import BreakingConnection
from tests.support.bmdb.fleet import Backends, Fleet

# The BMDB runs on several major versions; the wheel brings 16 and 18.
_VERSION = int(os.environ.get("TEST_POSTGRES_VERSION", "18"))


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    from simulator.environment.postgres import Postgres  # noqa: PLC0415 - most tests need no database

    # The driver reads a statement letter by letter to find its parameters, again for each of the tests' connections.
    pg8000.native.to_statement = cache(pg8000.native.to_statement)
    with Postgres(_VERSION) as server:
        # No test pulls the plug: nothing has to reach the disk.
        server.run("ALTER SYSTEM SET fsync = off")
        server.run("ALTER SYSTEM SET full_page_writes = off")
        server.run("SELECT pg_reload_conf()")
        server.run("CREATE ROLE shepherd SUPERUSER LOGIN")  # who owns the schema in a deployment
        yield server


@pytest.fixture
def database(postgres: Postgres) -> Iterator[BmdbSettings]:
    """Return how to reach a migrated, empty database of this test's own, whose schema it may change."""
    settings = postgres.new_database()
    yield settings
    postgres.drop(settings)


@pytest.fixture
def empty_database(postgres: Postgres) -> Iterator[BmdbSettings]:
    settings = postgres.new_database("template1")
    yield settings
    postgres.drop(settings)


@pytest.fixture(scope="session")
def shared_database(postgres: Postgres) -> BmdbSettings:
    """Return how to reach the database that is emptied after every test: ten times as fast as a new one."""
    return postgres.new_database()


@pytest.fixture(scope="session")
def shared_backends(shared_database: BmdbSettings) -> Iterator[Backends]:
    backends = Backends(shared_database)
    yield backends
    backends.close()


@pytest.fixture
def fleet(shared_database: BmdbSettings, shared_backends: Backends, clock: ManualClock) -> Iterator[Fleet]:
    """Return an empty BMDB to plant machines in; afterwards nothing may be left that does not belong together."""
    yield from _planted(shared_database, clock, shared_backends)


@pytest.fixture
def own_fleet(database: BmdbSettings, clock: ManualClock) -> Iterator[Fleet]:
    """Return the same in a database whose schema and settings the test may change."""
    yield from _planted(database, clock)


@pytest.fixture
def real_time(shared_database: BmdbSettings, shared_backends: Backends) -> Iterator[Fleet]:
    """Return a BMDB in the time of the day, for functions that read the clock themselves."""
    fleet = Fleet(shared_database, SystemClock(), shared_backends)
    yield fleet
    fleet.close()


def _planted(settings: BmdbSettings, clock: ManualClock, backends: Backends | None = None) -> Iterator[Fleet]:
    planted = Fleet(settings, clock, backends)
    yield planted
    leaks = planted.leaks()
    planted.close()
    assert not leaks


@pytest.fixture
def connection(fleet: Fleet) -> Connection:
    return fleet.connection


@pytest.fixture
def session(fleet: Fleet) -> Session:
    return fleet.open_session(connection=fleet.connect())


@pytest.fixture
def breaking(fleet: Fleet) -> Iterator[BreakingConnection]:
    """Return a way to the BMDB that breaks on demand, and counts."""
    with BreakingConnection(fleet.settings) as way:
        yield way
        unused = way.armed
        fleet.disconnect()
    assert not unused, "the connection was never broken, so nothing was tested"
