"""The budget of recovery in the BMDB: the figures of a fleet by its facts, and the budgets that operators are shown."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from shepherd_core.bmdb.work.work import Candidate
from shepherd_core.domain.budget import Brake, FleetFigures
from shepherd_core.domain.errors.bmdb import SessionExpired
from shepherd_core.domain.machine import Process

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.bmdb.session import Session
    from shepherd_core.domain.budget import Budget

_CANDIDATES = 2000
"""Number of machines that one reading returns; of each location the longest waiting come first."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The fleet of a provider, as one reading found it."""

    figures: dict[str, FleetFigures]
    """Of each location; ``WHOLE_PROVIDER`` stands for machines without one."""
    candidates: tuple[Candidate, ...]
    """The machines that may need recovery, the longest waiting first."""
    settled: bool
    """Functions reached the BMDB between seven and two minutes ago, so that agents could report since."""
    silent: bool
    """Two minutes ago, no machine of the provider reported."""
    limited: bool
    """Operators are shown a budget that is smaller than usual."""
    quarantined: int
    no_access: int
    """Number of machines on which no agent can be started, or that cannot be looked at, until an operator acts."""


def read_fleet(session: Session, provider: str) -> Fleet:
    """
    Read the machines of *provider* by their facts, once.

    Raises:
        SessionExpired: the deadline passed.
    """
    rows = session.records("read_fleet", provider=provider, process=Process.RECOVERY, limit=_CANDIDATES)
    first = rows[0]
    if not first["sessions"]:
        raise SessionExpired
    located = [row for row in rows if row["location"] is not None]
    found = [
        Candidate(*each)
        for row in located
        for each in zip(row["ids"] or (), row["due_seconds"] or (), row["suspects"] or (), strict=True)
    ]
    return Fleet(
        {
            row["location"]: FleetFigures(**{each.name: row[each.name] for each in fields(FleetFigures)})
            for row in located
        },
        tuple(sorted(found, key=lambda each: -each.due_seconds)),
        first["settled"],
        first["silent"],
        first["limited"],
        first["quarantined"],
        first["no_access"],
    )


def show_budgets(session: Session, provider: str, budgets: Mapping[str, Budget]) -> None:
    """
    Show operators these budgets of *provider*, which are smaller than usual, and no others. May run twice.

    Raises:
        SessionExpired: the deadline passed.
    """
    shown = list(budgets.values())
    session.run("end_budgets", provider=provider, limited=list(budgets))
    rows = session.run(
        "set_budgets",
        provider=provider,
        limited=list(budgets),
        per_hour=[each.per_hour for each in shown],
        brakes=[each.brake for each in shown],
        reasons=[each.reason for each in shown],
        last=[each.lasts for each in shown],
    )
    if not rows[0][0]:
        raise SessionExpired


@dataclass(frozen=True, slots=True)
class ShownBudget:
    """A budget that is smaller than usual, for operators."""

    provider: str
    location: str
    """May be ``WHOLE_PROVIDER``."""
    per_hour: int
    brake: Brake
    reason: str
    began_at: datetime
    waiting: int
    """Number of machines that wait for it."""


def shown_budgets(connection: Connection) -> list[ShownBudget]:
    """Return where the budget of recovery is smaller than usual."""
    return [ShownBudget(**{**row, "brake": Brake(row["brake"])}) for row in connection.records("budgets")]
