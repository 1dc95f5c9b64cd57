"""
The circuit breaker of the Recoverer: where recovery is suspended, and how many machines may be claimed elsewhere.

``rules.circuit_breaker`` has the rules, ``bmdb.recovery.suspension`` the records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shepherd_core import telemetry
from shepherd_core.bmdb.recovery import suspension
from shepherd_core.bmdb.work.work import Candidates
from shepherd_core.domain.health import WHOLE_PROVIDER, Unhealthy, where
from shepherd_core.loops.base import Admission
from shepherd_core.rules.circuit_breaker import BreakerLimits, over_number, over_share, ssh_outages, total
from shepherd_core.telemetry import Metric

if TYPE_CHECKING:
    from collections.abc import Collection

    from shepherd_core.bmdb.session import Session


class CircuitBreaker:
    """The circuit breaker of one provider."""

    def __init__(self, provider: str, limits: BreakerLimits) -> None:
        self._provider = provider
        self._limits = limits

    def admit(self, session: Session) -> Admission:
        """Suspend recovery where too many machines are unhealthy, and admit as many as are due elsewhere."""
        snapshot = suspension.take_health_snapshot(session, self._provider)
        suspended = self._suspended(snapshot)
        if snapshot.extended_timeout_seconds is not None:
            # Else the machines that report last after an outage of the BMDB would be rebooted for it.
            telemetry.info(
                "heartbeat timeout extended: heartbeats may have been lost between health snapshots",
                gaps=[{"seconds": round(gap.seconds), "ended_ago": round(gap.ended_ago)} for gap in snapshot.gaps],
                timeout_seconds=round(snapshot.extended_timeout_seconds),
            )
        if suspended or snapshot.suspended:
            for location in suspension.set_suspensions(session, self._provider, suspended):
                telemetry.info("recovery resumed", where=where(location))
        for location, reason in suspended.items():
            telemetry.warning("recovery suspended", where=where(location), reason=reason)
        outages = self._ssh_outages(session, snapshot)
        late = total(snapshot.stats.values()).late
        counts = {
            Metric.RECOVERY_SUSPENDED: len(suspended) + len(outages),
            Metric.LATE_HEARTBEATS: late[Unhealthy.STOPPED_REPORTING],
            Metric.LATE_FIRST_HEARTBEATS: late[Unhealthy.NEVER_REPORTED],
            Metric.QUARANTINED: snapshot.quarantined,
            Metric.NO_ACCESS: snapshot.no_access,
        }
        reasons = tuple(
            f"{where(location)}: {reason}" for location, reason in sorted([*suspended.items(), *outages.items()])
        )
        return Admission(_due(snapshot, suspended), reasons, counts)

    def ignore_suspensions(self, session: Session) -> Candidates:
        """See ``Loop.ignore_suspensions``."""
        suspension.ignore_suspensions(session, self._provider)
        return _due(suspension.take_health_snapshot(session, self._provider))

    def _ssh_outages(self, session: Session, snapshot: suspension.HealthSnapshot) -> dict[str, str]:
        """Record where SSH has an outage; machines there that did not come back get no further step."""
        outages = ssh_outages(snapshot.ssh)
        if outages.keys() != snapshot.outages:
            suspension.set_ssh_outages(session, self._provider, outages)
        for location in snapshot.outages - outages.keys():
            telemetry.info("SSH outage over", where=where(location))
        for location, reason in outages.items():
            telemetry.warning("SSH outage: recovery waits", where=where(location), reason=reason)
        return outages

    def _suspended(self, snapshot: suspension.HealthSnapshot) -> dict[str, str]:
        """Return the locations to suspend, with their reasons."""
        suspended = over_share(snapshot.stats, self._limits)
        while WHOLE_PROVIDER not in suspended:
            over = over_number(snapshot.stats, self._limits, suspended)
            if not over:
                break
            suspended = over if WHOLE_PROVIDER in over else suspended | over
        return suspended


def _due(snapshot: suspension.HealthSnapshot, suspended: Collection[str] = ()) -> Candidates:
    """Return the due machines outside of the suspended locations, the longest waiting first."""
    due = [
        each
        for location, machines in snapshot.due.items()
        if WHOLE_PROVIDER not in suspended and location not in suspended
        for each in machines
    ]
    due.sort(key=lambda each: -each.due_seconds)
    return Candidates(tuple(due), len(due))
