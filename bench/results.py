"""The results of measurements: human-readable tables, and JSON for the record."""

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Table:
    """Figures side by side."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Goal:
    """A goal and the measured figure."""

    what: str
    wanted: str
    figure: float
    met: bool


@dataclass
class Result:
    """The results of one part of the bench."""

    tables: list[Table] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)

    def at_least(self, what: str, wanted: float, figure: float) -> None:
        """Add a goal that *figure* must reach."""
        self.goals.append(Goal(what, f"at least {wanted:g}", figure, figure >= wanted))

    def at_most(self, what: str, wanted: float, figure: float) -> None:
        """Add a goal that *figure* must not exceed."""
        self.goals.append(Goal(what, f"at most {wanted:g}", figure, figure <= wanted))


def median(figures: Sequence[float]) -> float:
    """Return the median."""
    return float(statistics.median(figures))


def in_turn(repeats: int, ways: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Return the figures of each alternative, one a round; they take turns, so that all meet the same conditions."""
    figures: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            figures[name].append(way())
    return figures


def timed(call: Callable[[], object]) -> float:
    """Return the seconds of *call*."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def machine() -> dict[str, Any]:
    """Return the properties of this computer."""
    return {
        "processors": os.cpu_count(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),
    }


def shown(result: Result) -> str:
    """Return *result* as human-readable text."""
    lines: list[str] = []
    for table in result.tables:
        rows = [list(table.columns), *([_cell(value) for value in row] for row in table.rows)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(table.columns))]
        lines += ["", table.title]
        lines += ["  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]
    if result.goals:
        lines += [""]
    for goal in result.goals:
        lines.append(f"{'met   ' if goal.met else 'MISSED'} {goal.what}: {_cell(goal.figure)}, wanted {goal.wanted}")
    return "\n".join(lines)


_WHOLE_FROM = 100


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= _WHOLE_FROM else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
