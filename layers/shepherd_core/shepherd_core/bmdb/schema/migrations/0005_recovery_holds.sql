-- Suspension of recovery: while too much of a fleet is unhealthy at once, the fault is probably not in the machines.

-- One row for each location of a provider where recovery was ever suspended, '' for the whole provider. In force while
-- ended_at is null; afterwards the timeouts there start at ended_at.
CREATE TABLE recovery_suspensions (
    provider text NOT NULL,
    location text NOT NULL,
    suspended_at timestamptz NOT NULL,
    ended_at timestamptz,
    reason text NOT NULL,
    PRIMARY KEY (provider, location)
);

-- When the last health snapshot of a provider was taken. What happened since then is unknown.
CREATE TABLE recovery_snapshots (
    provider text PRIMARY KEY,
    taken_at timestamptz NOT NULL
);

-- Whether the machine had reported before it became unhealthy, and which machines were rebooted recently.
ALTER TABLE machine_rebooted ADD COLUMN had_reported boolean NOT NULL DEFAULT true;

CREATE INDEX machine_rebooted_by_time ON machine_rebooted (rebooted_at);

-- Machines that have an agent, by their ids. Ids are random, so a range of them is a random sample.
CREATE INDEX machine_due_with_agent ON machine_due (provider, machine_id) WHERE process = 'ShepherdRecovery';

-- A new definition of since, and two more columns. While recovery was suspended, a machine could perhaps not report:
-- since is not before the end of the last suspension. last_heartbeat_at is the true last heartbeat. An empty location
-- is null.
CREATE OR REPLACE VIEW machine_need AS
SELECT
    p.machine_id,
    p.provider,
    CASE
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
    nullif(p.provider_location, '') AS location
FROM machine_provided p
JOIN machines m ON m.machine_id = p.machine_id
LEFT JOIN machine_agent_started a ON a.machine_id = p.machine_id
LEFT JOIN machine_agent_heartbeat h
    ON h.machine_id = p.machine_id AND h.agent_heartbeat_at >= a.agent_started_at
LEFT JOIN machine_os_installation_request q ON q.machine_id = p.machine_id
LEFT JOIN machine_os_installation_report r ON r.machine_id = p.machine_id
LEFT JOIN machine_rebooted b ON b.machine_id = p.machine_id;

-- Three more columns. failed: recovery was tried and failed since the last heartbeat.
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
    coalesce(b.until - coalesce(b.last_interval_seconds, 0) * interval '1 second' > n.last_heartbeat_at, false) AS failed
FROM machine_need n
LEFT JOIN work_backoff b ON b.machine_id = n.machine_id AND b.process = n.process;
