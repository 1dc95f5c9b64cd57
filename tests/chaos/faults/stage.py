"""
What a fault of the outside is: what happens, which loop meets it, and how it shows.

How it shows is the whole of it: what an invocation raises (``fails X``, which is
what Lambda counts and the log names), the causes that machines have in their
history (``cause X``), why capacity is left alone (``penalty X``), whether a part
was left for later (``incomplete``), and machines that were set aside
(``disputed``). Nothing of all that: the loop took it without a trace.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from tests.chaos.faults.fault import Bendable
    from tests.chaos.stage.environment import World

LOOPS = ("provisioner", "initializer", "recoverer", "updater")


@dataclass
class Stage:
    """What a fault can get at."""

    scenario: Bendable
    world: World
    undo: ExitStack = field(default_factory=ExitStack)
    """What ends the fault; a broken ``Way`` is replaced besides."""

    def sql(self, text: str, undo: str) -> None:
        """Do something to the database, and undo it in the end."""
        self.world.fleet.sql(text)
        self.undo.callback(self.world.fleet.sql, undo)


@dataclass(frozen=True)
class Fault:
    """One fault, as it meets one loop."""

    name: str
    loop: str
    begin: Callable[[Stage], object]
    shows: frozenset[str] = frozenset()
    plants: str = ""
    """The promise that the fault itself breaks while it lasts."""

    def __str__(self) -> str:
        return f"{self.name}, {self.loop}, {' and '.join(sorted(self.shows)) or 'no trace'}"


@dataclass(frozen=True)
class MachineFault:
    """What is wrong with one machine of many, and the cause that its history has to name."""

    name: str
    begin: Callable[[Stage, str, UUID], object]
    cause: str


def rows(loop: str, *rows: tuple[str, Callable[[Stage], object], str]) -> tuple[Fault, ...]:
    """Return faults of one loop: name, beginning, and how each shows."""
    return tuple(Fault(name, loop, begin, frozenset(shows.split(", ") if shows else ())) for name, begin, shows in rows)
