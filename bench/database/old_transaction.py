"""The time of claims and health snapshots while another client's transaction is open and the due rows move."""

from collections.abc import Callable

from shepherd_core.bmdb.recovery import suspension
from shepherd_core.bmdb.session import Session
from shepherd_core.bmdb.work import work
from shepherd_core.domain.machine import Process

from bench.fleet import PROVIDER, BenchFleet
from bench.results import Result, Table, median, timed
from simulator.environment.postgres import Postgres
from tests.support.bmdb.fleet import administrator

BATCH = 10

PERIOD = 10
"""Minutes in which each machine moves once, as healthy ones do."""
# Each due row of the Recoverer becomes due within the period that began so many minutes ago, and moves to the next
# hour, as a claim and the end of its work move it, or a snapshot.
_BECOME_DUE = """
UPDATE machine_due
SET not_before = now() - ({ago} - random() * {period}) * interval '1 minute', revision = revision + 1
WHERE process = 'ShepherdRecovery' AND not_before IS NOT NULL
"""
_MOVE_ON = """
UPDATE machine_due SET not_before = now() + interval '1 hour' + random() * interval '1 hour', revision = revision + 1
WHERE process = 'ShepherdRecovery' AND not_before IS NOT NULL
"""
_WRITTEN = """
SELECT sum(n_tup_ins + n_tup_upd + n_tup_del)::bigint, sum(n_tup_hot_upd)::bigint, sum(n_dead_tup)::bigint
FROM pg_stat_user_tables
"""


def measure(*, quick: bool) -> Result:
    """Return the figures."""
    machines, repeats = (200, 2) if quick else (100_000, 7)
    with Postgres() as postgres:
        fleet = BenchFleet(postgres, machines, due=5 * BATCH)
        fleet.make_due()
        session = fleet.session()
        calls = {
            "claim of 10, and its end": lambda: work.cancel(session, _claim(session, Process.AGENT_START)),
            "claim, nothing due": lambda: _claim(session, Process.RECOVERY),
            "health snapshot": lambda: suspension.take_health_snapshot(session, PROVIDER),
        }
        columns = {"no rows moved": _milliseconds(calls, repeats)}
        written = _written(fleet, session)  # after the first touch of each page, which is written to the WAL whole
        for times in (6, 18):
            with administrator(fleet.settings) as somebody:
                somebody.run("BEGIN ISOLATION LEVEL REPEATABLE READ")
                somebody.run("SELECT count(*) FROM machines")
                for ago in range(times * PERIOD, 0, -PERIOD):
                    fleet.admin.run(_BECOME_DUE.format(ago=ago, period=PERIOD))
                    fleet.admin.run(_MOVE_ON)
                moved = f"all moved {times} times in {times * PERIOD} minutes"
                columns[f"{moved}, without a floor"] = _milliseconds(calls, repeats)
                for process in (Process.AGENT_START, Process.RECOVERY):
                    fleet.session().close(process, PROVIDER)  # raises the floors of the due rows, as each tick does
                columns[moved] = _milliseconds(calls, repeats)
                somebody.run("ROLLBACK")
            fleet.admin.run("DELETE FROM due_floors")
            fleet.admin.run("VACUUM machine_due")
        columns["transaction ended, vacuumed"] = _milliseconds(calls, repeats)
    result = Result()
    result.tables.append(written)
    result.tables.append(
        Table(
            f"Milliseconds while another transaction is open, {machines:,} machines",
            ["query", *columns],
            [[name, *(column[name] for column in columns.values())] for name in calls],
        )
    )
    return result


def _claim(session: Session, process: Process) -> list[work.Work]:
    return work.claim(session, process, PROVIDER, BATCH).work


def _milliseconds(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    return {name: 1000 * median([timed(call) for _ in range(repeats)]) for name, call in calls.items()}


def _written(fleet: BenchFleet, session: Session) -> Table:
    """Count what one claim of 10 and the end of its work write."""
    rows = []
    claimed: list[work.Work] = []
    for name, call in {
        "claim of 10": lambda: claimed.extend(_claim(session, Process.AGENT_START)),
        "end of it (canceled)": lambda: work.cancel(session, claimed),
    }.items():
        before = _counters(fleet, session)
        call()
        after = _counters(fleet, session)
        rows.append([name, *(int(new - old) for new, old in zip(after, before, strict=True))])
    return Table("Written by one statement", ["statement", "rows", "of them HOT", "dead rows", "bytes of WAL"], rows)


def _counters(fleet: BenchFleet, session: Session) -> list[float]:
    session.connection.script("SELECT pg_stat_force_next_flush()")
    session.connection.run("now")
    (counts,) = fleet.admin.run(_WRITTEN)
    (wal,) = fleet.admin.run("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')")
    return [*counts, *wal]
