"""Migrations: ordered, each applied once, however often and concurrently they are run."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import pytest
from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.schema.migrate import Migration, migrate, migrations, schema_version
from shepherd_core.bmdb.session import Session
from shepherd_core.domain.errors.bmdb import MigrationRefused, SchemaMismatch, StatementFailed
from shepherd_core.settings.functions.bmdb import BmdbSettings

from tests.conftest import ManualClock

FIRST = Migration(1, "first", "CREATE TABLE one (x int);")
SECOND = Migration(2, "second", "CREATE TABLE two (x int); INSERT INTO two VALUES (2);")
BROKEN = Migration(2, "broken", "CREATE TABLE half (x int); SELECT 1 / 0;")

NEWEST = migrations()[-1].version


@pytest.fixture
def connect(empty_database: BmdbSettings, clock: ManualClock) -> Iterator[Callable[[], Connection]]:
    made: list[Connection] = []

    def connect() -> Connection:
        made.append(Connection(empty_database, None, clock))
        return made[-1]

    yield connect
    for connection in made:
        connection.close()


def tables(connection: Connection) -> set[str]:
    driver = connection._connected()
    rows = driver.run("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'")
    return {row[0] for row in rows or []}


def test_migrations_are_numbered_from_one_without_a_gap() -> None:
    assert [migration.version for migration in migrations()] == list(range(1, len(migrations()) + 1))


def test_migrating_again_changes_nothing(connect: Callable[[], Connection]) -> None:
    connection = connect()
    assert migrate(connection) == list(migrations())
    assert schema_version(connection) == migrations()[-1].version
    assert migrate(connection) == []


def test_missing_migrations_are_applied_in_order(connect: Callable[[], Connection]) -> None:
    connection = connect()
    assert schema_version(connection) == 0
    assert migrate(connection, known=(FIRST,)) == [FIRST]
    assert migrate(connection, known=(FIRST, SECOND, Migration(3, "third", "ALTER TABLE two ADD y int"))) == [
        SECOND,
        Migration(3, "third", "ALTER TABLE two ADD y int"),
    ]
    assert schema_version(connection) == 3


def test_runners_at_the_same_time_apply_each_migration_once(connect: Callable[[], Connection]) -> None:
    """Two deployments, or a retried one, must not meet in the middle of a schema."""
    together = Barrier(4)

    def runner(connection: Connection) -> list[Migration]:
        together.wait(timeout=10)
        return migrate(connection)

    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(runner, [connect() for _ in range(4)]))
    applied = [migration for outcome in outcomes for migration in outcome]
    assert sorted(applied, key=lambda migration: migration.version) == list(migrations())


def test_an_edited_migration_is_refused(connect: Callable[[], Connection]) -> None:
    connection = connect()
    migrate(connection, known=(FIRST,))
    edited = replace(FIRST, text="CREATE TABLE one (x bigint);")
    for dry_run in (True, False):
        with pytest.raises(MigrationRefused, match=r"migration 1 \(first\) was edited"):
            migrate(connection, known=(edited, SECOND), dry_run=dry_run)
    assert "two" not in tables(connection)


def test_a_newer_database_is_refused(connect: Callable[[], Connection]) -> None:
    connection = connect()
    migrate(connection, known=(FIRST, SECOND))
    for dry_run in (True, False):
        with pytest.raises(SchemaMismatch, match=r"migration 2 \(second\)"):
            migrate(connection, known=(FIRST,), dry_run=dry_run)


@pytest.mark.parametrize("before", [None, (), (FIRST,)])
def test_a_dry_run_says_what_is_missing_and_changes_nothing(
    connect: Callable[[], Connection], before: tuple[Migration, ...] | None
) -> None:
    connection = connect()
    if before is not None:
        migrate(connection, known=before)
    found = tables(connection)
    assert migrate(connection, known=(FIRST, SECOND), dry_run=True) == [FIRST, SECOND][len(before or ()) :]
    assert tables(connection) == found
    assert schema_version(connection) == len(before or ())


def test_a_migration_that_fails_leaves_nothing_of_itself(connect: Callable[[], Connection]) -> None:
    connection = connect()
    with pytest.raises(StatementFailed, match="division by zero") as caught:
        migrate(connection, known=(FIRST, BROKEN))
    assert caught.value.sqlstate == "22012"
    assert schema_version(connection) == 1
    assert {"one", "half"} & tables(connection) == {"one"}
    assert migrate(connection, known=(FIRST, SECOND)) == [SECOND]


@pytest.mark.parametrize(
    ("change", "version", "remedy"),
    [
        (f"DELETE FROM schema_migrations WHERE version = {NEWEST}", NEWEST - 1, "db migrate"),
        ("INSERT INTO schema_migrations VALUES (9999, 'later', 'x')", 9999, "deploy the code"),
        ("DELETE FROM schema_migrations", 0, "db migrate"),
        ("DROP TABLE schema_migrations", 0, "db migrate"),
        ("DROP SCHEMA public CASCADE; CREATE SCHEMA public", 0, "db migrate"),
    ],
)
def test_no_session_opens_on_another_schema(
    connect: Callable[[], Connection], clock: ManualClock, change: str, version: int, remedy: str
) -> None:
    connection = connect()
    migrate(connection)
    Session.open(connection, clock, "test", "a test", 60).close()
    connection.transact(lambda: connection.script(change))
    with pytest.raises(SchemaMismatch, match=rf"version {version}, .*needs version {NEWEST}: .*{remedy}"):
        Session.open(connection, clock, "test", "a test", 60)
