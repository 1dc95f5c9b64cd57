"""
The machines that need each process, computed from the facts alone.

Written independently of the product: no views. What claims return
is compared with this.
"""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from shepherd_core.domain.machine import Process

_HEARTBEAT_TIMEOUT, _STARTUP_TIMEOUT = 600, 1800

# Provided by this provider, and did not fail there for good before it had an agent. Not installed: only a successful
# report on the requested generation counts. No work in progress, no backoff in force, no pause.
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
    AND (
        p.provider_status IS DISTINCT FROM 'ProvisioningFailedPermanent'
        OR EXISTS (SELECT 1 FROM machine_agent_started a WHERE a.machine_id = p.machine_id)
    )
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
# agent and an agent start has failed, by no fault of others: seconds since it should have had one.
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
        SELECT {_ago("coalesce(w.grace_until, m.machine_created_at + interval '6 hours')")}
        FROM work_backoff b
        JOIN machines m ON m.machine_id = b.machine_id
        LEFT JOIN machine_grace w ON w.machine_id = b.machine_id
        WHERE b.machine_id = p.machine_id
            AND b.process = 'ShepherdAgentStart'
            AND b.last_interval_seconds IS NOT NULL
            AND b.fault NOT IN ('access', 'provider', 'ours')
    )
"""


def _unhealthy(started: float | None, heartbeat: float | None, interval: int | None, back: float | None) -> bool:
    """
    Return whether these facts make a machine unhealthy, or overdue if it has no agent.

    A heartbeat from before the agent was started does not count.
    """
    if started is None:
        return back is not None and back >= 0
    if heartbeat is None:
        return started >= _STARTUP_TIMEOUT
    return heartbeat >= max(_HEARTBEAT_TIMEOUT, 2.5 * (interval or 0))


def plainly_eligible(sql: Callable[..., list[list[Any]]], process: Process, provider: str = "static") -> set[UUID]:
    """Return the machines that are eligible now; *sql* runs a query with parameters."""
    if process is Process.AGENT_START:
        rows = sql("SELECT p.machine_id" + _BOTH + _AGENT_START, process=process, provider=provider)
        return {row[0] for row in rows}
    rows = sql(_FACTS + _BOTH, process=process, provider=provider)
    return {machine_id for machine_id, *facts in rows if _unhealthy(*facts)}
