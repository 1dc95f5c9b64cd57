"""
Claim and finish: machines per second by size of the fleet and number of workers, and round trips per machine.

Compared with the predecessor, a bare autocommitted UPDATE of one row, and two queues.
"""

import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shepherd_core.bmdb.work import work
from shepherd_core.domain.machine import Process

from bench import trips
from bench.fleet import PROVIDER, BenchFleet, driver
from bench.predecessor import PAUSE_SECONDS, Predecessor
from bench.results import Curve, Result, Table, in_turn, median
from bench.workers import Done, Meter, together
from simulator.environment.postgres import Postgres

FLEETS, WORKERS = (1_000, 10_000, 100_000, 1_000_000), (1, 4, 8, 16)
LARGE = 100_000
BATCHES = (10, 50)
PREDECESSOR = "predecessor"
BARE_SECONDS = 0.5
# The predecessor is stopped after this time, which is enough for a rate.
PREDECESSOR_SECONDS = {1_000: 5.0, 10_000: 5.0, 100_000: 10.0, 1_000_000: 30.0}
RIVAL_TASKS = {"procrastinate": 200, "pgqueuer": 1_000}  # enough for a rate
RIVAL_WORKERS = (1, 16)

_OURS = (*(f"batch {batch}, together" for batch in BATCHES), f"batch {BATCHES[0]}, singly")
_FACTS = work.AgentStarted(b"x" * 32, "key")


def measure(*, quick: bool) -> Result:
    """Return the figures."""
    result = Result()
    fleets, workers, repeats = ((200,), (1, 2), 1) if quick else (FLEETS, WORKERS, 3)
    rows: list[tuple[int, int, dict[str, float]]] = []
    spent: list[list[Any]] = []
    vain: list[list[Any]] = []
    eager: list[list[Any]] = []
    with Postgres() as postgres:
        rivals = {} if quick else _rivals(postgres)
        for machines in fleets:
            fleet = BenchFleet(postgres, machines)
            largest = machines == FLEETS[-1]  # takes long, so it is measured less
            for count in (workers[0], workers[-1]) if largest else workers:
                figures, processors, conflicts = _cell(fleet, count, 1 if largest else repeats)
                best = min(value or 0 for way, value in processors.items() if way.endswith("together"))
                spent.append([machines, count, *processors.values(), _ratio(processors[PREDECESSOR] or 0, best)])
                vain.append([machines, count, *(conflicts[way] for way in (PREDECESSOR, *_OURS))])
                if machines == LARGE:
                    eager.append([count, *_eager(fleet, count), _best(figures)])
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
                    _ratio(_best(figures), figures[PREDECESSOR]),
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
    result.tables.append(
        Table("Conflicts for each machine: transactions rolled back", ["fleet", "workers", PREDECESSOR, *_OURS], vain)
    )
    wasted = max(figure for row in vain for figure in row[3:])
    result.at_most("conflicts for each machine, wherever most", 0, wasted)
    if eager:
        result.tables.append(
            Table(
                f"The predecessor where it tries again at once, machines per second of {LARGE:,}",
                ["workers", "predecessor", "conflicts for each machine", "ours, best"],
                eager,
            )
        )
    if rivals:
        _compare(result, rows, rivals)
    for count in {min(workers), max(workers)}:
        result.curves.append(
            Curve(
                f"claims-{count}",
                f"Claim and finish, {_workers(count)}, 1 % of the fleet due",
                "machines in the fleet",
                "machines per second",
                {way: [(machines, figures[way]) for machines, of, figures in rows if of == count] for way in ways},
            )
        )
    trips.measure(result, quick=quick)
    return result


