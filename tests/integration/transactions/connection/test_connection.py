import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier
from uuid import UUID, uuid4

import pytest
from shepherd_core.bmdb.agents import host_keys
from shepherd_core.bmdb.connection import ATTEMPTS, Connection
from shepherd_core.bmdb.machines import pauses
from shepherd_core.bmdb.wire.driver import TimeLimits
from shepherd_core.domain.errors import SecretUnavailable
from shepherd_core.domain.errors.bmdb import (
    BmdbError,
    BmdbUnavailable,
    CommitUnknown,
    SerializationConflict,
    StatementFailed,
)
from shepherd_core.settings.functions.bmdb import BmdbSettings

from tests.conftest import ManualClock
from tests.support.bmdb.fleet import Fleet

MOVE = "UPDATE machines SET machine_created_at = machine_created_at + interval '1 second'"


def in_conflict(fleet: Fleet, times: int) -> tuple[list[int], Callable[[], None]]:
    """Return a unit of work that conflicts with another transaction this many times, and the count of its runs."""
    fleet.bare_machine()
    fleet.sql(f"ALTER DATABASE {fleet.settings.bmdb_name} SET default_transaction_isolation = 'repeatable read'")
    runs: list[int] = []

    def unit() -> None:
        runs.append(1)
        fleet.connection.run("now")  # from here on the transaction sees the rows as they are
        if len(runs) <= times:
            fleet.sql(MOVE)
        fleet.connection.script(MOVE)

    fleet.connection.close()
    return runs, unit


def test_a_transaction_in_conflict_runs_again(own_fleet: Fleet, clock: ManualClock) -> None:
    runs, unit = in_conflict(own_fleet, times=2)
    own_fleet.connection.transact(unit)
    assert len(runs) == 3
    assert len(clock.slept) == 2


@pytest.mark.parametrize("end", [min, max])
def test_the_pauses_between_attempts_double(
    own_fleet: Fleet, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, end: Callable[[tuple[float, float]], float]
) -> None:
    """Each may be as short as a quarter; chance is replaced by the shortest and the longest."""
    monkeypatch.setattr("random.uniform", lambda *ends: end(ends))
    _, unit = in_conflict(own_fleet, times=100)
    with pytest.raises(SerializationConflict):
        own_fleet.connection.transact(unit)
    assert clock.slept == pytest.approx([end((pause / 4, pause)) for pause in (0.1, 0.2, 0.4, 0.8)])


