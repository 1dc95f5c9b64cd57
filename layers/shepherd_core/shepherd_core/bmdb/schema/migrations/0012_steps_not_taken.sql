-- Recovery steps that were not taken, the fault behind a failure, and SSH outages.

-- Recovered: the machine's agent reported before anything was done to it; ends the work. NotTaken: the step that was
-- attempted last was certainly not taken.
ALTER TABLE work_history DROP CONSTRAINT IF EXISTS work_history_event;
ALTER TABLE work_history ADD CONSTRAINT work_history_event CHECK (event IN
    ('Started', 'Finished', 'Failed', 'Canceled', 'Expired', 'Recovered',
    'Attempted', 'NotTaken', 'Skipped', 'Healthy', 'Quarantined', 'Unquarantined', 'Retried')) NOT VALID;

-- What is wrong, if the backoff comes from a failure: machine, unreached, access, provider or ours; see errors.Fault.
ALTER TABLE work_backoff ADD COLUMN fault text NOT NULL DEFAULT 'machine';

CREATE INDEX work_backoff_for_access ON work_backoff (machine_id) WHERE fault = 'access';

-- SSH fails for so many of the machines that should have come back that the network or our key is more likely at fault.
-- One row for each location that ever had such an outage, '' for the whole provider; in force while ended_at is null.
CREATE TABLE ssh_outages (
    provider text NOT NULL,
    location text NOT NULL,
    began_at timestamptz NOT NULL,
    ended_at timestamptz,
    reason text NOT NULL,
    PRIMARY KEY (provider, location)
);

-- Recently started agents show whether SSH works.
CREATE INDEX machine_agent_started_by_time ON machine_agent_started (agent_started_at);

-- The same, except that some failed agent starts do not show that the machine did not come back: if the machine
-- answered and refused access, if it was not even contacted, or if it did not answer during an SSH outage.
CREATE OR REPLACE VIEW machine_process_needs AS
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
                AND (
                    s.fault = 'machine'
                    OR (
                        s.fault = 'unreached'
                        AND NOT EXISTS (
                            SELECT 1
                            FROM ssh_outages o
                            WHERE o.provider = n.provider
                                AND o.location IN ('', n.location)
                                AND coalesce(
                                    o.ended_at >= s.until - s.last_interval_seconds * interval '1 second', true
                                )
                        )
                    )
                )
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
