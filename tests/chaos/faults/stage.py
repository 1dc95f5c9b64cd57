"""
A fault of provider, AWS, database or machine: its cause, the loop that meets it, and how it shows.

How it shows is complete: the error of the invocation (``fails X``, which Lambda
counts and the log names), the failure causes in the machines' history
(``cause X``), the cause of a penalty (``penalty X``), a part that was left for
later (``incomplete``), and machines with drift (``drifted``). An empty set: the
loop handled the fault without a trace.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from uuid import UUID

from tests.chaos.faults.fault import FaultyScenario
from tests.chaos.stage.environment import Environment


@dataclass
class Stage:
    scenario: FaultyScenario
    environment: Environment
    undo: ExitStack = field(default_factory=ExitStack)
    """Ends the fault. The ``Access`` is replaced separately."""

    def sql(self, text: str, undo: str) -> None:
        self.environment.fleet.sql(text)
        self.undo.callback(self.environment.fleet.sql, undo)


@dataclass(frozen=True)
class Fault:
    name: str
    loop: str
    begin: Callable[[Stage], object]
    shows: frozenset[str] = frozenset()
    breaks: str = ""
    """The invariant that the fault itself violates while it lasts."""

    def __str__(self) -> str:
        return f"{self.name}, {self.loop}, {' and '.join(sorted(self.shows)) or 'no trace'}"


@dataclass(frozen=True)
class MachineFault:
    """A fault of one machine of many, and the failure cause that its history must name."""

    name: str
    begin: Callable[[Stage, str, UUID], object]
    cause: str


def rows(loop: str, *rows: tuple[str, Callable[[Stage], object], str]) -> tuple[Fault, ...]:
    """Return the faults of one loop, from rows of name, start and how it shows."""
    return tuple(Fault(name, loop, begin, frozenset(shows.split(", ") if shows else ())) for name, begin, shows in rows)
