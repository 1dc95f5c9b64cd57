-- The remediation policy: recovery in steps, which ends in quarantine.

-- step: the step that a history row is about. Attempted: it is about to be taken; written before it is. Skipped: it
-- cannot be taken. Healthy: until then the machine had reported for so long that its policy starts over. Quarantined
-- and Unquarantined: see machine_quarantine. Retried: an operator ended a backoff. The old constraint has one name in
-- PostgreSQL and another in CockroachDB. The new one is NOT VALID, because checking the existing rows takes long.
ALTER TABLE work_history ADD COLUMN step text;
ALTER TABLE work_history DROP CONSTRAINT IF EXISTS work_history_event_check;
ALTER TABLE work_history DROP CONSTRAINT IF EXISTS check_event;
ALTER TABLE work_history ADD CONSTRAINT work_history_event CHECK (event IN
    ('Started', 'Finished', 'Failed', 'Canceled', 'Expired',
    'Attempted', 'Skipped', 'Healthy', 'Quarantined', 'Unquarantined', 'Retried')) NOT VALID;

CREATE INDEX work_history_of_recovery ON work_history (machine_id, timestamp) WHERE process = 'ShepherdRecovery';

-- Machines on which no loop works until an operator ends the quarantine.
CREATE TABLE machine_quarantine (
    machine_id uuid PRIMARY KEY REFERENCES machines,
    quarantined_at timestamptz NOT NULL,
    cause text NOT NULL,
    evidence text NOT NULL -- the last history rows, one line each
);

-- Machines without an agent that are expected to come back: since when, and until when they have time.
CREATE TABLE machine_grace (
    machine_id uuid PRIMARY KEY REFERENCES machines,
    grace_began_at timestamptz NOT NULL,
    grace_until timestamptz NOT NULL
);

-- From when on a machine may need recovery besides the process of its row: because it did not come back. Like
-- not_before, it may be too early, and is never too late.
ALTER TABLE machine_due ADD COLUMN recovery_not_before timestamptz;

CREATE INDEX machine_due_for_recovery ON machine_due (provider, recovery_not_before) WHERE recovery_not_before IS NOT NULL;

-- The same, except that a quarantined machine needs nothing.
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

-- The processes that each machine needs: that of machine_need and, with overdue, also its recovery if it did not come
-- back. That is known only when an agent start has failed since it was restarted. If recovery was suspended in between,
-- it may be our fault that the machine could not be reached: its grace starts again.
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

-- The same, for all processes that a machine needs. A backoff without an interval does not come from a failure.
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

-- The same without quarantined machines, so that the provider is not called every minute for them.
CREATE OR REPLACE VIEW machine_facts AS
SELECT
    p.machine_id,
    p.provider,
    p.provider_id,
    p.provider_reservation_id,
    p.provider_ip_address,
    p.provider_location,
    p.provider_status,
    -- Not a join: the planner overestimates not_ready, and would read all machines.
    (SELECT m.machine_created_at FROM machines m WHERE m.machine_id = p.machine_id) AS machine_created_at,
    (
        p.provider_status IS NULL
        OR p.provider_status IN ('Provisioning', 'Stopped', 'Unknown')
        OR (p.provider_status = 'Running' AND p.provider_ip_address IS NULL)
    ) AS not_ready
FROM machine_provided p
WHERE (SELECT z.machine_id FROM machine_quarantine z WHERE z.machine_id = p.machine_id) IS NULL; -- no join, as above
