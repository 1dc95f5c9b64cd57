"""
The machines that need each process, computed from the facts alone.

Written independently of the product: no due index, no views. What claims return
is compared with this.
"""

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from shepherd_core.domain.machine import Process

from tests.support.bmdb.reference.gap_rule import Gap, extended_timeout, required_overdue

_HEARTBEAT_TIMEOUT, _STARTUP_TIMEOUT = 600, 1800

# Provided by this provider. Not installed: only a successful report on the requested generation counts. No work in
# progress, no backoff in force, no pause.
_BOTH = """
FROM machine_provided p
WHERE p.provider = :provider
    AND NOT EXISTS (
        SELECT 1
        FROM machine_os_installation_request q, machine_os_installation_report r
        WHERE q.machine_id = p.machine_id
            AND r.machine_id = p.machine_id
            AND r.generation = q.generation
            AND r.os_installation_result = 'Success'
    )
    AND NOT EXISTS (
        SELECT 1
        FROM work w
        WHERE w.machine_id = p.machine_id
    )
    AND NOT EXISTS (
        SELECT 1
        FROM work_backoff b
        WHERE b.machine_id = p.machine_id AND b.process = :process AND b.until > clock_timestamp()
    )
    AND NOT EXISTS (
        SELECT 1
        FROM pauses x
        WHERE coalesce(x.machine_id, p.machine_id) = p.machine_id
            AND coalesce(x.process, :process) = :process
            AND coalesce(x.provider, p.provider) = p.provider
            AND coalesce(x.expires_at, 'infinity') > clock_timestamp()
    )
    AND NOT EXISTS (SELECT 1 FROM machine_quarantine z WHERE z.machine_id = p.machine_id)
"""

# No agent, and its boot wait is over if it was rebooted.
_AGENT_START = """
    AND NOT EXISTS (SELECT 1 FROM machine_agent_started a WHERE a.machine_id = p.machine_id)
    AND NOT EXISTS (SELECT 1 FROM machine_rebooted m WHERE m.machine_id = p.machine_id
                    AND m.boot_wait_until > clock_timestamp())
"""


def _ago(time: str) -> str:
    return f"extract(epoch FROM statement_timestamp() - {time})::float8"


# Seconds since its agent was started, and since the last heartbeat of that agent; how often it reports. If it has no
# agent although a step was taken and an agent start has failed since: seconds since its grace was over, and how long
# that was. The suspensions where it is, by how long ago they ended (-1: they did not); and the gaps between snapshots.
_FACTS = f"""
SELECT
    p.machine_id,
    (SELECT {_ago("a.agent_started_at")} FROM machine_agent_started a WHERE a.machine_id = p.machine_id),
    (
        SELECT {_ago("h.agent_heartbeat_at")}
        FROM machine_agent_heartbeat h JOIN machine_agent_started a ON a.machine_id = h.machine_id
        WHERE h.machine_id = p.machine_id AND h.agent_heartbeat_at >= a.agent_started_at
    ),
    (SELECT h.report_interval_seconds FROM machine_agent_heartbeat h WHERE h.machine_id = p.machine_id),
    (
        SELECT ARRAY[{_ago("w.grace_until")}, extract(epoch FROM w.grace_until - w.grace_began_at)::float8]
        FROM machine_grace w JOIN work_backoff b ON b.machine_id = w.machine_id
        WHERE w.machine_id = p.machine_id AND b.process = 'ShepherdAgentStart' AND b.last_interval_seconds IS NOT NULL
    ),
    ARRAY(
        SELECT coalesce({_ago("x.ended_at")}, -1)
        FROM recovery_suspensions x
        WHERE x.provider = p.provider AND (x.location = '' OR x.location = p.provider_location)
    ),
    ARRAY(
        SELECT ARRAY[extract(epoch FROM g.ended_at - g.began_at)::float8, {_ago("g.ended_at")}]
        FROM (
            SELECT provider, began_at, ended_at FROM recovery_gaps
            UNION ALL
            SELECT provider, taken_at, statement_timestamp() FROM recovery_snapshots
        ) AS g
        WHERE g.provider = p.provider
    )
"""


def _unhealthy(
    started: float | None,
    heartbeat: float | None,
    interval: int | None,
    back: tuple[float, float] | None,
    suspended: Sequence[float],
    gaps: Sequence[tuple[float, float]],
) -> bool:
    """
    Return whether these facts make a machine unhealthy, or overdue if it has no agent.

    A heartbeat from before the agent was started does not count. Suspensions and long gaps restart the timeouts.
    """
    among = [Gap(*gap) for gap in gaps]
    if started is not None and heartbeat is not None:
        timeout = max(_HEARTBEAT_TIMEOUT, 2.5 * (interval or 0))
        return min([heartbeat, *suspended]) >= extended_timeout(timeout, among, interval or 0)
    if started is not None:
        return min([started, *suspended]) >= extended_timeout(_STARTUP_TIMEOUT, among)
    if back is None:
        return False
    since, grace = back
    overdue = min([since, *(ended - grace for ended in suspended if ended < since + grace)])
    return overdue >= required_overdue(_HEARTBEAT_TIMEOUT, among)


def plainly_eligible(sql: Callable[..., list[list[Any]]], process: Process, provider: str = "static") -> set[UUID]:
    """Return the machines that are eligible now; *sql* runs a query with parameters."""
    if process is Process.AGENT_START:
        rows = sql("SELECT p.machine_id" + _BOTH + _AGENT_START, process=process, provider=provider)
        return {row[0] for row in rows}
    rows = sql(_FACTS + _BOTH, process=process, provider=provider)
    return {machine_id for machine_id, *facts in rows if _unhealthy(*facts)}
