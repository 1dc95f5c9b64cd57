-- Sessions, work, backoffs, history, pauses, and the due index.

-- A worker. It is alive until its deadline.
CREATE TABLE sessions (
    session_id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    component_name text NOT NULL,
    runtime_info text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    interval_seconds double precision NOT NULL CHECK (interval_seconds > 0),
    deadline timestamptz NOT NULL
);

CREATE INDEX sessions_by_deadline ON sessions (deadline);

-- The lock on a machine for one process.
CREATE TABLE work (
    machine_id uuid NOT NULL REFERENCES machines,
    process text NOT NULL CHECK (process IN
        ('ShepherdAccess', 'ShepherdAgentStart', 'ShepherdRecovery', 'UnitTest1', 'UnitTest2')),
    session_id uuid NOT NULL REFERENCES sessions ON DELETE CASCADE,
    PRIMARY KEY (machine_id, process)
);

CREATE INDEX work_by_session ON work (session_id);

CREATE TABLE work_backoff (
    machine_id uuid NOT NULL REFERENCES machines,
    process text NOT NULL,
    until timestamptz NOT NULL,
    cause text NOT NULL,
    last_interval_seconds bigint,
    PRIMARY KEY (machine_id, process)
);

-- The history. It does not reference machines or sessions, because it outlives both.
CREATE TABLE work_history (
    machine_id uuid NOT NULL,
    process text NOT NULL,
    event text NOT NULL CHECK (event IN ('Started', 'Finished', 'Failed', 'Canceled', 'Expired')),
    timestamp timestamptz NOT NULL DEFAULT clock_timestamp(),
    failed_cause text,
    session_id uuid
);

CREATE INDEX work_history_by_machine ON work_history (machine_id, timestamp);

-- Pauses by operators (or by the Provisioner, for one machine). A null column applies to all.
CREATE TABLE pauses (
    pause_id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    machine_id uuid REFERENCES machines,
    process text,
    provider text,
    owner text NOT NULL,
    reason text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz
);

CREATE INDEX pauses_by_machine ON pauses (machine_id);

-- Derived from the facts: one row for each provided machine, with the process that it may need next and from when on.
-- It may be too early (the claim evaluates the facts), never too late. revision counts the changes of the row: a claim
-- whose snapshot has an older revision leaves the row alone.
CREATE TABLE machine_due (
    machine_id uuid PRIMARY KEY REFERENCES machines,
    provider text NOT NULL,
    process text,
    not_before timestamptz NOT NULL,
    revision bigint NOT NULL DEFAULT 0
);

CREATE INDEX machine_due_by_time ON machine_due (process, provider, not_before);

-- What each provided machine needs, derived from its facts. After a successful installation of the requested
-- generation, no loop works on it. A heartbeat from before the agent was started says nothing about this agent.
CREATE VIEW machine_need AS
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
        ELSE coalesce(h.agent_heartbeat_at, a.agent_started_at)
    END AS since,
    h.machine_id IS NOT NULL AS reported
FROM machine_provided p
JOIN machines m ON m.machine_id = p.machine_id
LEFT JOIN machine_agent_started a ON a.machine_id = p.machine_id
LEFT JOIN machine_agent_heartbeat h
    ON h.machine_id = p.machine_id AND h.agent_heartbeat_at >= a.agent_started_at
LEFT JOIN machine_os_installation_request q ON q.machine_id = p.machine_id
LEFT JOIN machine_os_installation_report r ON r.machine_id = p.machine_id
LEFT JOIN machine_rebooted b ON b.machine_id = p.machine_id;

-- The same with everything that may block it. locked_until is set while any Shepherd process has work on the machine,
-- even if its session has expired and has not been reaped yet.
CREATE VIEW machine_eligibility AS
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
    ) AS paused_until
FROM machine_need n
LEFT JOIN work_backoff b ON b.machine_id = n.machine_id AND b.process = n.process;
