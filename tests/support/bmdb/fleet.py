import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cached_property
from typing import Any, TypeVar
from uuid import UUID

import pg8000.native
from pg8000.exceptions import DatabaseError, InterfaceError
from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.session import Session
from shepherd_core.bmdb.wire.driver import TimeLimits
from shepherd_core.bmdb.work import work
from shepherd_core.domain.clock import Clock, Deadline
from shepherd_core.domain.machine import Process
from shepherd_core.loops import runner
from shepherd_core.loops.base import Loop
from shepherd_core.loops.runner import RunLimits
from shepherd_core.settings.functions.bmdb import BmdbSettings
from shepherd_core.telemetry import Metric

from tests.chaos.invariants import INVARIANTS
from tests.conftest import ManualClock
from tests.support import defaults
from tests.support.bmdb import warm
from tests.support.waiting import WAIT_SECONDS, eventually

T = TypeVar("T")

PROVIDER = "static"
HOUR = 3600
MOMENT = 0.4
"""Seconds: long enough to begin something within it, short enough to wait for its end."""
LEVELS = ("read committed", "repeatable read")
"""The isolation levels at which the promises hold: PostgreSQL's default, and that of a distributed engine."""

_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
_TIMES = f"""
SELECT table_name, column_name
FROM information_schema.columns
WHERE table_schema = 'public' AND data_type = 'timestamp with time zone' AND table_name IN ({_TABLES})
"""
_TRIED = """
SELECT p.machine_id, coalesce(e.ready, false)
FROM machine_provided p
LEFT JOIN machine_eligibility e ON e.machine_id = p.machine_id AND e.process = '{process}'
WHERE p.provider = '{provider}' AND p.machine_id NOT IN (SELECT machine_id FROM work)
ORDER BY e.due_at, p.machine_id
"""
_UNDONE = "SELECT 1 FROM machine_rebooted WHERE machine_id = :id AND rebooted_at = '-infinity'"


def administrator(settings: BmdbSettings) -> pg8000.native.Connection:
    socket = f"{settings.bmdb_host}/.s.PGSQL.{settings.bmdb_port}"
    # To a Unix socket, where the driver would ask for encryption and first read all authorities of the system.
    return pg8000.native.Connection("postgres", database=settings.bmdb_name, unix_sock=socket, ssl_context=False)


class Backends:
    """The administrator's connections to one database, which tests use one after another."""

    def __init__(self, settings: BmdbSettings) -> None:
        self.admin = administrator(settings)
        self._settings = settings

    @cached_property
    def _keeper(self) -> pg8000.native.Connection:
        """Return a connection for statements that many tests need, which stay prepared."""
        keeper = administrator(self._settings)
        # The deletions come in any order, because the role has no foreign key checked.
        keeper.run(
            "SET session_replication_role = replica; SET plan_cache_mode = force_generic_plan; SET search_path = public"
        )
        return keeper

    @cached_property
    def pass_time(self) -> pg8000.native.PreparedStatement:
        columns: dict[str, list[str]] = {}
        for table, column in self.admin.run(_TIMES):
            columns.setdefault(table, []).append(f"{column} = {column} - :seconds * interval '1 second'")
        updates = (f"UPDATE {table} SET {', '.join(changes)}" for table, changes in columns.items())
        moves = ", ".join(f"moved_{n} AS ({update})" for n, update in enumerate(updates))
        return self._keeper.prepare(f"WITH {moves} SELECT 1")

    @cached_property
    def empty(self) -> pg8000.native.PreparedStatement:
        tables = [row[0] for row in self.admin.run(_TABLES) if not row[0].startswith("schema_")]
        deletions = (f"{table}_deleted AS (DELETE FROM {table})" for table in tables)
        return self._keeper.prepare(f"WITH {', '.join(deletions)} SELECT 1")

    @cached_property
    def leaks(self) -> pg8000.native.PreparedStatement:
        return self._keeper.prepare(INVARIANTS["related_rows_come_and_go_together"])

    def close(self) -> None:
        warm.end_idle()
        for driver in (self.admin, self._keeper):
            with suppress(InterfaceError, DatabaseError, OSError):
                driver.close()