def _workers(count: int) -> str:
    return f"{count} worker{'' if count == 1 else 's'}"


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
    small, large = by_cell[1_000, 1], by_cell[LARGE, 16]
    result.at_least("1,000 machines, 1 worker: times the predecessor", 8, _best(small) / small[PREDECESSOR])
    # If it claimed none within its time, count one.
    predecessor = large[PREDECESSOR] or 1 / PREDECESSOR_SECONDS[LARGE]
    result.at_least("100,000 machines, 16 workers: times the predecessor", 1000, _best(large) / predecessor)
    for (machines, count), figures in by_cell.items():
        what = f"{machines:,} machines, {_workers(count)}: times the bare UPDATE"
        result.at_least(what, 0.5, _best(figures) / figures["bare UPDATE"])
    for count in RIVAL_WORKERS:
        best = max(figure for (_, of, _), figure in rivals.items() if of == count)
        ours = _best(by_cell[LARGE, count])
        result.at_least(f"{LARGE:,} machines, {_workers(count)}: times the better queue", 1, ours / best)


def _cell(
    fleet: BenchFleet, count: int, repeats: int
) -> tuple[dict[str, float], dict[str, float | None], dict[str, float | None]]:
    """Return by alternative: machines per second; per machine, microseconds of processor time and conflicts."""
    spent: dict[str, list[float]] = {}
    conflicts: dict[str, list[float]] = {}

    def rate(way: str, done: Done) -> float:
        if done.count:
            spent.setdefault(way, []).append(1e6 * done.processor_seconds / done.count)
        return done.count / done.seconds

    def drained(way: str, ready: Callable[[int], Callable[[], Done]]) -> float:
        fleet.make_due(spare=count)
        before = fleet.conflicts()
        done = Done.by_all(together(count, ready))
        if done.count:
            # Includes the conflicts and the machines of the warm-up.
            conflicts.setdefault(way, []).append((fleet.conflicts() - before) / (done.count + count))
        return rate(way, done)

    def ours(way: str, batch: int, *, singly: bool) -> float:
        figure = drained(way, lambda _: _ours(fleet, batch, singly=singly))
        if left := fleet.left():
            raise RuntimeError(f"{left} of {fleet.due} due machines were not finished")
        return figure

    together_10, together_50, singly_10 = _OURS
    ways: dict[str, Callable[[], float]] = {
        "bare UPDATE": lambda: rate("bare UPDATE", _bare(fleet, count)),
        together_10: lambda: ours(together_10, BATCHES[0], singly=False),
        together_50: lambda: ours(together_50, BATCHES[1], singly=False),
        singly_10: lambda: ours(singly_10, BATCHES[0], singly=True),
    }
    figures = {name: median(found) for name, found in in_turn(repeats, ways).items()}
    seconds = PREDECESSOR_SECONDS.get(fleet.machines, 1.0)
    slow = fleet.machines > FLEETS[1]
    found = [drained(PREDECESSOR, lambda _: _predecessor(fleet, seconds)) for _ in range(1 if slow else repeats)]
    figures = {PREDECESSOR: median(found), **figures}
    medians = [{way: median(of[way]) if way in of else None for way in figures} for of in (spent, conflicts)]
    return figures, medians[0], medians[1]


def _eager(fleet: BenchFleet, count: int) -> tuple[float, float]:
    """Return the predecessor's machines per second and conflicts per machine, without pauses after conflicts."""
    fleet.make_due(spare=count)
    before = fleet.conflicts()
    done = Done.by_all(together(count, lambda _: _predecessor(fleet, PREDECESSOR_SECONDS[LARGE], pause_seconds=0)))
    return done.count / done.seconds, (fleet.conflicts() - before) / (done.count + count)


def _ours(fleet: BenchFleet, batch: int, *, singly: bool) -> Callable[[], Done]:
    session = fleet.session()
    meter = Meter(session.connection._connected())  # noqa: SLF001 - to find the server's process
    # Warm up like a warm function: one spare machine for each worker, and a claim that finds nothing.
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


def _predecessor(fleet: BenchFleet, seconds: float, pause_seconds: float = PAUSE_SECONDS) -> Callable[[], Done]:
    worker = Predecessor(fleet.settings, pause_seconds)
    worker.drain(seconds, at_most=1)
    return lambda: worker.drain(seconds)


def _bare(fleet: BenchFleet, count: int) -> Done:
    """Update rows over *count* connections, each its own rows, one at a time."""

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
    """Return the tasks per second of the queues by name, workers and batch; empty if they are not installed."""
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