def test_a_server_that_became_a_replica_is_left(own_fleet: Fleet) -> None:
    """The name of the database may lead to the new primary by now; only a new connection finds out."""
    database = own_fleet.settings.bmdb_name
    own_fleet.sql(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    connection = own_fleet.connect()
    with pytest.raises(BmdbUnavailable, match="25006"):
        connection.script(MOVE)
    own_fleet.sql(f"ALTER DATABASE {database} RESET default_transaction_read_only")
    connection.script(MOVE)


def test_a_deadlock_ends_with_both_transactions_done(own_fleet: Fleet) -> None:
    own_fleet.sql(f"ALTER DATABASE {own_fleet.settings.bmdb_name} SET deadlock_timeout = '20ms'")
    machines = [own_fleet.provided_machine(), own_fleet.provided_machine()]
    met = Barrier(2)
    runs: list[int] = []

    def transaction(connection: Connection, first: UUID, second: UUID) -> None:
        def unit() -> None:
            runs.append(1)
            connection.run("lock_facts", machine_id=first)
            if len(runs) <= 2:
                met.wait(timeout=10)
            connection.run("lock_facts", machine_id=second)

        connection.transact(unit)

    with ThreadPoolExecutor(2) as pool:
        outcomes = [
            pool.submit(transaction, own_fleet.connect(), *machines),
            pool.submit(transaction, own_fleet.connect(), *reversed(machines)),
        ]
        for outcome in outcomes:
            outcome.result(timeout=20)
    assert len(runs) > 2


def test_a_dry_run_or_a_unit_that_raises_leaves_nothing(fleet: Fleet, connection: Connection) -> None:
    def unit() -> list[list[object]]:
        connection.run("penalize", provider="static", capacity_id="rack", seconds=60, kind="unexpected", cause="?")
        return connection.run("penalized_capacity", provider="static")

    assert connection.dry_run(unit) == [["rack"]]
    with pytest.raises(KeyError):
        connection.transact(lambda: {"?": 1}[str(unit())])
    assert fleet.sql("SELECT 1 FROM capacity_penalties") == []
    assert unit() == [["rack"]]
    assert fleet.sql("SELECT capacity_id FROM capacity_penalties") == [["rack"]]


def test_a_refused_statement_names_itself_and_the_reason(connection: Connection) -> None:
    with pytest.raises(StatementFailed, match=r"pause: .*violates foreign key constraint.*23503") as caught:
        pauses.pause(connection, owner="me", reason="?", machine_id=uuid4())
    assert caught.value.sqlstate == "23503"
    assert not caught.value.retryable
    assert pauses.pauses_in_force(connection) == []


@pytest.mark.parametrize("in_transaction", [True, False])
def test_the_server_ends_statements_that_take_too_long(fleet: Fleet, in_transaction: bool) -> None:
    machine_id = fleet.provided_machine()
    fleet.connection.script("BEGIN; UPDATE machine_provided SET provider_status = 'Running'")
    connection = fleet.connect(limits=TimeLimits(statement=0.05))

    def lock() -> object:
        return connection.run("lock_facts", machine_id=machine_id)

    with pytest.raises(StatementFailed) as caught:
        connection.transact(lock) if in_transaction else lock()
    assert caught.value.sqlstate == "57014"
    fleet.connection.roll_back()


def test_a_warm_connection_survives_a_new_schema(own_fleet: Fleet) -> None:
    """The column types of a prepared statement may change; it is prepared again instead of failing."""
    machine_id = own_fleet.provided_machine()
    pin = "INSERT INTO machine_host_key SELECT machine_id, 'pinned', now() FROM machines"
    own_fleet.sql(pin)
    assert host_keys.forget_host_key(own_fleet.connection, machine_id, "?")
    own_fleet.sql("ALTER TABLE machine_host_key ALTER COLUMN host_key TYPE varchar(1000)")
    own_fleet.sql(pin)
    assert host_keys.forget_host_key(own_fleet.connection, machine_id, "?")


def test_an_absent_database_is_tried_a_few_times(
    shared_database: BmdbSettings, tmp_path: Path, clock: ManualClock
) -> None:
    connection = Connection(shared_database.model_copy(update={"bmdb_host": str(tmp_path)}), lambda: "hunter2", clock)
    with pytest.raises(BmdbUnavailable, match=f"cannot connect to the BMDB at {tmp_path}:5432") as caught:
        connection.run("now")
    assert caught.value.retryable
    assert len(clock.slept) == ATTEMPTS - 1
    assert "hunter2" not in f"{caught.value!r}{caught.value.__cause__!r}{connection!r}"


def test_the_password_is_asked_for_at_every_new_connection(shared_database: BmdbSettings, clock: ManualClock) -> None:
    """And that there is none is not the database's fault."""
    passwords = ["hunter3", "hunter2"]

    def password() -> str:
        if not passwords:
            raise SecretUnavailable
        return passwords.pop()

    connection = Connection(shared_database, password, clock)
    for left in (1, 0):
        connection.run("now")
        connection.run("now")
        assert len(passwords) == left
        connection.close()
    with pytest.raises(SecretUnavailable):
        connection.run("now")


def test_a_broken_connection_is_closed_although_its_error_is_remembered(fleet: Fleet) -> None:
    """Otherwise a function that meets a broken database again and again runs out of files."""
    connection = Connection(fleet.settings, None, ManualClock(), attempts=1)
    before = set(Path("/proc/self/fd").iterdir())
    ((process,),) = connection.transact(lambda: connection._connected().run("SELECT pg_backend_pid()") or [])
    assert set(Path("/proc/self/fd").iterdir()) > before
    fleet.sql("SELECT pg_terminate_backend(:process, 10000)", process=process)
    with pytest.raises(CommitUnknown) as remembered:
        connection.run("now")
    assert set(Path("/proc/self/fd").iterdir()) == before, remembered


def test_a_refused_set_up_leaves_no_connection(fleet: Fleet) -> None:
    """The driver's objects know each other, so that the connection would stay until garbage is collected."""
    before = set(Path("/proc/self/fd").iterdir())
    with pytest.raises(StatementFailed, match="lock_timeout") as remembered:
        Connection(fleet.settings, None, ManualClock(), limits=TimeLimits(lock=-1)).run("now")
    assert set(Path("/proc/self/fd").iterdir()) == before, remembered


def test_plans_without_scans_last_as_long_as_the_connection(fleet: Fleet) -> None:
    connection = fleet.connect(limits=TimeLimits(scans=False))
    assert [connection._connected().run("SHOW enable_seqscan") for _ in range(2)] == [[["off"]]] * 2


def test_a_full_database_is_a_passing_state(fleet: Fleet) -> None:
    fleet.sql("CREATE ROLE turned_away LOGIN CONNECTION LIMIT 0")
    connection = fleet.connect(fleet.settings.model_copy(update={"bmdb_user": "turned_away"}))
    try:
        with pytest.raises(BmdbUnavailable, match=r"too many connections .*53300"):
            connection.run("now")
    finally:
        fleet.sql("DROP ROLE turned_away")


@pytest.mark.parametrize("wrong", [{"bmdb_name": "nothing_here"}, {"bmdb_user": "nobody"}])
def test_a_wrong_name_is_refused_at_once(
    shared_database: BmdbSettings, clock: ManualClock, wrong: dict[str, str]
) -> None:
    with pytest.raises(BmdbError, match="connecting to") as caught:
        Connection(shared_database.model_copy(update=wrong), None, clock).run("now")
    assert not caught.value.retryable
    assert clock.slept == []


def test_a_statement_is_planned_once_for_a_connection(fleet: Fleet) -> None:
    """Planning a claim takes five times as long as running one that finds nothing."""
    connection = fleet.connect(fleet.settings)  # not one of earlier tests
    session = fleet.open_session(connection=connection)
    for _ in range(10):
        session.renew()
    driver = connection._connected()
    plans = driver.run(
        "SELECT generic_plans, custom_plans FROM pg_prepared_statements WHERE statement LIKE '%UPDATE sessions%'"
    )
    assert plans == [[10, 0]]


TEXTS = ["", "NULL", 'a "b"', "back\\slash", "{,}", "  two  ", "line\nend", "ü", "'", '\\"']


@pytest.mark.parametrize("texts", [TEXTS, [*TEXTS, None], [None], []])
def test_texts_in_an_array_arrive_as_they_were_sent(fleet: Fleet, texts: list[str | None]) -> None:
    found = fleet.connection._connected().run("SELECT * FROM unnest(:texts::text[])", texts=texts)
    assert [row[0] for row in found] == texts


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-02-28 23:59:59.000001+00", datetime(2026, 2, 28, 23, 59, 59, 1, UTC)),
        ("2026-02-28 23:59:59+00", datetime(2026, 2, 28, 23, 59, 59, 0, UTC)),
        ("2026-02-28 23:59:59.5+05:30", datetime(2026, 2, 28, 18, 29, 59, 500_000, UTC)),
        ("infinity", "infinity"),
        ("-infinity", "-infinity"),
        ("10000-01-01 00:00:00+00", "10000-01-01 00:00:00+00"),
    ],
)
@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata"])
def test_timestamps_and_infinity_are_read_correctly(fleet: Fleet, text: str, moment: object, zone: str) -> None:
    """A pause without an end is stored as infinity, which Python's datetime cannot hold."""
    fleet.sql(f"ALTER DATABASE {fleet.settings.bmdb_name} SET datestyle = 'SQL, DMY'")
    fleet.connection.close()
    driver = fleet.connection._connected()
    fleet.sql(f"ALTER DATABASE {fleet.settings.bmdb_name} RESET datestyle")
    driver.run(f"SET timezone = '{zone}'")
    ((found,),) = driver.run("SELECT :text::timestamptz", text=text)
    driver.run("SET timezone = 'UTC'")
    assert found == moment or (zone != "UTC" and str(found).startswith("10000-01-01"))


def test_without_a_statement_there_is_nothing_to_cancel(fleet: Fleet) -> None:
    """A command may be interrupted before it has connected, and after."""
    connection = fleet.connect()
    connection.cancel()
    connection.run("now")
    connection.cancel()
    connection.close()
    connection.cancel()
    assert connection.run("now")


def test_an_id_can_be_sent_to_another_process(fleet: Fleet) -> None:
    """The driver makes ids without their constructor."""
    machine_id = fleet.bare_machine()
    (found,) = fleet.connection.fetch(UUID, "newest_machines", after=None, examine=1)
    assert pickle.loads(pickle.dumps(found)) == machine_id
