-- Why a machine is worked on, or is not.

-- name: why
-- For each process of a loop, one row: whether a claim would take the machine now, and if not, what blocks it first, until
-- when, and when nothing blocks it any more (null: unknown).
SELECT
    x.process,
    statement_timestamp() AS now,
    v.block AS blocked_by,
    v.because,
    nullif(v.until, 'infinity') AS until,
    CASE
        WHEN v.block IS NULL THEN statement_timestamp()
        WHEN n.process IS NOT NULL
            THEN nullif(greatest(s.deadline, n.paused_until, y.expires_at, n.backoff_until, n.due_at), 'infinity')
    END AS next_at,
    v.kind
FROM unnest(ARRAY['ShepherdAgentStart', 'ShepherdRecovery']) AS x (process)
JOIN machines m ON m.machine_id = :machine_id
LEFT JOIN machine_provided p ON p.machine_id = m.machine_id
LEFT JOIN machine_quarantine z ON z.machine_id = m.machine_id
LEFT JOIN machine_agent_heartbeat h ON h.machine_id = m.machine_id
LEFT JOIN machine_grace w ON w.machine_id = m.machine_id
LEFT JOIN LATERAL (SELECT * FROM machine_need WHERE machine_id = m.machine_id LIMIT 1) AS e ON true
LEFT JOIN LATERAL (SELECT * FROM machine_eligibility WHERE machine_id = m.machine_id AND process = x.process LIMIT 1) AS n ON true
LEFT JOIN work_backoff b ON b.machine_id = m.machine_id AND b.process = x.process
LEFT JOIN work_backoff f
    ON f.machine_id = m.machine_id AND f.process = 'ShepherdAgentStart' AND f.last_interval_seconds IS NOT NULL
LEFT JOIN work l ON l.machine_id = m.machine_id
LEFT JOIN sessions s ON s.session_id = l.session_id
LEFT JOIN LATERAL (
    SELECT u.owner, u.reason, coalesce(u.expires_at, 'infinity') AS expires_at
    FROM machine_pauses u
    WHERE u.machine_id = m.machine_id AND u.process = x.process
    ORDER BY 3 DESC
    LIMIT 1
) AS y ON true
CROSS JOIN LATERAL (
    SELECT r.*
    FROM (
        VALUES
            (1, p.machine_id IS NULL, 'not_provided', 'not provided yet', NULL, NULL),
            (
                2, z.machine_id IS NOT NULL, 'quarantined', 'in quarantine: ' || z.cause
                || CASE {quarantine_kind} WHEN 'reports-again' THEN ', and its agent reports again' ELSE '' END,
                NULL, {quarantine_kind}
            ),
            (3, e.installed, 'installed', 'the requested system is installed: no loop works on it any more', NULL, NULL),
            (
                4, e.state = 'failed', 'failed',
                'it failed for good at its provider, and keeps its place: ' || coalesce(nullif(p.provider_failure, ''), '?'),
                NULL, 'provisioning-failed'
            ),
            (
                5, n.process IS NULL, 'not_needed', CASE x.process
                    WHEN 'ShepherdAgentStart' THEN 'its agent was started'
                    ELSE 'it has no agent that could be unhealthy'
                END,
                NULL, NULL
            ),
            (6, n.ready AND l.machine_id IS NULL, NULL, 'due', NULL, NULL),
            (
                7, l.machine_id IS NOT NULL, 'locked',
                'being worked on by ' || s.component_name || ' (' || s.runtime_info || ')', s.deadline, NULL
            ),
            (8, y.owner IS NOT NULL, 'paused', 'paused by ' || y.owner || ': ' || y.reason, y.expires_at, NULL),
            (
                9, n.backoff_until > statement_timestamp(), 'backoff',
                CASE WHEN n.last_interval_seconds IS NULL THEN 'waiting: ' ELSE 'backing off: ' END || b.cause,
                n.backoff_until, b.kind
            ),
            (
                10, n.due_at < 'infinity', 'not_due', CASE
                    WHEN n.overdue THEN 'it is expected back, and its grace is not over'
                    WHEN n.process = 'ShepherdAgentStart' THEN 'it may still be booting: its boot wait is not over'
                    WHEN n.reported THEN 'its agent reports'
                    ELSE 'its agent was started recently, and has not reported yet'
                END,
                n.due_at, NULL
            ),
            -- It is expected, and not known to have failed to come.
            (
                11, true, 'not_due', CASE
                    WHEN f.fault IN ('access', 'provider', 'ours')
                        THEN 'its agent start fails for a reason that no reboot can remove: ' || f.cause
                    WHEN w.grace_until IS NULL THEN 'it never came up, and no agent start has failed'
                    ELSE 'it is expected back, and no agent start has failed since'
                END,
                NULL, f.kind
            )
    ) AS r (place, holds, block, because, until, kind)
    WHERE r.holds
    ORDER BY r.place
    LIMIT 1
) AS v
ORDER BY x.process;
