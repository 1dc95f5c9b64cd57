"""
One minute of a healthy fleet: what a tick of each loop costs the server when nothing is wrong.

Heartbeats are measured apart (``heartbeats``). The Updater's tick is that of a minute
without a listing.
"""

from collections.abc import Callable

from shepherd_core.bmdb.listings import provider_facts
from shepherd_core.bmdb.recovery import budget
from shepherd_core.bmdb.session import Session
from shepherd_core.bmdb.work import work
from shepherd_core.domain.machine import Process

from bench.fleet import PROVIDER, BenchFleet
from bench.results import Result, Table, median
from bench.workers import Meter
from simulator.environment.postgres import Postgres

FLEETS = (1_000, 10_000, 100_000)
GOAL_SECONDS = 2.5e-6
"""Of the server's processor for a machine and the three loops together, in a fleet of at least ``FLEETS[-1]``."""

LOOPS: dict[str, Callable[[Session], object]] = {
    "initializer": lambda session: work.candidates(session, Process.AGENT_START, PROVIDER),
    "recoverer": lambda session: budget.read_fleet(session, PROVIDER),
    "updater": lambda session: provider_facts.check(session.connection, PROVIDER, 3600),
}


def measure(*, quick: bool) -> Result:
    """Return the figures."""
    result = Result()
    rows: list[list[object]] = []
    with Postgres() as postgres:
        for machines in (200,) if quick else FLEETS:
            fleet = BenchFleet(postgres, machines)
            spent = {name: tick(fleet, read, 3 if quick else 7) for name, read in LOOPS.items()}
            server = sum(seconds for seconds, _ in spent.values())
            rows.append(
                [machines, *(1000 * seconds for seconds, _ in spent.values()), *(wal for _, wal in spent.values())]
            )
            if machines >= FLEETS[-1]:
                result.at_most(f"server seconds a minute at {machines:,} machines", GOAL_SECONDS * machines, server)
            postgres.drop(fleet.settings)
    result.tables.append(
        Table(
            "A tick with nothing to do: milliseconds of the server's processor, and bytes of WAL",
            ["fleet", *LOOPS, *(f"{name}, WAL" for name in LOOPS)],
            rows,
        )
    )
    return result


def tick(fleet: BenchFleet, read: Callable[[Session], object], repeats: int) -> tuple[float, float]:
    """Return the server's seconds and the bytes of WAL of a tick: open, read, close. The median of several."""
    seconds: list[float] = []
    wal: list[float] = []
    first = fleet.session()  # connects, and prepares what it uses
    connection = first.connection
    first.close()
    meter = Meter(connection._connected(), server_only=True)  # noqa: SLF001 - to find the server's process
    for _ in range(repeats):
        before = fleet.admin.run("SELECT pg_current_wal_insert_lsn()")[0][0]
        meter.begin()
        session = fleet.session(connection)
        read(session)
        session.close()
        seconds.append(meter.spent())
        wal.append(float(fleet.admin.run(f"SELECT pg_current_wal_insert_lsn() - '{before}'::pg_lsn")[0][0]))
    connection.close()
    return median(seconds), median(wal)
