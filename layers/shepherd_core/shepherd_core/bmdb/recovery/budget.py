"""The budget of recovery in the BMDB: the figures of a fleet by its facts, and the budgets that operators are shown."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from shepherd_core.bmdb.connection import as_rows
from shepherd_core.bmdb.work.work import CANDIDATES, Candidate
from shepherd_core.domain.budget import Brake, FleetFigures
from shepherd_core.domain.errors.bmdb import SessionExpired
from shepherd_core.domain.machine import Process
from shepherd_core.domain.record import record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.bmdb.session import Session
    from shepherd_core.domain.budget import Budget


@record
class LocationFleet(FleetFigures):
    """One location of a provider, and what holds for the provider."""

    location: str | None = None
    """``WHOLE_PROVIDER`` stands for machines without one; None: the provider has no machines."""
    ids: list[UUID] | None = None
    due_seconds: list[float] | None = None
    suspects: list[bool] | None = None
    settled: bool = False
    """Functions reached the BMDB between seven and two minutes ago, so that agents could report since."""
    silent: bool = False
    """Two minutes ago, no machine of the provider reported."""
    limited: bool = False
    """Operators are shown a budget that is smaller than usual."""
    quarantined: int = 0
    no_access: int = 0
    """Number of machines on which no agent can be started, or that cannot be looked at, until an operator acts."""

    @property
    def candidates(self) -> list[Candidate]:
        """Return the machines that may need recovery, the longest waiting first."""
        found = zip(self.ids or (), self.due_seconds or (), self.suspects or (), strict=True)
        return [Candidate(*each) for each in found]


def read_fleet(session: Session, provider: str) -> list[LocationFleet]:
    """
    Read the machines of *provider* by their facts, once. Return at least one row.

    Raises:
        SessionExpired: the deadline passed.
    """
    rows = session.fetch(LocationFleet, "read_fleet", provider=provider, process=Process.RECOVERY, limit=CANDIDATES)
    if not rows:
        raise SessionExpired
    return rows


def show_budgets(session: Session, provider: str, budgets: Mapping[str, Budget]) -> None:
    """
    Show operators these budgets of *provider*, which are smaller than usual, and no others. May run twice.

    Raises:
        SessionExpired: the deadline passed.
    """
    rows = as_rows({"location": location, **asdict(budget)} for location, budget in budgets.items())
    if not session.run("set_budgets", provider=provider, rows=rows):
        raise SessionExpired


@record
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
    return connection.fetch(ShownBudget, "budgets")
