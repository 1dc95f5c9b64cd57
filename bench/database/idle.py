"""The cost of an invocation with nothing to do: round trips, rows, time; in a small and in a large fleet."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from shepherd_core.bmdb.connection import Connection
from shepherd_core.domain.backoff import Backoff
from shepherd_core.domain.clock import Deadline, SystemClock
from shepherd_core.loops import runner
from shepherd_core.loops.recoverer import Recoverer
from shepherd_core.telemetry import Metric

from bench.database.trips import NoOp
from bench.fleet import PROVIDER, BenchFleet, RoundTripCounter
from bench.results import Result, Table, in_turn, median
from simulator.environment.postgres import Postgres
from tests.support import defaults

# The rows that were read or written in all tables.
_ROWS = """
SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) + n_tup_ins + n_tup_upd + n_tup_del)::bigint
FROM pg_stat_user_tables
"""


def measure(*, quick: bool) -> Result:
    """Return the figures."""
    sizes, repeats = ((100, 1_000), 3) if quick else ((100, 1_000_000), 40)
    rows = []
    with Postgres() as postgres:
        fleets = {size: BenchFleet(postgres, size, due=1) for size in sizes}
        for fleet in fleets.values():
            # While the larger fleet was created, the smaller one has become unhealthy, and so has something to do.
            fleet.admin.run("UPDATE machine_agent_heartbeat SET agent_heartbeat_at = clock_timestamp()")
            fleet.admin.run("VACUUM ANALYZE machine_agent_heartbeat")
        ticks = {
            (name, size): Tick(fleet, loop)
            for size, fleet in fleets.items()
            for name, loop in (("Initializer", NoOp(0)), ("Recoverer", _recoverer()))
        }
        found = in_turn(repeats, {f"{name}|{size}": tick.wall for (name, size), tick in ticks.items()})
        cpu = in_turn(repeats, {f"{name}|{size}": tick.cpu for (name, size), tick in ticks.items()})
        for (name, size), tick in ticks.items():
            key = f"{name}|{size}"
            rows.append([name, size, *tick.counted(), 1000 * median(found[key]), 1000 * median(cpu[key])])
    result = Result()
    result.tables.append(
        Table(
            "A tick with nothing to do, on a warm connection",
            ["loop", "machines", "round trips", "rows touched", "ms", "ms of processor time"],
            rows,
        )
    )
    for name, size, trips, *_ in rows:
        result.at_most(f"{name}, {size:,} machines: round trips", 3, trips)
    by_name: dict[str, list[list[Any]]] = {}
    for row in rows:
        by_name.setdefault(row[0], []).append(row)
    for name, (small, large) in by_name.items():
        result.at_most(f"{name}: milliseconds, times the smallest fleet's", 2, large[4] / small[4])
    return result


def _recoverer() -> Recoverer:
    class Named:
        """A provider with nothing but a name."""

        name = PROVIDER

    provider: Any = Named()
    return Recoverer(provider, {}, replace(defaults.RULES, backoff=Backoff(60, 60, 1)))


class Tick:
    """One loop in one fleet, with nothing due."""

    def __init__(self, fleet: BenchFleet, loop: Any) -> None:
        self._fleet = fleet
        self._loop = loop
        self._connection: Connection = fleet.connect()
        self._run()

    def wall(self) -> float:
        """Return the seconds of an invocation."""
        return self._timed(time.perf_counter)

    def cpu(self) -> float:
        """Return the processor seconds of this process in an invocation."""
        return self._timed(time.process_time)

    def counted(self) -> tuple[int, int]:
        """Return the round trips of an invocation, and the number of rows that it touches."""
        before = self._rows()
        waits = RoundTripCounter(self._connection)
        self._run()
        trips = waits.count
        return trips, self._rows() - before

    def _timed(self, clock: Callable[[], float]) -> float:
        began = clock()
        self._run()
        return clock() - began

    def _run(self) -> None:
        clock = SystemClock()
        limits = runner.RunLimits(concurrency=10, machine_seconds=20, session_seconds=60)
        counts = runner.run(
            self._loop, PROVIDER, self._connection, clock, limits, deadline=Deadline(clock, 60), runtime_info="bench"
        )
        if counts[Metric.CLAIMED]:
            raise RuntimeError(f"nothing was due, but the counts are {counts}")

    def _rows(self) -> int:
        """Return the counter; a flush is forced, because the server updates it only while a connection is idle."""
        self._connection.transact(lambda: self._connection.script("SELECT pg_stat_force_next_flush()"))
        self._connection.run("now")
        return int(self._fleet.admin.run(_ROWS)[0][0])
