from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from threading import Barrier

import pytest
from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.schema.migrate import (
    LOCK_SECONDS,
    Code,
    Migration,
    migrate,
    migrations,
    require,
    schema_version,
)
from shepherd_core.bmdb.session import Session
from shepherd_core.bmdb.wire.driver import TimeLimits
from shepherd_core.domain.clock import Deadline, SystemClock
from shepherd_core.domain.errors.bmdb import MigrationRefused, SchemaMismatch, SerializationConflict, StatementFailed
from shepherd_core.settings.functions.bmdb import BmdbSettings

from tests.conftest import ManualClock
from tests.support.waiting import WAIT_SECONDS, eventually

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


def test_missing_migrations_are_applied_in_order_and_once(connect: Callable[[], Connection]) -> None:
    connection = connect()
    assert schema_version(connection) == 0
    assert migrate(connection, known=(FIRST,)) == [FIRST]
    third = Migration(3, "third", "ALTER TABLE two ADD y int")
    assert migrate(connection, known=(FIRST, SECOND, third)) == [SECOND, third]
    assert schema_version(connection) == 3
    assert migrate(connection, known=(FIRST, SECOND, third)) == []


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
    assert schema_version(connect()) == NEWEST


def additive(version: int, oldest_code: int = 1) -> Migration:
    text = f"-- Code from version {oldest_code} can use this.\nCREATE TABLE more_{version} (x int);"
    return Migration(version, f"more_{version}", text)


def test_a_newer_database_that_allows_the_code_is_taken(connect: Callable[[], Connection]) -> None:
    connection = connect()
    migrate(connection, known=(FIRST, additive(2)))
    assert migrate(connection, known=(FIRST,)) == []


def test_what_the_running_code_cannot_use_waits(connect: Callable[[], Connection]) -> None:
    """Those after it wait, too: they were written for a schema that has it."""
    connection = connect()
    late, later = replace(SECOND, version=3), additive(4, oldest_code=4)
    files = (FIRST, additive(2), late, later)
    migrate(connection, known=(FIRST,))
    assert migrate(connection, known=files, running=1, dry_run=True) == [additive(2)]
    assert migrate(connection, known=files, running=1) == [additive(2)]
    assert migrate(connection, known=files, running=3) == [late]
    assert migrate(connection, known=files, running=4) == [later]


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize(
    ("before", "files", "refusal", "why"),
    [
        (1, (replace(FIRST, text="CREATE;"), SECOND), MigrationRefused, r"migration 1 \(first\) was edited"),
        (2, (FIRST,), SchemaMismatch, r"migration 2 \(second\)"),  # of newer code
        # Its migration would wait: deployed all the same, it would refuse to work.
        (
            1,
            (FIRST, SECOND, additive(3, oldest_code=2)),
            SchemaMismatch,
            r"version 1.* cannot use migration 2 \(second\): deploy version 2 first",
        ),
    ],
)
def test_code_that_does_not_fit_the_database_migrates_nothing(
    connect: Callable[[], Connection],
    before: int,
    files: tuple[Migration, ...],
    refusal: type[Exception],
    why: str,
    dry_run: bool,
) -> None:
    connection = connect()
    migrate(connection, known=(FIRST, SECOND)[:before])
    found = tables(connection)
    with pytest.raises(refusal, match=why):
        migrate(connection, known=files, running=1, dry_run=dry_run)
    assert tables(connection) == found
    assert schema_version(connection) == before


@pytest.mark.parametrize(
    ("files", "needed"),
    [
        ((FIRST,), 1),
        ((FIRST, SECOND), 1),
        ((FIRST, additive(2)), 2),
        ((FIRST, additive(2), replace(SECOND, version=3)), 2),
    ],
)
def test_code_needs_what_is_applied_before_it(files: tuple[Migration, ...], needed: int) -> None:
    assert Code.of(files) == Code(needed, files[-1].version)


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


def test_a_session_opens_on_a_newer_schema_that_allows_it(
    connect: Callable[[], Connection], clock: ManualClock
) -> None:
    connection = connect()
    migrate(connection, known=(*migrations(), additive(NEWEST + 1, oldest_code=NEWEST)))
    Session.open(connection, clock, "test", "a test", 60).close()
    require(connection)


def test_a_migration_that_waits_for_a_lock_lets_others_pass(
    connect: Callable[[], Connection], empty_database: BmdbSettings
) -> None:
    """Heartbeats would queue behind it until the transaction ends that has the lock."""
    holder, writer = connect(), connect()
    migrate(holder, known=(FIRST,))
    limits = TimeLimits(statement=0, lock=LOCK_SECONDS)
    connection = Connection(empty_database, None, SystemClock(), limits=limits)
    alter = Migration(2, "alter", "ALTER TABLE one ADD y int;")
    holder.script("BEGIN; SELECT FROM one")
    with ThreadPoolExecutor(1) as pool, closing(connection):
        deadline = Deadline(SystemClock(), WAIT_SECONDS)
        applied = pool.submit(migrate, connection, known=(FIRST, alter), deadline=deadline)
        waits = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'ALTER%'"
        for _ in range(3):
            eventually(lambda: writer._connected().run(waits))
            writer.script("INSERT INTO one VALUES (1)")
        holder.script("COMMIT")
        assert applied.result(WAIT_SECONDS) == [alter]


def test_a_lock_that_is_never_free_ends_a_migration(
    connect: Callable[[], Connection], empty_database: BmdbSettings
) -> None:
    holder = connect()
    migrate(holder, known=(FIRST,))
    holder.script("BEGIN; SELECT FROM one")
    connection = Connection(empty_database, None, SystemClock(), limits=TimeLimits(lock=0.01))
    alter = Migration(2, "alter", "ALTER TABLE one ADD y int;")
    with closing(connection), pytest.raises(SerializationConflict, match=r"ALTER: .* lock timeout"):
        migrate(connection, known=(FIRST, alter), deadline=Deadline(SystemClock(), 0.5))


@pytest.mark.parametrize(
    ("change", "version", "remedy"),
    [
        (f"DELETE FROM schema_migrations WHERE version = {NEWEST}", NEWEST - 1, "db migrate"),
        ("INSERT INTO schema_migrations VALUES (9999, 'later', 'x', 9999)", 9999, "deploy the code"),
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
