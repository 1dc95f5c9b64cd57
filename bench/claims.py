"""
Claim and finish: machines per second by size of the fleet and number of workers, and round trips per machine.

Beside them the predecessor, a bare autocommitted UPDATE of one row, and two queues.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shepherd_core import control_loop
from shepherd_core.backoff import Backoff
from shepherd_core.bmdb import work
from shepherd_core.clock import Deadline, SystemClock
from shepherd_core.loop import Admission
from shepherd_core.machine import Process
from shepherd_core.telemetry import Metric

from bench.fleet import PROVIDER, BenchFleet, Waits, driver
from bench.predecessor import Predecessor
from bench.results import Curve, Result, Table, in_turn, median
from bench.workers import Done, Meter, together
from simulator.postgres import Postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from uuid import UUID

    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.bmdb.session import Session
    from shepherd_core.bmdb.work import Work
    from shepherd_core.loop import Attempt

FLEETS, WORKERS = (1_000, 10_000, 100_000, 1_000_000), (1, 4, 8, 16)
BATCHES = (10, 50)
BARE_SECONDS = 0.5
# The predecessor is stopped after so long: where it is slow, that is enough to see how slow.
PREDECESSOR_SECONDS = {1_000: 5.0, 10_000: 5.0, 100_000: 10.0, 1_000_000: 30.0}
RIVAL_TASKS = {"procrastinate": 200, "pgqueuer": 1_000}  # enough to see how fast
RIVAL_WORKERS = (1, 16)

_FACTS = work.AgentStarted(b"x" * 32, "key")


def measure(*, quick: bool) -> Result:
    """Return the figures."""
    result = Result()
    fleets, workers, repeats = ((200,), (1, 2), 1) if quick else (FLEETS, WORKERS, 3)
    rows: list[tuple[int, int, dict[str, float]]] = []
    spent: list[list[Any]] = []
    with Postgres() as postgres:
        rivals = {} if quick else _rivals(postgres)
        for machines in fleets:
            fleet = BenchFleet(postgres, machines)
            largest = machines == FLEETS[-1]  # takes long, and is measured less
            for count in (workers[0], workers[-1]) if largest else workers:
                figures, processors = _cell(fleet, count, 1 if largest else repeats)
                best = min(value or 0 for way, value in processors.items() if way.endswith("together"))
                spent.append([machines, count, *processors.values(), _ratio(processors["predecessor"] or 0, best)])
                rows.append((machines, count, figures))
                print("  ", machines, count, {name: round(value, 1) for name, value in figures.items()}, flush=True)
            postgres.drop(fleet.settings)
    ways = list(rows[0][2])
    result.tables.append(
        Table(
            "Machines per second, claimed and finished; 1 % of the fleet is due; workers are processes",
            ["fleet", "workers", *ways, "to predecessor", "to bare"],
            [
                [
                    machines,
                    count,
                    *(figures[way] for way in ways),
                    _ratio(_best(figures), figures["predecessor"]),
                    _best(figures) / figures["bare UPDATE"],
                ]
                for machines, count, figures in rows
            ],
        )
    )
    result.tables.append(
        Table(
            "Microseconds of processors for each machine, worker and its server process together",
            ["fleet", "workers", *ways, "predecessor to best"],
            spent,
        )
    )
    if rivals:
        _compare(result, rows, rivals)
    for count in {min(workers), max(workers)}:
        result.curves.append(
            Curve(
                f"claims-{count}",
                f"Claim and finish, {count} worker{'' if count == 1 else 's'}, 1 % of the fleet due",
                "machines in the fleet",
                "machines per second",
                {way: [(machines, figures[way]) for machines, of, figures in rows if of == count] for way in ways},
            )
        )
    _round_trips(result, quick=quick)
    return result


def _best(figures: Mapping[str, float]) -> float:
    return max(value for way, value in figures.items() if way.endswith("together"))


def _ratio(figure: float, baseline: float) -> float | None:
    return figure / baseline if baseline else None


def _compare(
    result: Result, rows: list[tuple[int, int, dict[str, float]]], rivals: dict[tuple[str, int, int], float]
) -> None:
    by_cell = {(machines, count): figures for machines, count, figures in rows}
    result.tables.append(
        Table(
            "No-op tasks per second",
            ["queue", "workers", "batch", "per second"],
            [[*cell, figure] for cell, figure in rivals.items()],
        )
    )
    small, large = by_cell[1_000, 1], by_cell[100_000, 16]
    result.at_least("1,000 machines, 1 worker: times the predecessor", 8, _best(small) / small["predecessor"])
    # None at all in the time that it got counts as one.
    predecessor = large["predecessor"] or 1 / PREDECESSOR_SECONDS[100_000]
    result.at_least("100,000 machines, 16 workers: times the predecessor", 1000, _best(large) / predecessor)
    for (machines, count), figures in by_cell.items():
        what = f"{machines:,} machines, {count} workers: times the bare UPDATE"
        result.at_least(what, 0.5, _best(figures) / figures["bare UPDATE"])
    for count in RIVAL_WORKERS:
        best = max(figure for (_, of, _), figure in rivals.items() if of == count)
        ours = _best(by_cell[100_000, count])
        result.at_least(f"100,000 machines, {count} workers: times the better queue", 1, ours / best)


def _cell(fleet: BenchFleet, count: int, repeats: int) -> tuple[dict[str, float], dict[str, float | None]]:
    """Return the machines per second of each way, and the microseconds of processors for each machine."""
    spent: dict[str, list[float]] = {}

    def rate(way: str, done: Done) -> float:
        if done.count:
            spent.setdefault(way, []).append(1e6 * done.processor_seconds / done.count)
        return done.count / done.seconds

    def drained(ready: Callable[[int], Callable[[], Done]]) -> Done:
        fleet.make_due(spare=count)
        return Done.by_all(together(count, ready))

    def ours(batch: int, *, singly: bool) -> float:
        done = drained(lambda _: _ours(fleet, batch, singly=singly))
        if left := fleet.left():
            raise RuntimeError(f"{left} of {fleet.due} machines were left over")
        return rate(f"batch {batch}, {'singly' if singly else 'together'}", done)

    ways: dict[str, Callable[[], float]] = {
        "bare UPDATE": lambda: rate("bare UPDATE", _bare(fleet, count)),
        **{f"batch {batch}, together": lambda batch=batch: ours(batch, singly=False) for batch in BATCHES},
        f"batch {BATCHES[0]}, singly": lambda: ours(BATCHES[0], singly=True),
    }
    seconds = PREDECESSOR_SECONDS.get(fleet.machines, 1.0)

    def predecessor() -> float:
        return rate("predecessor", drained(lambda _: _predecessor(fleet, seconds)))

    figures = {name: median(found) for name, found in in_turn(repeats, ways).items()}
    slow = fleet.machines > FLEETS[1]
    figures = {"predecessor": median([predecessor() for _ in range(1 if slow else repeats)]), **figures}
    return figures, {name: median(spent[name]) if name in spent else None for name in figures}


def _ours(fleet: BenchFleet, batch: int, *, singly: bool) -> Callable[[], Done]:
    session = fleet.session()
    meter = Meter(session.connection._connected())  # noqa: SLF001 - only to know the server's process
    # As a function that is warm: one machine to spare for each worker, and a claim that finds nothing.
    warm = work.claim(session, Process.AGENT_START, PROVIDER, 1)
    work.finish_agent_start(session, dict.fromkeys(warm.work, _FACTS))
    work.claim(session, Process.AGENT_START, "nobody", batch)

    def run() -> Done:
        meter.begin()
        began = last = time.perf_counter()
        count = 0
        while True:
            claim = work.claim(session, Process.AGENT_START, PROVIDER, batch)
            if not claim.examined:
                return Done(count, last - began, meter.spent())
            done = dict.fromkeys(claim.work, _FACTS)
            for part in [{each: _FACTS} for each in done] if singly else [done]:
                count += len(work.finish_agent_start(session, part))
            last = time.perf_counter()

    return run


def _predecessor(fleet: BenchFleet, seconds: float) -> Callable[[], Done]:
    worker = Predecessor(fleet.settings)
    worker.drain(seconds, at_most=1)
    return lambda: worker.drain(seconds)


def _bare(fleet: BenchFleet, count: int) -> Done:
    """Let connections update rows of their own, each one row after the other."""

    def ready(number: int) -> Callable[[], Done]:
        own = driver(fleet.settings)
        meter = Meter(own)
        machine_ids = [row[0] for row in own.run("SELECT machine_id FROM bench_bare ORDER BY machine_id")]
        machine_ids = machine_ids[number::count]
        update = own.prepare("UPDATE bench_bare SET count = count + 1 WHERE machine_id = :machine_id")
        update.run(machine_id=machine_ids[0])

        def run() -> Done:
            meter.begin()
            began = time.perf_counter()
            done = 0
            while time.perf_counter() - began < BARE_SECONDS:
                update.run(machine_id=machine_ids[done % len(machine_ids)])
                done += 1
            return Done(done, time.perf_counter() - began, meter.spent())

        return run

    return Done.by_all(together(count, ready))


def _rivals(postgres: Postgres) -> dict[tuple[str, int, int], float]:
    """Return tasks per second of the queues by their names, workers and batches; nothing if they are not installed."""
    python = Path(__file__).parents[1] / ".venv-bench" / "bin" / "python"
    if not python.exists():
        return {}
    figures = {}
    for name, tasks in RIVAL_TASKS.items():
        for count in RIVAL_WORKERS:
            for batch in BATCHES:
                found = []
                for _ in range(2):
                    settings = postgres.new_database("template1")
                    arguments = [name, settings.bmdb_host, settings.bmdb_name, tasks, count, batch]
                    command = [python, Path(__file__).with_name("rivals.py"), *map(str, arguments)]
                    answer = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
                    found.append(float(answer.stdout))
                    postgres.drop(settings)
                figures[name, count, batch] = median(found)
                print("  ", name, count, batch, round(median(found)), flush=True)
    return figures


class NoOp:
    """A loop whose machines need nothing but their time."""

    process = Process.AGENT_START
    backoff = Backoff(60, 60, 1)
    silence = None

    def __init__(self, seconds: float) -> None:
        """Each machine takes *seconds* longer than the one before it."""
        self._seconds = seconds
        self._count = 0

    def admit(self, session: Session) -> Admission:  # noqa: ARG002 - asks nobody
        """Hold nothing back."""
        return Admission()

    def prepare(self, deadline: Deadline) -> None:
        """Nothing is needed."""

    def decide(self, _: Session, works: Sequence[Work]) -> Mapping[Work, object]:
        """Do the same with all of them."""
        return dict.fromkeys(works)

    def work_on(self, attempt: Attempt) -> work.AgentStarted:  # noqa: ARG002 - no machine is there
        """Take time."""
        self._count += 1
        time.sleep(0.05 + self._seconds * self._count)
        return _FACTS

    def finish(self, session: Session, done: Mapping[Work, work.AgentStarted]) -> set[UUID]:
        """Commit them as started agents."""
        return work.finish_agent_start(session, done)


def _round_trips(result: Result, *, quick: bool) -> None:
    """Count what an invocation of the real control loop waits for, claim to finish, ten machines at a time."""
    rows = []
    with Postgres() as postgres:
        for name, seconds, wanted in (("together", 0.0, 0.3), ("singly", 0.03, 1.2)):
            fleet = BenchFleet(postgres, 1_000, due=50 if quick else 200)
            fleet.make_due()
            connection = fleet.connect()
            _trips(fleet, connection, NoOp(seconds), due=10)  # prepares the statements
            trips = [_trips(fleet, connection, NoOp(seconds), due=10) for _ in range(fleet.due // 10 - 1)]
            idle = _trips(fleet, connection, NoOp(seconds), due=0)
            # Open, the claim that finds nothing more, and close are there without any machine.
            figure = (median(trips) - idle) / 10
            rows.append([name, idle, median(trips), figure])
            result.at_most(f"round trips per machine, claim to finish, when results come {name}", wanted, figure)
            connection.close()
    result.tables.append(
        Table(
            "Round trips of the control loop, ten machines at a time",
            ["results come", "invocation with nothing due", "with ten", "per machine"],
            rows,
        )
    )


def _trips(fleet: BenchFleet, connection: Connection, loop: NoOp, *, due: int) -> int:
    """Return the waits of one invocation that finds so many machines due."""
    fleet.admin.run("UPDATE machine_due SET not_before = now() + interval '1 day' WHERE process = 'ShepherdAgentStart'")
    fleet.admin.run(
        "UPDATE machine_due SET not_before = now() WHERE machine_id IN ("
        f"SELECT machine_id FROM machine_due WHERE process = 'ShepherdAgentStart' LIMIT {due})"
    )
    waits = Waits(connection)
    clock = SystemClock()
    limits = control_loop.Limits(concurrency=10, machine_seconds=20, session_seconds=60)
    counts = control_loop.run(
        loop, PROVIDER, connection, clock, limits, deadline=Deadline(clock, 60), runtime_info="bench"
    )
    if counts[Metric.FINISHED] != due:
        raise RuntimeError(f"{due} machines were due, and this was done: {counts}")
    return waits.count
