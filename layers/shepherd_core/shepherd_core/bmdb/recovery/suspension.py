"""
Holding recovery back: what the BMDB knows of silent machines, and where nobody is to be recovered.

A hold is in force from ``record`` on, for every claim of whomever, until a
``record`` without it. What a machine did not say before that counts no more.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from shepherd_core.domain.errors import SessionExpired
from shepherd_core.domain.gaps import Gap
from shepherd_core.domain.health import Access, LocationStats, Unhealthy

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.bmdb.session import Session
    from shepherd_core.bmdb.work.work import HealthTimeouts

Stats = dict[str | None, LocationStats]
"""The figures of each location of a provider; None: of machines without one."""

_SAMPLE = 1000
"""Machines of which the shares are taken."""
_WINDOW = 1000
"""Due rows that one look judges."""


@dataclass(frozen=True, slots=True)
class HealthSnapshot:
    """What is known of a provider's machines that have an agent."""

    stats: Stats
    timeouts: HealthTimeouts
    """What the machines were judged by, and claims must judge by: with the gaps between looks."""
    suspended: bool
    """A hold is in force, in some location at least."""
    claimable: int
    """Machines that can be claimed, of a window of 1,000 and as many that did not come back."""
    idle: bool
    """No row is due at all: a claim would find nothing."""
    quarantined: int
    ssh: dict[str | None, Access] = field(default_factory=dict)
    """How SSH works in each location where machines should have come back; only where it fails for some."""
    outages: frozenset[str] = frozenset()
    """Where an outage of SSH is on record."""
    no_access: int = 0
    """Machines on which no agent can be started until an operator acts."""


def take_health_snapshot(
    session: Session,
    provider: str,
    timeouts: HealthTimeouts,
    *,
    skipped_locations: Collection[str] = (),
    before: HealthSnapshot | None = None,
) -> HealthSnapshot:
    """
    Look at a sample of the machines, at what was recovered lately, and at what is due outside of *skipped_locations*.

    Puts on record that somebody looked, and for how long nobody had. Moves the
    due rows of machines that report, as a claim would. The sample is that of the
    look *before*, if there was one, and so are the gaps. May run twice.

    Raises:
        SessionExpired: the deadline passed.
    """
    timeouts = before.timeouts if before else timeouts
    while True:
        parameters = timeouts.parameters()
        rows = session.run(
            "take_health_snapshot",
            provider=provider,
            sample=0 if before else _SAMPLE,
            start=uuid4(),  # another one each time: what one sample has too few of to judge, the next one may have
            skipped_locations=sorted(skipped_locations),
            **parameters,
        )
        totals = {figure: number for figure, _, _, _, number, _ in rows}  # of those that come once
        if not totals["sessions"]:
            raise SessionExpired
        if before is None:
            timeouts = replace(timeouts, gaps=_gaps(rows))
            if any(gap.ended_ago == 0 for gap in timeouts.gaps):
                session.run("delete_old_gaps", provider=provider)
        before = _snapshot(rows, totals, timeouts, before, whole=not skipped_locations)
        if timeouts.parameters() == parameters and (totals["window"] < _WINDOW or not totals["moved"]):
            return before  # else what is due was judged without the gaps, or there may be more
        if session.seconds_left() < 2 * session.renew_interval:
            session.renew()


def gaps(connection: Connection, provider: str) -> tuple[Gap, ...]:
    """Return the times in which nobody looked, as a look would find them now."""
    return tuple(Gap(**record) for record in connection.records("recovery_gaps", provider=provider))


def _gaps(rows: list[list[Any]]) -> tuple[Gap, ...]:
    return tuple(Gap(number, ago) for figure, _, _, _, number, ago in rows if figure == "gap")


def _snapshot(
    rows: list[list[Any]],
    totals: Mapping[str, float],
    timeouts: HealthTimeouts,
    before: HealthSnapshot | None,
    *,
    whole: bool,
) -> HealthSnapshot:
    stats: Stats = defaultdict(LocationStats)
    if before:
        for location, cell in before.stats.items():
            stats[location] = LocationStats(cell.reporting, cell.unhealthy)
    ssh: dict[str | None, Access] = defaultdict(Access)
    claimable = 0
    for figure, location, reported, news, number, _ in rows:
        kind = Unhealthy.STOPPED_REPORTING if reported else Unhealthy.NEVER_REPORTED
        match figure:
            case "reporting":
                stats[location].reporting += int(number)
            case "quiet":
                stats[location].unhealthy[kind] += int(number)
            case "recovering":
                stats[location].recovered[kind] += int(number)
            case "unreached":
                ssh[location].unreached += int(number)
            case "reached":
                ssh[location].reached += int(number)
            case "due":
                claimable += int(number)
                stats[location].due[kind] += int(number) if news else 0
    return HealthSnapshot(
        stats,
        timeouts,
        "held" in totals,
        claimable,
        whole and totals["window"] == totals["moved"] and not totals["awaited"],
        int(totals["quarantined"]),
        ssh,
        frozenset(location for figure, location, *_ in rows if figure == "outage"),
        int(totals["no_access"]),
    )


def set_suspensions(session: Session, provider: str, held: Mapping[str, str]) -> list[str]:
    """
    Hold recovery back in the locations of *held*, for the reasons given, and nowhere else; return where that ended.

    May run twice, and beside its twin.

    Raises:
        SessionExpired: the deadline passed.
    """
    locations = sorted(held)
    reasons = [held[location] for location in locations]
    rows = session.run("set_suspensions", provider=provider, locations=locations, reasons=reasons)
    if not rows[0][0]:
        raise SessionExpired
    return [location for _, location in rows if location is not None]


def set_ssh_outages(session: Session, provider: str, outages: Mapping[str, str]) -> None:
    """
    Put on record where SSH has an outage, and why that is believed; elsewhere there is none any more.

    May run twice, and beside its twin.

    Raises:
        SessionExpired: the deadline passed.
    """
    locations = sorted(outages)
    reasons = [outages[location] for location in locations]
    rows = session.run("set_ssh_outages", provider=provider, locations=locations, reasons=reasons)
    if not rows[0][0]:
        raise SessionExpired


def ignore_suspensions(session: Session, provider: str) -> None:
    """
    Forget the holds in force, so that claims hand out what is due there, as if nothing had been held back.

    For rehearsals, which undo it.
    """
    session.connection.run("ignore_suspensions", provider=provider)


def suspensions(connection: Connection) -> list[dict[str, Any]]:
    """Return the holds and outages of SSH in force (``ended_at`` is None), and those that ended within a day."""
    return connection.records("recovery_suspensions")