class _WarmConnection(Connection):
    """A connection of the product that prefers an idle server process to a new one."""

    def _open(self) -> pg8000.native.Connection:
        with warm.server_processes():
            return super()._open()


class Fleet:
    """One database, and helpers to fill it. Rows are backdated; the database's own clock is never faked."""

    def __init__(self, settings: BmdbSettings, clock: Clock, backends: Backends | None = None) -> None:
        """*backends* stay when it is closed; without them it has its own."""
        self.settings = settings
        self._clock = clock
        self._connections: list[Connection] = []
        self._machines = 0
        self._ends_backends = backends is None
        self._backends = backends or Backends(settings)
        self._admin = self._backends.admin
        self._prepared: dict[str, pg8000.native.PreparedStatement] = {}
        self.timeouts = defaults.HEALTH
        """Those of the Recoverer of PROVIDER."""
        self.connection = self.connect()

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment of a process that uses this database."""
        return {
            "SHEPHERD_BMDB_HOST": self.settings.bmdb_host,
            "SHEPHERD_BMDB_NAME": self.settings.bmdb_name,
            "SHEPHERD_BMDB_USER": self.settings.bmdb_user,
            "SHEPHERD_BMDB_ROLES": self.settings.bmdb_roles or "",
        }

    def disconnect(self) -> None:
        for connection in self._connections:
            connection.close()

    def close(self) -> None:
        self.disconnect()
        self.empty()
        if self._ends_backends:
            self._backends.close()
        else:
            self._admin.run("DISCARD ALL")  # which fails if a test left a transaction open

    @contextmanager
    def isolated(self, level: str) -> Iterator[None]:
        """Within the block, let the product's transactions in this database have this one of the LEVELS."""
        self._isolate(level)
        try:
            yield
        finally:
            self._isolate(LEVELS[0])

    def _isolate(self, level: str) -> None:
        self.disconnect()
        warm.end_idle()  # a server process knows only what was set when it began
        self.sql(f"ALTER DATABASE {self.settings.bmdb_name} SET default_transaction_isolation = '{level}'")

    def empty(self) -> None:
        self._backends.empty.run()

    def connect(self, settings: BmdbSettings | None = None, limits: TimeLimits | None = None) -> Connection:
        """Return another connection, for a concurrent run; *settings* may lead it elsewhere, *limits* be short."""
        connection = (
            Connection(settings or self.settings, None, self._clock, limits=limits or TimeLimits())
            if settings or limits
            else _WarmConnection(self.settings, None, self._clock)
        )
        self._connections.append(connection)
        return connection

    def sql(self, text: str, **parameters: Any) -> list[list[Any]]:
        return self._admin.run(text, **parameters) or []

    def ask(self, text: str, **parameters: Any) -> list[list[Any]]:
        """Do the same with a statement that stays prepared, because its plan takes longer than its execution."""
        if text not in self._prepared:
            self.sql("SET plan_cache_mode = force_generic_plan")
            self._prepared[text] = self._admin.prepare(text)
        return self._prepared[text].run(**parameters) or []

    def open_session(self, seconds: float = HOUR, connection: Connection | None = None) -> Session:
        policy = (PROVIDER, self.timeouts)
        return Session.open(connection or self.connection, self._clock, "test", "a test", seconds, policy)

    def plant(self, table: str, **values: Any) -> None:
        """Insert a row; a value that is a timedelta is the time so long from now."""
        plain = {name: value for name, value in values.items() if not isinstance(value, timedelta)}
        times = {name: f"now() + interval '{values[name].total_seconds()} s'" for name in values.keys() - plain.keys()}
        given = ", ".join(times.get(name, f":{name}") for name in values)
        self.sql(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({given})", **plain)

    # Machines; each kind is made from the one before it.

    def bare_machine(self) -> UUID:
        found: UUID = self.sql("INSERT INTO machines (machine_created_at) VALUES (now()) RETURNING machine_id")[0][0]
        return found

    def intended_machine(self) -> UUID:
        machine_id = self.bare_machine()
        self.sql("INSERT INTO machine_creation_intent VALUES (:id, :provider)", id=machine_id, provider=PROVIDER)
        return machine_id

    def machines(
        self,
        count: int,
        *,
        started_ago: float | None = None,
        reported_ago: float | None = None,
        provider: str = PROVIDER,
        location: str | None = None,
    ) -> list[UUID]:
        """Return machines that a provider has, whose agents were started and last reported so long ago; None: never."""
        place = "NULL" if location is None else pg8000.native.literal(location)
        columns = "machine_id, provider, provider_id, provider_location"
        parts = [
            f"new AS (INSERT INTO machines SELECT FROM generate_series(1, {count}) RETURNING machine_id)",
            f"numbered AS (SELECT machine_id, {self._machines} + row_number() OVER () AS number FROM new)",
            f"listing AS (SELECT machine_id, '{provider}', 'machine-' || number, {place} FROM numbered)",
            f"provided AS (INSERT INTO machine_provided ({columns}) TABLE listing)",
        ]
        self._machines += count
        if started_ago is not None:
            self.watch(provider)
            parts.append(
                "started AS (INSERT INTO machine_agent_started SELECT machine_id, "
                f"clock_timestamp() - interval '{started_ago} seconds', decode(repeat('5e', 32), 'hex') FROM numbered)"
            )
        rows = self.sql(f"WITH {', '.join(parts)} SELECT machine_id FROM numbered ORDER BY number")
        found = [row[0] for row in rows]
        if reported_ago is not None:
            self.sql(
                "INSERT INTO machine_agent_heartbeat "
                "SELECT x, clock_timestamp() - :s * interval '1 second' FROM unnest(CAST(:ids AS uuid[])) AS x",
                ids=found,
                s=reported_ago,
            )
        return found

    def provided_machine(self, provider: str = PROVIDER) -> UUID:
        return self.machines(1, provider=provider)[0]

    def watch(self, provider: str) -> None:
        """Record a policy with the default timeouts, as the provider's Recoverer does, unless there is one."""
        self.sql(
            "INSERT INTO recovery_policy VALUES (:provider, :heartbeat, :startup, :grace) ON CONFLICT DO NOTHING",
            provider=provider,
            heartbeat=defaults.HEALTH.heartbeat_timeout_seconds,
            startup=defaults.HEALTH.startup_timeout_seconds,
            grace=defaults.HEALTH.grace_seconds,
        )

    def started_machine(self, started_ago: float = 0) -> UUID:
        return self.machines(1, started_ago=started_ago)[0]

    def unhealthy_machine(self, reported_ago: float = 2 * HOUR, started_ago: float = 3 * HOUR) -> UUID:
        return self.machines(1, started_ago=started_ago, reported_ago=reported_ago)[0]

    def reporting_machine(self, reported_ago: float = 0, started_ago: float = 3 * HOUR) -> UUID:
        return self.unhealthy_machine(reported_ago, started_ago)

    def report(self, machines: list[UUID]) -> None:
        self.sql(
            "INSERT INTO machine_agent_heartbeat (machine_id, agent_heartbeat_at) "
            "SELECT machine_id, clock_timestamp() FROM machine_agent_started WHERE machine_id = ANY(:ids) "
            "ON CONFLICT (machine_id) DO UPDATE SET agent_heartbeat_at = excluded.agent_heartbeat_at",
            ids=machines,
        )

    def tell_interval(self, machine_id: UUID, seconds: int) -> None:
        """Let the last heartbeat of the machine's agent have said this interval, or have been answered with it."""
        self.update("machine_agent_heartbeat", machine_id, report_interval_seconds=seconds)

    # What happens to machines.

    def update(self, table: str, machine_id: UUID, **values: Any) -> UUID:
        changes = ", ".join(f"{name} = :{name}" for name in values)
        self.sql(f"UPDATE {table} SET {changes} WHERE machine_id = :id", id=machine_id, **values)
        return machine_id

    def locate(self, machine_id: UUID, location: str | None) -> UUID:
        return self.update("machine_provided", machine_id, provider_location=location)

    def label(self, provider_id: str, labels: dict[str, str]) -> None:
        """Let the provider name these labels of a machine."""
        self.sql(
            "UPDATE machine_provided SET provider_labels = CAST(:labels AS jsonb) WHERE provider_id = :name",
            labels=json.dumps(labels),
            name=provider_id,
        )

    def change(self, *statements: str) -> None:
        def unit() -> None:
            for statement in statements:
                self.connection.script(statement)

        self.connection.transact(unit)

    def make_overdue(self, machine_id: UUID, retry_in: float = 0) -> UUID:
        """Let a machine not come back after a step: its grace is over for a minute, its agent start has failed."""
        self.change(
            f"INSERT INTO machine_grace VALUES ('{machine_id}', now() - interval '31 min', now() - interval '1 min')",
            "INSERT INTO work_backoff (machine_id, process, until, kind, cause, last_interval_seconds, fault) "
            f"VALUES ('{machine_id}', 'ShepherdAgentStart', now() + {retry_in} * interval '1 second', "
            "'ssh-timed-out', 'no answer', 300, 'unreached')",
        )
        return machine_id

    def quarantine(self, machine_id: UUID, cause: str = "?") -> UUID:
        self.change(f"INSERT INTO machine_quarantine VALUES ('{machine_id}', now(), '{cause}', 'steps-used-up')")
        return machine_id

    def recover(self, machine_id: UUID, times: int) -> UUID:
        """Let the recovery of a machine have taken so many steps, one an hour, and return it."""
        self.sql(
            "INSERT INTO work_history (machine_id, process, event, step, timestamp) "
            "SELECT :id, 'ShepherdRecovery', 'Finished', 'reboot', now() - n * interval '1 hour' "
            "FROM generate_series(1, :times) AS n",
            id=machine_id,
            times=times,
        )
        return machine_id

    def fail(self, machine_id: UUID, failure: str = "?") -> UUID:
        self.change(
            "UPDATE machine_provided SET provider_status = 'ProvisioningFailedPermanent', "
            f"provider_failure = '{failure}' WHERE machine_id = '{machine_id}'"
        )
        return machine_id

    def request_installation(self, machine_id: UUID, generation: int) -> None:
        self.change(
            f"INSERT INTO machine_os_installation_request VALUES ('{machine_id}', {generation}, '') "
            "ON CONFLICT (machine_id) DO UPDATE SET generation = excluded.generation"
        )

    def report_installation(self, machine_id: UUID, generation: int, result: str = "Success") -> None:
        self.change(
            f"INSERT INTO machine_os_installation_report VALUES ('{machine_id}', {generation}, '{result}', '') "
            "ON CONFLICT (machine_id) DO UPDATE "
            "SET generation = excluded.generation, os_installation_result = excluded.os_installation_result"
        )

    def install(self, machine_id: UUID, generation: int = 1) -> UUID:
        self.request_installation(machine_id, generation)
        self.report_installation(machine_id, generation)
        return machine_id

    def expire(self, session: Session) -> None:
        self.die_in(-1, session)

    def pass_time(self, seconds: float) -> None:
        """Let time pass: move everything on record this many seconds into the past."""
        self._backends.pass_time.run(seconds=seconds)

    def move_clock(self, seconds: float) -> None:
        """Let the server's clock jump ahead, or back: what is on record moves away from it, and so do other clocks."""
        self.pass_time(seconds)
        self.sql(
            "UPDATE machine_agent_heartbeat SET agent_signed_at = agent_signed_at - CAST(:ms AS bigint)",
            ms=round(seconds * 1000),
        )
        assert isinstance(self._clock, ManualClock)
        self._clock.behind += seconds

    # What tests can read.

    def events(self, machine_id: UUID) -> list[str]:
        rows = self.sql("SELECT event FROM work_history WHERE machine_id = :id ORDER BY timestamp", id=machine_id)
        return [row[0] for row in rows]

    def holders(self, machine_id: UUID) -> list[UUID]:
        return [row[0] for row in self.sql("SELECT session_id FROM work WHERE machine_id = :id", id=machine_id)]

    def content(self, *but: str) -> dict[str, list[list[Any]]]:
        """Return every row of the tables, with the transaction that wrote it, *but* of some."""
        names = [table for (table,) in self.sql(_TABLES) if table not in but]
        return {table: self.sql(f"SELECT *, xmin::text FROM {table} AS t ORDER BY t::text") for table in names}

    def rows_of(self, machine_id: UUID) -> dict[str, list[list[Any]]]:
        """Return all that is on record about a machine, by table."""
        return {table: [row for row in rows if machine_id in row] for table, rows in self.content().items()}

    def facts(self, machine_id: UUID) -> set[str]:
        tables = ("machine_agent_started", "machine_agent_heartbeat", "machine_host_key", "machine_rebooted")
        found = {
            table.removeprefix("machine_")
            for table in tables
            if self.sql(f"SELECT 1 FROM {table} WHERE machine_id = :id", id=machine_id)
        }
        undone = self.sql(_UNDONE, id=machine_id)
        return found - ({"rebooted"} if undone else set())

    def wait_until(self, condition: str, **parameters: Any) -> None:
        eventually(lambda: self.sql(f"SELECT {condition}", **parameters)[0][0], f"waited in vain for: {condition}")

    def blocked(self) -> int:
        waiting = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        return len(self.sql(waiting))

    def wait_until_blocked(self, statements: int = 1) -> None:
        eventually(lambda: self.blocked() >= statements, "no statement waits")

    def held_up(self, lock: str, call: Callable[[], T], meanwhile: Callable[[], object] = lambda: None) -> T:
        """Return the result of *call*, which waits for a transaction of this *lock*; *meanwhile* it is committed."""
        self.connection.script(f"BEGIN; {lock}")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(call)
            self.wait_until_blocked()
            meanwhile()
            self.connection.script("COMMIT")
            return waiting.result(WAIT_SECONDS)

    def behind(self, first: Callable[[], object], second: Callable[[], T], connection: Connection | None = None) -> T:
        """Return the result of *second*, which waits for *first*, in a transaction of *connection*, to commit."""
        with ThreadPoolExecutor(1) as pool:

            def unit() -> Future[T]:
                first()
                waiting = pool.submit(second)
                self.wait_until_blocked()
                return waiting

            return (connection or self.connection).transact(unit).result(WAIT_SECONDS)

    def wait_until_idle(self) -> None:
        """Wait until no statement of the product is running, not even one whose client is gone."""
        self.wait_until(
            "NOT EXISTS (SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND state = 'active'"
            " AND application_name = 'shepherd')"
        )

    def die_in(self, seconds: float, session: Session) -> None:
        self.sql(
            "UPDATE sessions SET deadline = clock_timestamp() + :s * interval '1 second' WHERE session_id = :id",
            s=seconds,
            id=session.session_id,
        )

    def wait_until_dead(self, session: Session) -> None:
        self.wait_until(
            "clock_timestamp() > (SELECT deadline FROM sessions WHERE session_id = :id)", id=session.session_id
        )

    def leaks(self) -> list[str]:
        """Return rows that must never exist: they lack the row they belong to."""
        return [row[0] for row in self._backends.leaks.run()]


def claimed(session: Session, process: Process, limit: int | None = None, provider: str = PROVIDER) -> list[work.Work]:
    """Claim up to *limit* machines that are ready, the longest due first; None: try all of the provider."""
    rows = _rows(session.connection, _TRIED.format(provider=provider, process=process.value))
    chosen = [machine_id for machine_id, ready in rows if limit is None or ready]
    return list(work.claim(session, process, chosen[:limit])) if chosen else []


def _rows(connection: Connection, text: str) -> list[list[Any]]:
    """Return the rows of a statement on a connection of the product, in its transaction if it is in one."""
    try:
        return connection._connected().run(text) or []
    except (InterfaceError, DatabaseError, OSError):  # it broke before
        connection.close()
        return connection._connected().run(text) or []


def ids(works: Iterable[work.Work]) -> list[UUID]:
    return [found.machine_id for found in works]


def invoke(
    loop: Loop[Any],
    connection: Connection,
    clock: Clock,
    limits: RunLimits | None = None,
    *,
    provider: str = PROVIDER,
    seconds: float = 600,
) -> dict[Metric, float]:
    limits, deadline = limits or RunLimits(10, 60, 60), Deadline(clock, seconds)
    return runner.run(loop, provider, connection, clock, limits, deadline=deadline, runtime_info="a test")
