-- Recovery that goes up a ladder, step by step, and knows when to stop.

-- step: the step of the ladder that a line is about. Attempted: it is about to be taken, written before it is. Skipped:
-- it cannot be taken. Healthy: until then the machine had reported for so long that its ladder begins at the bottom
-- again. Quarantined and Unquarantined: see machine_quarantine. Retried: an operator ended a backoff. The old constraint
-- has one name in PostgreSQL and another in CockroachDB; the new one is not held against what is there, which takes long.
ALTER TABLE work_history ADD COLUMN step text;
ALTER TABLE work_history DROP CONSTRAINT IF EXISTS work_history_event_check;
ALTER TABLE work_history DROP CONSTRAINT IF EXISTS check_event;
ALTER TABLE work_history ADD CONSTRAINT work_history_event CHECK (event IN
    ('Started', 'Finished', 'Failed', 'Canceled', 'Expired',
    'Attempted', 'Skipped', 'Healthy', 'Quarantined', 'Unquarantined', 'Retried')) NOT VALID;

CREATE INDEX work_history_of_recovery ON work_history (machine_id, timestamp) WHERE process = 'ShepherdRecovery';

-- Machines that no loop touches until an operator says so.
CREATE TABLE machine_quarantine (
    machine_id uuid PRIMARY KEY REFERENCES machines,
    quarantined_at timestamptz NOT NULL,
    cause text NOT NULL,
    evidence text NOT NULL -- what the history said last, a line each
);

-- Machines without an agent that were told to come back: asked when, and given until when.
CREATE TABLE machine_grace (
    machine_id uuid PRIMARY KEY REFERENCES machines,
    grace_began_at timestamptz NOT NULL,
    grace_until timestamptz NOT NULL
);

-- When a machine may need recovery besides the process of its row: because it did not come back. As not_before, it may be
-- too early, and is never too late.
ALTER TABLE machine_due ADD COLUMN recovery_not_before timestamptz;

CREATE INDEX machine_due_for_recovery ON machine_due (provider, recovery_not_before) WHERE recovery_not_before IS NOT NULL;

-- As it was, but that a machine in quarantine needs nothing.
CREATE OR REPLACE VIEW machine_need AS
SELECT
    p.machine_id,
    p.provider,
    CASE
        WHEN z.machine_id IS NOT NULL THEN NULL
        WHEN q.generation = r.generation AND r.os_installation_result = 'Success' THEN NULL
        WHEN a.machine_id IS NULL THEN 'ShepherdAgentStart'
        ELSE 'ShepherdRecovery'
    END AS process,
    CASE
        WHEN a.machine_id IS NULL THEN coalesce(b.boot_wait_until, m.machine_created_at)
        ELSE greatest(
            coalesce(h.agent_heartbeat_at, a.agent_started_at),
            (
                SELECT max(x.ended_at)
                FROM recovery_suspensions x
                WHERE x.provider = p.provider AND x.location IN ('', p.provider_location)
            )
        )
    END AS since,
    h.machine_id IS NOT NULL AS reported,
    coalesce(h.agent_heartbeat_at, a.agent_started_at) AS last_heartbeat_at,
    nullif(p.provider_location, '') AS location,
    z.machine_id IS NOT NULL AS quarantined
FROM machine_provided p
JOIN machines m ON m.machine_id = p.machine_id
LEFT JOIN machine_agent_started a ON a.machine_id = p.machine_id
LEFT JOIN machine_agent_heartbeat h
    ON h.machine_id = p.machine_id AND h.agent_heartbeat_at >= a.agent_started_at
LEFT JOIN machine_os_installation_request q ON q.machine_id = p.machine_id
LEFT JOIN machine_os_installation_report r ON r.machine_id = p.machine_id
LEFT JOIN machine_rebooted b ON b.machine_id = p.machine_id
LEFT JOIN machine_quarantine z ON z.machine_id = p.machine_id;

-- What each machine may be handed out for: what it needs and, overdue, its recovery besides, if it did not come back.
-- That it did not is known when an agent start failed since it was asked to: else nobody looked. While recovery was held
-- back, we may have been the ones that could not reach it: it is given its time once more.
CREATE VIEW machine_process_needs AS
SELECT machine_id, provider, process, since, reported, last_heartbeat_at, location, quarantined, false AS overdue
FROM machine_need
UNION ALL
SELECT
    n.machine_id,
    n.provider,
    'ShepherdRecovery',
    CASE
        WHEN EXISTS (
            SELECT 1
            FROM work_backoff s
            WHERE s.machine_id = w.machine_id
                AND s.process = 'ShepherdAgentStart'
                AND s.last_interval_seconds IS NOT NULL
        )
        THEN greatest(
            w.grace_until,
            (
                SELECT max(x.ended_at)
                FROM recovery_suspensions x
                WHERE x.provider = n.provider AND x.location IN ('', n.location) AND x.ended_at > w.grace_began_at
            ) + (w.grace_until - w.grace_began_at)
        )
        ELSE 'infinity'
    END,
    n.reported,
    n.last_heartbeat_at,
    n.location,
    n.quarantined,
    true
FROM machine_grace w
JOIN machine_need n ON n.machine_id = w.machine_id
WHERE n.process = 'ShepherdAgentStart';

-- As it was, for all that a machine wants. A backoff without an interval does not come from a failure.
CREATE OR REPLACE VIEW machine_eligibility AS
SELECT
    n.machine_id,
    n.provider,
    n.process,
    n.since,
    n.reported,
    b.until AS backoff_until,
    b.last_interval_seconds,
    (
        SELECT max(s.deadline)
        FROM work w
        JOIN sessions s ON s.session_id = w.session_id
        WHERE w.machine_id = n.machine_id
            AND w.process IN ('ShepherdAccess', 'ShepherdAgentStart', 'ShepherdRecovery')
    ) AS locked_until,
    (
        SELECT max(coalesce(x.expires_at, 'infinity'))
        FROM pauses x
        WHERE x.machine_id = n.machine_id
            AND (x.process IS NULL OR x.process = n.process)
            AND (x.provider IS NULL OR x.provider = n.provider)
            AND (x.expires_at IS NULL OR x.expires_at > clock_timestamp())
    ) AS paused_until,
    n.last_heartbeat_at,
    n.location,
    coalesce(b.until - b.last_interval_seconds * interval '1 second' > n.last_heartbeat_at, false) AS failed,
    n.overdue,
    n.quarantined
FROM machine_process_needs n
LEFT JOIN work_backoff b ON b.machine_id = n.machine_id AND b.process = n.process;

-- As it was, but for machines in quarantine, about which the provider is not asked every minute.
CREATE OR REPLACE VIEW machine_facts AS
SELECT
    p.machine_id,
    p.provider,
    p.provider_id,
    p.provider_reservation_id,
    p.provider_ip_address,
    p.provider_location,
    p.provider_status,
    -- Not a join, for which the planner, who takes far too many for not_ready, would read all machines.
    (SELECT m.machine_created_at FROM machines m WHERE m.machine_id = p.machine_id) AS machine_created_at,
    (
        p.provider_status IS NULL
        OR p.provider_status IN ('Provisioning', 'Stopped', 'Unknown')
        OR (p.provider_status = 'Running' AND p.provider_ip_address IS NULL)
    ) AS not_ready
FROM machine_provided p
WHERE (SELECT z.machine_id FROM machine_quarantine z WHERE z.machine_id = p.machine_id) IS NULL; -- as above
