-- name: why
-- For each process of a loop, one row: whether a claim would take the machine now, and if not, what blocks it first, until
-- when, and when nothing blocks it any more (null: unknown).
SELECT
    x.process, v.block AS blocked_by, v.because,
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
    SELECT
        x.process = 'ShepherdAgentStart' AS starts, n.due_at < 'infinity' AS known, b.until > statement_timestamp() AS waits
) AS k
-- The first reason that holds and has a text.
CROSS JOIN LATERAL (
    SELECT r.*
    FROM (
        VALUES
            (1, p.machine_id IS NULL, 'not_provided', 'not provided yet', NULL, NULL),
            (
                2, {quarantine_kind} = 'reports-again', 'quarantined',
                'in quarantine: ' || z.cause || ', and its agent reports again', NULL, 'reports-again'
            ),
            (3, z.machine_id IS NOT NULL, 'quarantined', 'in quarantine: ' || z.cause, NULL, z.kind),
            (4, e.state = 'installed', 'installed', 'the requested system is installed: no loop works on it any more', NULL, NULL),
            (
                5, e.state = 'failed' AND n.process IS NULL, 'failed',
                'it failed for good at its provider, and keeps its place: ' || coalesce(nullif(p.provider_failure, ''), '?'),
                NULL, 'provisioning-failed'
            ),
            (6, n.process IS NULL AND starts, 'not_needed', 'its agent was started', NULL, NULL),
            (7, n.process IS NULL, 'not_needed', 'it has no agent that could be unhealthy', NULL, NULL),
            (8, n.ready AND l.machine_id IS NULL, NULL, 'due', NULL, NULL),
            (9, true, 'locked', 'being worked on by ' || s.component_name || ' (' || s.runtime_info || ')', s.deadline, NULL),
            (10, true, 'paused', 'paused by ' || y.owner || ': ' || y.reason, y.expires_at, NULL),
            (11, waits AND n.last_interval_seconds IS NULL, 'backoff', 'waiting: ' || b.cause, b.until, b.kind),
            (12, waits, 'backoff', 'backing off: ' || b.cause, b.until, b.kind),
            (13, known AND n.overdue, 'not_due', 'it is expected back, and its grace is not over', n.due_at, NULL),
            (14, known AND starts, 'not_due', 'it may still be booting: its boot wait is not over', n.due_at, NULL),
            (15, known AND n.reported, 'not_due', 'its agent reports', n.due_at, NULL),
            (16, known, 'not_due', 'its agent was started recently, and has not reported yet', n.due_at, NULL),
            -- It is expected, and not known to have failed to come.
            (
                17, f.fault IN ('access', 'provider', 'ours'), 'not_due',
                'its agent start fails for a reason that no reboot can remove: ' || f.cause, NULL, f.kind
            ),
            (18, w.grace_until IS NULL, 'not_due', 'it never came up, and no agent start has failed', NULL, f.kind),
            (19, true, 'not_due', 'it is expected back, and no agent start has failed since', NULL, f.kind)
    ) AS r (place, holds, block, because, until, kind)
    WHERE r.holds AND r.because IS NOT NULL
    ORDER BY r.place
    LIMIT 1
) AS v
ORDER BY x.process;
