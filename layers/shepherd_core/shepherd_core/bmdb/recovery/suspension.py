"""
Suspension of recovery: the figures about unhealthy machines, and where the circuit breaker stopped recovery.

``set_suspensions`` puts a suspension in force for all claims, until it is called
without that location. Then the timeouts start at the end of the suspension.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from shepherd_core.domain.errors.bmdb import SessionExpired
from shepherd_core.domain.health import LocationStats, SshReach, Unhealthy

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.bmdb.session import Session

Stats = dict[str | None, LocationStats]
"""The figures of each location of a provider; None: of machines without a location."""

_SAMPLE = 1000
"""Number of machines of which the shares are taken."""
_WINDOW = 1000
"""Number of due rows that one snapshot evaluates."""
_FORWARD = 5000
"""Number of due rows that one invocation brings forward after a timeout became shorter."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A period without a health snapshot."""

    seconds: float
    ended_ago: float = 0.0
    """Seconds; 0: the snapshot that is being taken ends it."""


@dataclass(frozen=True, slots=True)
class HealthSnapshot:
    """The figures of a provider's machines that have an agent."""

    stats: Stats
    suspended: bool
    """A suspension is in force in at least one location."""
    claimable: int
    """Number of machines that can be claimed, of 1,000 due rows."""
    idle: bool
    """No row is due at all: a claim would find nothing."""
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


def take_health_snapshot(
    session: Session,
    provider: str,
    *,
    skipped_locations: Collection[str] = (),
    before: HealthSnapshot | None = None,
) -> HealthSnapshot:
    """
    Return figures of a sample of the machines, of recent recoveries, and of what is due outside of *skipped_locations*.

    Records the time of this snapshot and the gap since the last one. Moves the due
    rows of healthy machines, as a claim would, and brings some forward if a timeout
    became shorter. Pass the snapshot *before* to use its sample again. May run twice.

    Raises:
        SessionExpired: the deadline passed.
    """
    first = before is None
    while True:
        rows = session.run(
            "take_health_snapshot",
            provider=provider,
            sample=0 if before else _SAMPLE,
            start=uuid4(),  # a new sample each time: the next one may have enough machines of a location to judge it
            skipped_locations=sorted(skipped_locations),
        )
        totals = {figure: number for figure, _, _, _, number, _ in rows}  # of the figures that have a single row
        if not totals["sessions"]:
            raise SessionExpired
        before = _snapshot(rows, totals, before, whole=not skipped_locations)
        if any(gap.ended_ago == 0 for gap in before.gaps):
            session.run("delete_old_gaps", provider=provider)
        if first and "forward" in totals:
            first = False
            bring_forward(session, provider, _FORWARD)
            continue
        if totals["window"] < _WINDOW or not totals["rescheduled"]:
            return before  # else more may be due
        if session.seconds_left() < 2 * session.renew_interval:
            session.renew()


def bring_forward(session: Session, provider: str, rows: int) -> bool:
    """
    Make up to *rows* machines due for a check after a timeout became shorter; return whether there may be more.

    May run twice.
    """
    return bool(session.run("bring_due_rows_forward", provider=provider, rows=rows))


def _snapshot(
    rows: list[list[Any]],
    totals: Mapping[str, float],
    before: HealthSnapshot | None,
    *,
    whole: bool,
) -> HealthSnapshot:
    ssh: dict[str | None, SshReach] = defaultdict(SshReach)
    for figure, location, _, _, number, _ in rows:
        match figure:
            case "unreached":
                ssh[location].unreached += int(number)
            case "reached":
                ssh[location].reached += int(number)
    return HealthSnapshot(
        _stats(rows, before),
        "suspended" in totals,
        sum(int(number) for figure, _, _, _, number, _ in rows if figure == "due"),
        whole and totals["window"] == totals["rescheduled"],
        int(totals["quarantined"]),
        ssh,
        frozenset(location for figure, location, *_ in rows if figure == "outage"),
        int(totals["no_access"]),
        tuple(Gap(number, ago) for figure, _, _, _, number, ago in rows if figure == "gap"),
        totals.get("extended"),
    )


def _of_sample(before: HealthSnapshot | None) -> Stats:
    """Return the figures of the sample of the snapshot *before*; none without one."""
    stats: Stats = defaultdict(LocationStats)
    for location, each in before.stats.items() if before else ():
        stats[location] = LocationStats(
            each.reporting, each.late, unsampled=each.unsampled, heard=each.heard, losing=each.losing
        )
    return stats


def _stats(rows: list[list[Any]], before: HealthSnapshot | None) -> Stats:
    stats = _of_sample(before)
    for figure, location, reported, is_new, number, _ in rows:
        kind = Unhealthy.STOPPED_REPORTING if reported else Unhealthy.NEVER_REPORTED
        match figure:
            case "reporting":
                stats[location].reporting += int(number)
            case "heard":
                stats[location].heard += int(number)
            case "losing":
                stats[location].losing += int(number)
            case "late":
                stats[location].late[kind] += int(number)
            case "unsampled" if before is None:
                stats[location].unsampled[kind] += int(number)
            case "recovering":
                stats[location].recovered[kind] += int(number)
            case "in_trouble":
                stats[location].recovered_in_trouble[kind] += int(number)
            case "due":
                stats[location].due[kind] += int(number) if is_new else 0
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
