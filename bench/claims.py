"""
Claim and finish: machines per second, and processor time for each, by size of the fleet and number of workers.

Compared with a bare autocommitted UPDATE of one row, and with the queue pgqueuer. Every worker is a process that has
started an agent before, like a warm function. With many workers on few cores, the rate reflects scheduling as much as
cost; processor time does not.
"""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shepherd_core.bmdb.work import work
from shepherd_core.domain.machine import Process
from shepherd_core.loops.claims import elsewhere

from bench.fleet import PROVIDER, BenchFleet
from bench.results import Result, Table, in_turn, median
from bench.workers import Done, Meter, together
from simulator.environment.postgres import Postgres
from tests.support.bmdb.fleet import administrator

FLEETS, WORKERS = (1_000, 10_000, 100_000, 1_000_000), (1, 4, 8, 16)
LARGE = 100_000
BATCHES = (10, 50)
BARE = "bare UPDATE"
OURS = {f"batches of {batch}": batch for batch in BATCHES}
BARE_SECONDS = 0.5
RIVAL_TASKS, RIVAL_WORKERS = 1_000, (1, 16)
_FACTS = work.AgentStarted(b"x" * 32, "key")


def measure(*, quick: bool) -> Result:
    """Return the figures."""
    fleets, workers, repeats = ((200,), (1, 2), 1) if quick else (FLEETS, WORKERS, 3)
    rates: dict[tuple[int, int], dict[str, float]] = {}
    spent: list[list[Any]] = []
    with Postgres() as postgres:
        rivals = _rivals(postgres, quick=quick)
        for machines in fleets:
            fleet = BenchFleet(postgres, machines)
            largest = machines == FLEETS[-1]  # takes long, so it is measured less
            for count in (workers[0], workers[-1]) if largest else workers:
                figures, processors = _cell(fleet, count, 1 if largest else repeats)
                rates[machines, count] = figures
                spent.append([machines, count, *processors.values()])
                print("  ", machines, count, {name: round(value, 1) for name, value in figures.items()}, flush=True)
            postgres.drop(fleet.settings)
    ways = (BARE, *OURS)
    result = Result()
    result.tables.append(
        Table(
            "Machines per second, claimed and finished; 1 % of the fleet is due; workers are processes",
            ["fleet", "workers", *ways, "best to bare"],
            [[*cell, *figures.values(), _best(figures) / figures[BARE]] for cell, figures in rates.items()],
        )
    )
    result.tables.append(
        Table(
            "Microseconds of processors for each machine, worker and its server process together",
            ["fleet", "workers", *ways],
            spent,
        )
    )
    if rivals:
        rows = [[*cell, figure] for cell, figure in rivals.items()]
        result.tables.append(Table("No-op tasks per second of pgqueuer", ["workers", "batch", "per second"], rows))
    for (machines, count), figures in rates.items():
        what = f"{machines:,} machines, workers: {count}"
        result.at_least(f"{what}: times the bare UPDATE", 0.5, _best(figures) / figures[BARE])
        if machines == LARGE and count in RIVAL_WORKERS and rivals:
            best = max(figure for (of, _), figure in rivals.items() if of == count)
            result.at_least(f"{what}: times pgqueuer", 1, _best(figures) / best)
    return result


def _best(figures: dict[str, float]) -> float:
    return max(figures[way] for way in OURS)


def _cell(fleet: BenchFleet, count: int, repeats: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return by way: machines per second, and microseconds of processor time per machine; of *count* workers."""
    spent: dict[str, list[float]] = {}

    def rate(way: str, done: Done) -> float:
        spent.setdefault(way, []).append(1e6 * done.processor_seconds / done.count)
        return done.count / done.seconds

    def ours(way: str, batch: int) -> float:
        fleet.make_due(spare=count)
        figure = rate(way, Done.by_all(together(count, lambda _: _ours(fleet, batch))))
        if left := fleet.left():
            raise RuntimeError(f"{left} of {fleet.due} due machines were not finished")
        return figure

    ways: dict[str, Callable[[], float]] = {BARE: lambda: rate(BARE, _bare(fleet, count))}
    for way, batch in OURS.items():
        ways[way] = lambda way=way, batch=batch: ours(way, batch)
    figures = {way: median(found) for way, found in in_turn(repeats, ways).items()}
    return figures, {way: median(spent[way]) for way in figures}


def _ours(fleet: BenchFleet, batch: int) -> Callable[[], Done]:
    session = fleet.session()
    meter = Meter(session.connection._connected())  # noqa: SLF001 - to find the server's process
    # Warm up like a warm function: one spare machine for each worker.
    for each in work.candidates(session, Process.AGENT_START, PROVIDER).machines:
        if warm := work.claim(session, Process.AGENT_START, [each.machine_id]):
            work.finish_agent_start(session, dict.fromkeys(warm, _FACTS))
            break

    def run() -> Done:
        meter.begin()
        began = last = time.perf_counter()
        count = 0
        while due := list(work.candidates(session, Process.AGENT_START, PROVIDER).machines):
            while due:
                chosen = [each.machine_id for each in due[:batch]]
                del due[:batch]
                claim = work.claim(session, Process.AGENT_START, chosen)
                if 2 * len(claim) < len(chosen):
                    due = elsewhere(due)
                if claim:
                    count += len(work.finish_agent_start(session, dict.fromkeys(claim, _FACTS)))
                    last = time.perf_counter()
        return Done(count, last - began, meter.spent())

    return run


def _bare(fleet: BenchFleet, count: int) -> Done:
    """Update rows over *count* connections, each its own rows, one at a time."""

    def ready(number: int) -> Callable[[], Done]:
        own = administrator(fleet.settings)
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


def _rivals(postgres: Postgres, *, quick: bool) -> dict[tuple[int, int], float]:
    """Return pgqueuer's tasks per second by workers and batch; empty if it is not installed."""
    python = Path(__file__).parents[1] / ".venv-bench" / "bin" / "python"
    figures: dict[tuple[int, int], float] = {}
    for count in RIVAL_WORKERS[:1] if quick else RIVAL_WORKERS:
        for batch in BATCHES if python.exists() else ():
            found = []
            for _ in range(1 if quick else 2):
                settings = postgres.new_database("template1")
                arguments = [settings.bmdb_host, settings.bmdb_name, RIVAL_TASKS, count, batch]
                command = [python, Path(__file__).with_name("rival.py"), *map(str, arguments)]
                answer = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
                found.append(float(answer.stdout))
                postgres.drop(settings)
            figures[count, batch] = median(found)
    return figures
