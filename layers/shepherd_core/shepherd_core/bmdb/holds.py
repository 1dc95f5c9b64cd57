"""
Holding recovery back: what the BMDB knows of silent machines, and where nobody is to be recovered.

A hold is in force from ``record`` on, for every claim of whomever, until a
``record`` without it. What a machine did not say before that counts no more.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from shepherd_core.breaker import Cell, Kind
from shepherd_core.errors import CommitUnknown, SessionExpired

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from uuid import UUID

    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.bmdb.session import Session
    from shepherd_core.bmdb.work import Silence

Cells = dict[str | None, Cell]
"""The figures of each location of a provider; None: of machines without one."""

_WINDOW = 1000
"""Due rows that ``survey_due`` looks at."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What is known of a provider's machines that have an agent."""

    cells: Cells
    """Without what is due, which takes more to find out."""
    unwatched_seconds: float
    """How long ago somebody looked before; 0: nobody ever did."""
    quarantined: int = 0


def figures(session: Session, provider: str, silence: Silence, start: UUID | None = None) -> Figures:
    """Look at a sample of the machines, from the id *start* on (else any), and at what was recovered lately."""
    rows = session.connection.run(
        "recovery_figures",
        provider=provider,
        start=start or uuid4(),
        first_heartbeat_seconds=silence.first_heartbeat_seconds,
        silence_seconds=silence.silence_seconds,
    )
    cells: Cells = defaultdict(Cell)
    unwatched, quarantined = 0.0, 0
    for figure, location, reported, number in rows:
        match figure:
            case "reporting":
                cells[location].reporting += int(number)
            case "quiet":
                cells[location].quiet[_kind(reported)] += int(number)
            case "recovering":
                cells[location].recovered[_kind(reported)] += int(number)
            case "looked":
                unwatched = number
            case "quarantined":
                quarantined = int(number)
    return Figures(cells, unwatched, quarantined)


def survey(session: Session, provider: str, silence: Silence, passed_over: Collection[str], cells: Cells) -> int:
    """
    Count the machines that are due for recovery into *cells*, and return how many can be claimed, at most 1,000.

    Not those in the locations *passed_over*. Moves the due rows of machines that
    report, as a claim would. May run twice.

    Raises:
        SessionExpired: the deadline passed.
    """
    while True:
        rows = _run(
            session,
            "survey_due",
            provider=provider,
            passed_over=sorted(passed_over),
            first_heartbeat_seconds=silence.first_heartbeat_seconds,
            silence_seconds=silence.silence_seconds,
        )
        looked, moved = rows[0][1:3]
        if looked < _WINDOW or not moved:
            break
        if session.left() < 2 * session.poke_interval:
            session.poke()
    for cell in cells.values():
        cell.due.clear()
    for _, _, _, location, reported, news, due in rows:
        if news:
            cells[location].due[_kind(reported)] += due
    return sum(row[6] for row in rows)


def record(session: Session, provider: str, held: Mapping[str, str]) -> list[str]:
    """
    Hold recovery back in the locations of *held*, for the reasons given, and nowhere else; return where that ended.

    May run twice, and beside its twin.

    Raises:
        SessionExpired: the deadline passed.
    """
    locations = sorted(held)
    reasons = [held[location] for location in locations]
    rows = _run(session, "hold_recovery", provider=provider, locations=locations, reasons=reasons)
    return [location for _, location in rows if location is not None]


def holds(connection: Connection) -> list[dict[str, Any]]:
    """Return the holds in force (``ended_at`` is None), and those that ended within a day."""
    return connection.records("recovery_holds")


def _run(session: Session, statement: str, **parameters: Any) -> list[list[Any]]:
    """Run a statement that may run twice, and does nothing unless the session is alive."""
    try:
        rows = session.connection.run(statement, session_id=session.session_id, **parameters)
    except CommitUnknown:
        rows = session.connection.run(statement, session_id=session.session_id, **parameters)
    if not rows[0][0]:
        raise SessionExpired
    return rows


def _kind(reported: bool) -> Kind:  # noqa: FBT001 - a column
    return Kind.SILENT if reported else Kind.NEVER
