-- Steps of recovery that were not taken, whose fault it is when something fails, and outages of SSH.

-- Recovered: the machine's agent reported before anything was done to it; ends the work. NotTaken: the step that was
-- attempted last was certainly not taken.
ALTER TABLE work_history DROP CONSTRAINT IF EXISTS work_history_event;
ALTER TABLE work_history ADD CONSTRAINT work_history_event CHECK (event IN
    ('Started', 'Finished', 'Failed', 'Canceled', 'Expired', 'Recovered',
    'Attempted', 'NotTaken', 'Skipped', 'Healthy', 'Quarantined', 'Unquarantined', 'Retried')) NOT VALID;

-- What is wrong, where the backoff comes from a failure: machine, unreached, access, provider or ours; see errors.Fault.
ALTER TABLE work_backoff ADD COLUMN fault text NOT NULL DEFAULT 'machine';

CREATE INDEX work_backoff_for_access ON work_backoff (machine_id) WHERE fault = 'access';

-- Where SSH fails for so many of the machines that were told to come back that the network between us and them is rather
-- at fault, or our key. One row for each location that ever had such an outage, '' for the provider as a whole; in force
-- while ended_at is null.
CREATE TABLE ssh_outages (
    provider text NOT NULL,
    location text NOT NULL,
    began_at timestamptz NOT NULL,
    ended_at timestamptz,
    reason text NOT NULL,
    PRIMARY KEY (provider, location)
);

-- Whether SSH works, agents that were started lately tell.
CREATE INDEX machine_agent_started_by_time ON machine_agent_started (agent_started_at);

-- As it was, but that not every failed agent start tells that the machine did not come back: not one in which the machine
-- answered and did not let us in, or for which the machine was not even asked; nor, during an outage of SSH, one in which
-- nothing answered.
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
