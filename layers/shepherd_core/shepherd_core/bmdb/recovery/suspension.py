"""
Suspension of recovery: the health of a provider's machines, and where the circuit breaker stopped recovery.

``set_suspensions`` puts a suspension in force for all claims, until it is called
without that location. Then the timeouts start at the end of the suspension.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shepherd_core.bmdb.work.work import Candidate
from shepherd_core.domain.errors.bmdb import SessionExpired
from shepherd_core.domain.health import LocationStats, SshReach, Unhealthy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.bmdb.session import Session

Stats = dict[str | None, LocationStats]
"""The figures of each location of a provider; None: of machines without a location."""

_CANDIDATES = 2000
"""Number of machines that one snapshot looks at; of each location the longest unhealthy come first."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A period without a health snapshot."""

    seconds: float
    ended_ago: float = 0.0
    """Seconds; 0: the snapshot that is being taken ends it."""


@dataclass(frozen=True, slots=True)
class HealthSnapshot:
    """The figures of a provider's machines that have an agent, and the machines that are due for recovery."""

    stats: Stats
    due: dict[str | None, tuple[Candidate, ...]]
    """The machines that are due for recovery, by location, whether it is suspended there or not."""
    suspended: bool
    """A suspension is in force in at least one location."""
    quarantined: int
    ssh: dict[str | None, SshReach] = field(default_factory=dict)
    """Whether SSH works, for each location where machines should have come back and SSH fails for some of them."""
    outages: frozenset[str] = frozenset()
    """The locations where an SSH outage is on record."""
    no_access: int = 0
    """Number of machines on which no agent can be started, or that cannot be looked at, until an operator acts."""
    gaps: tuple[Gap, ...] = ()
    """The gaps between snapshots that may still matter."""
    extended_timeout_seconds: float | None = None
    """The longest time without a heartbeat after which a machine is recovered whose timeout a gap makes longer."""


def take_health_snapshot(session: Session, provider: str) -> HealthSnapshot:
    """
    Return the health of all machines of *provider*, by their facts now, and those that are due for recovery.

    Records the time of this snapshot and the gap since the last one. May run twice.

    Raises:
        SessionExpired: the deadline passed.
    """
    rows = session.records("read_fleet_health", provider=provider, limit=_CANDIDATES)
    first = rows[0]
    if not first["sessions"]:
        raise SessionExpired
    gaps = tuple(Gap(*gap) for gap in zip(first["gap_seconds"], first["gaps_ended_ago"], strict=True))
    if any(gap.ended_ago == 0 for gap in gaps):
        session.run("delete_old_gaps", provider=provider)
    located = [row for row in rows if row["figures"] is not None]
    return HealthSnapshot(
        {row["location"]: _stats(row) for row in located},
        {row["location"]: _due(row) for row in located if row["ids"]},
        first["suspended"],
        first["quarantined"],
        {
            row["location"]: SshReach(row["figures"].get("unreached", 0), row["figures"].get("reached", 0))
            for row in located
            if row["figures"].keys() & {"unreached", "reached"}
        },
        frozenset(first["outages"]),
        first["no_access"],
        gaps,
        first["extended_seconds"],
    )


def _due(row: Mapping[str, Any]) -> tuple[Candidate, ...]:
    return tuple(map(Candidate, row["ids"], row["due_seconds"], row["suspects"]))


def _stats(row: Mapping[str, Any]) -> LocationStats:
    figures = row["figures"]
    stats = LocationStats(
        reporting=figures.get("reporting", 0), heard=figures.get("heard", 0), losing=figures.get("losing", 0)
    )
    for kind, suffix in ((Unhealthy.STOPPED_REPORTING, ""), (Unhealthy.NEVER_REPORTED, "_first")):
        for counter, figure in (
            (stats.late, "late"),
            (stats.recovered, "recovering"),
            (stats.uncounted, "uncounted"),
            (stats.recovered_in_trouble, "in_trouble"),
        ):
            if number := figures.get(figure + suffix):
                counter[kind] = number
    for reported, new in zip(row["reported"] or (), row["new"] or (), strict=True):
        if new:
            stats.due[Unhealthy.STOPPED_REPORTING if reported else Unhealthy.NEVER_REPORTED] += 1
    return stats


def set_suspensions(session: Session, provider: str, reasons: Mapping[str, str]) -> list[str]:
    """
    Suspend recovery in the locations of *reasons* and nowhere else; return the locations where a suspension ended.

    May run twice, also concurrently.

    Raises:
        SessionExpired: the deadline passed.
    """
    rows = _set(session, "set_suspensions", provider, reasons)
    return [location for _, location in rows if location is not None]


def set_ssh_outages(session: Session, provider: str, outages: Mapping[str, str]) -> None:
    """
    Record an SSH outage in the locations of *outages*, with these reasons; all other outages end.

    May run twice, also concurrently.

    Raises:
        SessionExpired: the deadline passed.
    """
    _set(session, "set_ssh_outages", provider, outages)


def _set(session: Session, statement: str, provider: str, reasons: Mapping[str, str]) -> list[list[Any]]:
    locations = sorted(reasons)
    values = [reasons[location] for location in locations]
    rows = session.run(statement, provider=provider, locations=locations, reasons=values)
    if not rows[0][0]:
        raise SessionExpired
    return rows


def ignore_suspensions(session: Session, provider: str) -> None:
    """Delete the suspensions and SSH outages in force. Only for dry runs, which are rolled back."""
    session.connection.run("ignore_suspensions", provider=provider)


def suspensions(connection: Connection) -> list[dict[str, Any]]:
    """
    Return the suspensions and SSH outages in force (``ended_at`` is None), and those that ended within a day.

    ``kind`` is suspension or ssh_outage.
    """
    return connection.records("recovery_suspensions")
