-- Why a machine is worked on, or is not.

-- name: why
-- For each process of a loop, one row with everything by which a claim would evaluate the machine now, and whether it
-- would take it. A column that is null does not block it.
SELECT
    x.process,
    statement_timestamp() AS now,
    n.ready IS TRUE AND l.machine_id IS NULL AS taken,
    p.machine_id IS NOT NULL AS provided,
    e.installed,
    e.state = 'failed' AS failed,
    p.provider_failure,
    {quarantine_kind} AS quarantine_kind,
    z.cause AS quarantine_cause,
    w.grace_until,
    n.process IS NOT NULL AS wanted,
    coalesce(n.overdue, false) AS overdue,
    CASE WHEN n.due_at < 'infinity' THEN n.since END AS since,
    nullif(n.due_at, 'infinity') AS due_at,
    coalesce(n.reported, false) AS reported,
    n.backoff_until,
    b.cause AS backoff_cause,
    b.kind AS backoff_kind,
    n.last_interval_seconds,
    s.deadline AS locked_until,
    s.component_name || ' (' || s.runtime_info || ')' AS locked_by,
    y.owner || ': ' || y.reason AS paused_by,
    y.expires_at AS pause_expires_at,
    f.fault AS start_fault,
    f.cause AS start_cause,
    f.kind AS start_kind
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
    SELECT u.owner, u.reason, u.expires_at
    FROM machine_pauses u
    WHERE u.machine_id = m.machine_id AND u.process = x.process
    ORDER BY coalesce(u.expires_at, 'infinity') DESC
    LIMIT 1
) AS y ON true
ORDER BY x.process;
