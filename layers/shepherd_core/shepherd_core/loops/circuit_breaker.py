"""
The circuit breaker of the Recoverer: where recovery is suspended, and how many machines may be claimed elsewhere.

``rules.circuit_breaker`` has the rules, ``bmdb.recovery.suspension`` the records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shepherd_core import telemetry
from shepherd_core.bmdb.recovery import suspension
from shepherd_core.domain.health import WHOLE_PROVIDER, Unhealthy, where
from shepherd_core.loops.base import Admission
from shepherd_core.rules.circuit_breaker import BreakerLimits, over_number, over_share, ssh_outages, total
from shepherd_core.telemetry import Metric

if TYPE_CHECKING:
    from shepherd_core.bmdb.session import Session


class CircuitBreaker:
    """The circuit breaker of one provider."""

    def __init__(self, provider: str, limits: BreakerLimits) -> None:
        self._provider = provider
        self._limits = limits

    def admit(self, session: Session) -> Admission:
        """Suspend recovery where too many machines are unhealthy, and admit as many as are due elsewhere."""
        suspended, snapshot = self._evaluate(session, suspension.take_health_snapshot(session, self._provider))
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
        limit = 0 if WHOLE_PROVIDER in suspended else snapshot.claimable
        return Admission(limit, reasons, counts, idle=snapshot.idle)

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

    def _evaluate(
        self, session: Session, snapshot: suspension.HealthSnapshot
    ) -> tuple[dict[str, str], suspension.HealthSnapshot]:
        """Return the locations to suspend, with their reasons, and a snapshot of what is due elsewhere."""
        suspended = over_share(snapshot.stats, self._limits)
        while WHOLE_PROVIDER not in suspended:
            if suspended:
                snapshot = suspension.take_health_snapshot(
                    session, self._provider, skipped_locations=suspended, before=snapshot
                )
            over = over_number(snapshot.stats, self._limits, suspended)
            if not over:
                break
            suspended = over if WHOLE_PROVIDER in over else suspended | over
        return suspended, snapshot
