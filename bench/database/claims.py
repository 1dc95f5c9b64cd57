"""
Claim and finish: machines per second by size of the fleet and number of workers, and round trips per machine.

Compared with the predecessor, a bare autocommitted UPDATE of one row, and two queues.
"""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.database import trips
from bench.database.claim_rates import BATCHES, LARGE, OURS, PREDECESSOR, PREDECESSOR_SECONDS, cell, eager_predecessor
from bench.fleet import BenchFleet
from bench.results import Curve, Result, Table, median
from simulator.environment.postgres import Postgres

FLEETS, WORKERS = (1_000, 10_000, 100_000, 1_000_000), (1, 4, 8, 16)
RIVAL_TASKS = {"procrastinate": 200, "pgqueuer": 1_000}  # enough for a rate
RIVAL_WORKERS = (1, 16)


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
                figures, processors, conflicts = cell(fleet, count, 1 if largest else repeats)
                best = min(value or 0 for way, value in processors.items() if way.endswith("together"))
                spent.append([machines, count, *processors.values(), _ratio(processors[PREDECESSOR] or 0, best)])
                vain.append([machines, count, *(conflicts[way] for way in (PREDECESSOR, *OURS))])
                if machines == LARGE:
                    eager.append([count, *eager_predecessor(fleet, count), _best(figures)])
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
        Table("Conflicts for each machine: transactions rolled back", ["fleet", "workers", PREDECESSOR, *OURS], vain)
    )
    wasted = max(figure for row in vain for figure in row[3:])
    result.at_most("conflicts for each machine, in the worst case", 0, wasted)
    if eager:
        result.tables.append(
            Table(
                f"The predecessor without a pause after a conflict: machines per second, in a fleet of {LARGE:,}",
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


def _rivals(postgres: Postgres) -> dict[tuple[str, int, int], float]:
    """Return the tasks per second of the queues by name, workers and batch; empty if they are not installed."""
    python = Path(__file__).parents[2] / ".venv-bench" / "bin" / "python"
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
                    command = [python, Path(__file__).parents[1] / "rivals" / "queues.py", *map(str, arguments)]
                    answer = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
                    found.append(float(answer.stdout))
                    postgres.drop(settings)
                figures[name, count, batch] = median(found)
                print("  ", name, count, batch, round(median(found)), flush=True)
    return figures
