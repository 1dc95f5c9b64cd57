"""
The machines that need each process, computed from the facts alone.

Written independently of the product: no due index, no views. What claims return
is compared with this.
"""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from shepherd_core.domain.machine import Process

# Provided by this provider. Not installed: only a successful report on the requested generation counts. No work in
# progress, no backoff in force, no pause.
_BOTH = """
SELECT p.machine_id
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
            AND w.process IN ('ShepherdAccess', 'ShepherdAgentStart', 'ShepherdRecovery')
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


def _in_doubt(timeout: str, unless: str, interval: str = "0") -> str:
    """
    Return the condition that no long gap between snapshots protects a machine.

    A gap is in doubt for as long before its begin and after its end as an agent may be
    late that could not report during it, with this *timeout* and an *interval* of so
    many seconds. *unless* is the condition that must be false; g is the gap, and
    g.doubt that time.
    """
    return f"""
                AND NOT EXISTS (
                    SELECT 1
                    FROM (
                        SELECT y.provider, y.began_at, y.ended_at, least(
                            {timeout},
                            0.6 * (y.ended_at - y.began_at)
                                + greatest(0.15 * {timeout}, 0.85 * {interval} * interval '1 second')
                        ) AS doubt
                        FROM (
                            SELECT provider, began_at, ended_at FROM recovery_gaps
                            UNION ALL
                            SELECT provider, taken_at, clock_timestamp() FROM recovery_snapshots
                        ) AS y
                    ) AS g
                    WHERE g.provider = p.provider
                        AND g.ended_at - g.began_at + g.doubt > {timeout}
                        AND g.ended_at + g.doubt > clock_timestamp()
                        AND ({unless})
                )"""


_INTERVAL = """coalesce(
    (SELECT i.report_interval_seconds FROM machine_agent_heartbeat i WHERE i.machine_id = p.machine_id), 0
)"""
_TIMEOUT = f"greatest(interval '10 minutes', 2.5 * {_INTERVAL} * interval '1 second')"
_STARTUP = "interval '30 minutes'"
_BACK = "interval '10 minutes'"
_HELD_SINCE = """EXISTS (
    SELECT 1 FROM recovery_suspensions x
    WHERE x.provider = p.provider
        AND (x.location = '' OR x.location = p.provider_location)
        AND coalesce(x.ended_at, 'infinity') > g.began_at - g.doubt
)"""
_HEARD_SINCE = """EXISTS (
    SELECT 1 FROM machine_agent_heartbeat h
    WHERE h.machine_id = p.machine_id AND h.agent_heartbeat_at > g.began_at - g.doubt
)"""
_NOT_YET_OVERDUE = """w.grace_until > g.began_at OR EXISTS (
    SELECT 1 FROM recovery_suspensions x
    WHERE x.provider = p.provider
        AND (x.location = '' OR x.location = p.provider_location)
        AND x.ended_at > w.grace_began_at
        AND x.ended_at + (w.grace_until - w.grace_began_at) > g.began_at
)"""

# Either an agent whose last heartbeat is 10 minutes old, and two and a half of its intervals, or that has not sent one
# within 30 minutes. A heartbeat from before the agent was started does not count. While recovery is suspended at the
# machine's location, and for the same time afterwards, it is not unhealthy.
# Or no agent: a recovery step was taken, an agent start has failed since, and the grace is over. If recovery was
# suspended meanwhile, the grace starts again.
# Long gaps between snapshots do not count: all this must have been so before the gap, or until some time after it.
_RECOVERY = f"""
    AND (EXISTS (
        SELECT 1
        FROM machine_agent_started a
        WHERE a.machine_id = p.machine_id
            AND CASE
                WHEN EXISTS (
                    SELECT 1 FROM machine_agent_heartbeat h
                    WHERE h.machine_id = p.machine_id AND h.agent_heartbeat_at >= a.agent_started_at
                )
                THEN NOT EXISTS (
                    SELECT 1 FROM machine_agent_heartbeat h
                    WHERE h.machine_id = p.machine_id
                        AND h.agent_heartbeat_at > clock_timestamp() - {_TIMEOUT}
                )
                AND NOT EXISTS (
                    SELECT 1 FROM recovery_suspensions x
                    WHERE x.provider = p.provider
                        AND (x.location = '' OR x.location = p.provider_location)
                        AND coalesce(x.ended_at, 'infinity') > clock_timestamp() - {_TIMEOUT}
                )
                {_in_doubt(_TIMEOUT, f"{_HEARD_SINCE} OR {_HELD_SINCE}", _INTERVAL)}
                ELSE a.agent_started_at <= clock_timestamp() - interval '30 minutes'
                AND NOT EXISTS (
                    SELECT 1 FROM recovery_suspensions x
                    WHERE x.provider = p.provider
                        AND (x.location = '' OR x.location = p.provider_location)
                        AND coalesce(x.ended_at, 'infinity') > clock_timestamp() - interval '30 minutes'
                )
                {_in_doubt(_STARTUP, f"a.agent_started_at > g.began_at - g.doubt OR {_HELD_SINCE}")}
            END
    )
    OR EXISTS (
        SELECT 1
        FROM machine_grace w
        WHERE w.machine_id = p.machine_id
            AND w.grace_until <= clock_timestamp()
            AND NOT EXISTS (SELECT 1 FROM machine_agent_started a WHERE a.machine_id = p.machine_id)
            AND EXISTS (
                SELECT 1 FROM work_backoff b
                WHERE b.machine_id = p.machine_id
                    AND b.process = 'ShepherdAgentStart'
                    AND b.last_interval_seconds IS NOT NULL
            )
            AND NOT EXISTS (
                SELECT 1 FROM recovery_suspensions x
                WHERE x.provider = p.provider
                    AND (x.location = '' OR x.location = p.provider_location)
                    AND coalesce(x.ended_at, 'infinity')
                        > greatest(w.grace_began_at, clock_timestamp() - (w.grace_until - w.grace_began_at))
            )
            {_in_doubt(_BACK, _NOT_YET_OVERDUE)}
    ))
"""

_QUERIES = {Process.AGENT_START: _BOTH + _AGENT_START, Process.RECOVERY: _BOTH + _RECOVERY}


def plainly_eligible(sql: Callable[..., list[list[Any]]], process: Process, provider: str = "static") -> set[UUID]:
    """Return the machines that are eligible now; *sql* runs a query with parameters."""
    return {row[0] for row in sql(_QUERIES[process], process=process, provider=provider)}
