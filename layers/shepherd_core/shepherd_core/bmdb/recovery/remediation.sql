-- name: recovery_records
-- The state of these machines' agents.
SELECT
    p.machine_id,
    clock_timestamp() AS now,
    a.agent_started_at AS started_at, h.agent_heartbeat_at AS last_heartbeat_at, p.provider_ip_address AS address,
    coalesce(p.provider_location, '') AS location,
    nullif(r.rebooted_at, '-infinity') AS rebooted_at,
    f.agent_sha256 AS failed_agent, f.kind AS failed_kind,
    (SELECT n.state = 'failed' FROM machine_need n WHERE n.machine_id = p.machine_id LIMIT 1) AS failed
FROM machine_provided p
LEFT JOIN machine_agent_started a ON a.machine_id = p.machine_id
LEFT JOIN machine_agent_heartbeat h ON h.machine_id = p.machine_id AND h.agent_heartbeat_at >= a.agent_started_at
LEFT JOIN machine_rebooted r ON r.machine_id = p.machine_id
LEFT JOIN work_backoff f
    ON f.machine_id = p.machine_id
    AND f.process = 'ShepherdAgentStart'
    AND f.last_interval_seconds IS NOT NULL
    AND a.machine_id IS NULL
WHERE p.machine_id = ANY(:machine_ids::uuid[]);

-- name: bad_agents
-- The agents that are at fault: they failed alike on several machines (two may have one fault by chance), and run on none.
SELECT b.agent_sha256, b.kind, count(*) AS machines
FROM work_backoff b
JOIN machine_provided p ON p.machine_id = b.machine_id
WHERE b.agent_sha256 IS NOT NULL AND b.last_interval_seconds IS NOT NULL
GROUP BY 1, 2
HAVING count(*) >= 3 AND NOT EXISTS (SELECT 1 FROM machine_agent_started WHERE agent_sha256 = b.agent_sha256)
ORDER BY 1, 2;

-- name: recovery_history
-- The recovery history of these machines, oldest first. 2,000 rows hold all attempts that a policy can have, and the
-- failed ones between them that do not count. others_taken: the provider is to blame for this failure, and took steps on
-- others of its machines both within the hour before and within the hour after.
SELECT
    g.machine_id,
    x.*,
    x.fault IS NOT DISTINCT FROM 'provider' AND (
        SELECT count(DISTINCT o.timestamp < x.at) = 2
        FROM work_history o
        CROSS JOIN LATERAL (SELECT provider FROM machine_provided WHERE machine_id = o.machine_id LIMIT 1) AS q
        WHERE o.event = 'Finished'
            AND o.step IS NOT NULL
            AND o.kind IS NULL
            AND o.timestamp BETWEEN x.at - interval '1 hour' AND x.at + interval '1 hour'
            AND o.machine_id <> g.machine_id
            AND q.provider = (SELECT provider FROM machine_provided WHERE machine_id = g.machine_id)
    ) AS others_taken
FROM unnest(:machine_ids::uuid[]) AS g (machine_id)
CROSS JOIN LATERAL (
    SELECT event, timestamp AS at, step, kind, fault, seen, session_id
    FROM work_history
    WHERE machine_id = g.machine_id
        AND process = 'ShepherdRecovery'
        AND event IN ('Looked', 'Attempted', 'NotTaken', 'Finished', 'Failed', 'Healthy', 'Unquarantined')
    ORDER BY timestamp DESC
    LIMIT 2000
) AS x
ORDER BY g.machine_id, x.at;

-- name: lock_budget
-- Begin to permit steps at the provider: another permission waits, or conflicts, until this transaction ends.
UPDATE recovery_policy SET permitted_at = clock_timestamp() WHERE provider = :provider;

-- name: count_steps
-- How many machines were interrupted in the last hour and in the last six, by location; also those that are released since,
-- so that failed machines which are created anew are not released without end.
SELECT
    coalesce(p.provider_location, '') AS location,
    count(*) FILTER (WHERE r.rebooted_at > statement_timestamp() - interval '1 hour') AS steps,
    count(*) AS steps_six_hours
FROM machine_rebooted r
CROSS JOIN LATERAL (
    SELECT provider, provider_location FROM machine_provided WHERE machine_id = r.machine_id
    UNION ALL
    SELECT provider, NULL FROM machine_tombstone WHERE machine_id = r.machine_id
    LIMIT 1
) AS p
WHERE r.rebooted_at > statement_timestamp() - interval '6 hours' AND p.provider = :provider
GROUP BY 1;

-- name: record_attempts
-- Record which steps are about to be taken, before they are, so that a step counts even if the function is killed then. A
-- step after which the machine may have another host key deletes the pinned one here. The line 'Looked' has what a look
-- at the machine saw (seen), or why it failed; with a step, that one is taken, and there is no attempt (alive). Where the
-- budget refuses the step (held), there is none either. A row for each machine whose step may be taken; one in any case,
-- unless the session has expired. May run twice: the second run writes nothing new.
WITH {locked_session},
-- Each machine that this session still works on: what is new about it, and whether its step may be taken.
work_in_hand AS (
    SELECT
        g.*,
        x.records = 0 AS new,
        NOT g.alive AND NOT g.held AND x.attempts = 0 AS new_attempt,
        g.alive OR NOT g.held OR x.attempts > 0 AS permitted
    FROM jsonb_to_recordset(:rows::jsonb) AS g (
        machine_id uuid, step text, healthy_until timestamptz, loses_host_key boolean, reboots boolean, looked text,
        seen text, kind text, fault text, alive boolean, held boolean
    )
    JOIN locked_session s ON true
    JOIN work w ON w.machine_id = g.machine_id AND w.process = 'ShepherdRecovery' AND w.session_id = s.session_id
    -- The records of this session since it began the work.
    CROSS JOIN LATERAL (
        SELECT
            count(*) AS records,
            count(*) FILTER (WHERE event = 'Attempted') AS attempts
        FROM work_history
        WHERE machine_id = g.machine_id
            AND process = 'ShepherdRecovery'
            AND session_id = s.session_id
            AND event IN ('Looked', 'Attempted')
            AND timestamp >= w.began_at
    ) AS x
),
history_rows AS (
    INSERT INTO work_history (machine_id, process, event, timestamp, step, seen, kind, fault, failed_cause, session_id)
    SELECT h.machine_id, 'ShepherdRecovery', x.event, x.at, x.step, x.seen, x.kind, x.fault, x.cause, x.session_id
    FROM work_in_hand h
    CROSS JOIN LATERAL (
        VALUES
            ('Healthy', new AND healthy_until IS NOT NULL, healthy_until, NULL, NULL, NULL, NULL, NULL, NULL),
            (
                'Looked', new AND looked IS NOT NULL, clock_timestamp(),
                CASE WHEN alive THEN step END, seen, kind, fault, looked, :session_id::uuid
            ),
            ('Attempted', new_attempt, clock_timestamp(), step, NULL, NULL, NULL, NULL, :session_id)
    ) AS x (event, holds, at, step, seen, kind, fault, cause, session_id)
    WHERE x.holds
),
-- The reboot counts for the budget from now on.
reboot_rows AS (
    INSERT INTO machine_rebooted (machine_id, rebooted_at, boot_wait_until)
    SELECT machine_id, clock_timestamp(), clock_timestamp() FROM work_in_hand WHERE new_attempt AND reboots
    ON CONFLICT (machine_id) DO UPDATE
    SET (rebooted_at, boot_wait_until, previous_at) =
        (excluded.rebooted_at, excluded.boot_wait_until, machine_rebooted.rebooted_at)
),
-- A reinstalled machine shows another key.
host_key_deleted AS (
    DELETE FROM machine_host_key
    WHERE machine_id IN (SELECT machine_id FROM work_in_hand WHERE new_attempt AND loses_host_key)
),
-- finish_recovery updates this row to set the cooldown.
backoff_rows AS (
    INSERT INTO work_backoff (machine_id, process, until, cause)
    SELECT machine_id, 'ShepherdRecovery', clock_timestamp(), 'a step was begun' FROM work_in_hand WHERE new
    ON CONFLICT (machine_id, process) DO NOTHING
)
SELECT h.machine_id
FROM locked_session
LEFT JOIN work_in_hand h ON h.permitted;

-- name: no_longer_due
-- Why this session is not to recover each of these machines any more (null: it is), by the views that claims read; and
-- whether its agent has reported. No row: the session has expired.
WITH {session}
SELECT
    g.machine_id,
    CASE
        WHEN w.machine_id IS NULL THEN 'another session works on the machine'
        WHEN n.process IS NULL THEN 'it needs no recovery any more'
        WHEN n.due_at > statement_timestamp() AND NOT n.overdue THEN 'its agent reports again'
        WHEN n.due_at > statement_timestamp() THEN 'it has more time to come back'
        WHEN n.paused_until IS NOT NULL OR EXISTS ({wide_pauses}) THEN 'it is paused'
    END AS reason,
    coalesce(n.due_at > statement_timestamp() AND NOT n.overdue, false) AS recovered
FROM session s
CROSS JOIN unnest(:machine_ids::uuid[]) AS g (machine_id)
LEFT JOIN work w ON w.machine_id = g.machine_id AND w.process = :process AND w.session_id = s.session_id
LEFT JOIN LATERAL (
    SELECT * FROM machine_eligibility WHERE machine_id = w.machine_id AND process = :process LIMIT 1
) AS n ON true;

-- name: leave_alone
-- Nothing was done to these machines: end the work with the :event. If it has put a step on record, that was not
-- taken ('NotTaken'), its reboot does not count, and the host key that it deleted is pinned again. With seconds to wait,
-- no recovery is claimed for so long; after a failure that is the interval from which the next one follows.
WITH {ended_work},
-- With the step that the work has put on record.
left_alone AS (
    SELECT e.*, x.step
    FROM work_deleted e
    LEFT JOIN work_history x
        ON x.machine_id = e.machine_id
        AND x.process = 'ShepherdRecovery'
        AND x.event = 'Attempted'
        AND x.session_id = :session_id
        AND x.timestamp >= e.began_at
),
-- The step did not happen, so the machine still has its key.
host_key_pinned AS (
    INSERT INTO machine_host_key (machine_id, host_key, pinned_at, origin)
    SELECT machine_id, host_key, clock_timestamp(), origin FROM left_alone WHERE step IS NOT NULL AND host_key IS NOT NULL
    ON CONFLICT (machine_id) DO NOTHING
),
-- The budget counts the reboot before it again.
reboot_undone AS (
    UPDATE machine_rebooted r
    SET rebooted_at = r.previous_at
    FROM work_deleted e
    WHERE r.machine_id = e.machine_id AND r.rebooted_at >= e.began_at
),
backoff_cleared AS (
    DELETE FROM work_backoff
    WHERE :event::text = 'Recovered'
        AND process = 'ShepherdRecovery'
        AND machine_id IN (SELECT machine_id FROM work_deleted)
),
backoff_rows AS (
    INSERT INTO work_backoff (machine_id, process, until, kind, fault, cause, last_interval_seconds)
    SELECT
        machine_id, 'ShepherdRecovery', clock_timestamp() + seconds * interval '1 second', kind, fault, cause,
        CASE WHEN :event = 'Failed' THEN seconds END
    FROM left_alone
    WHERE seconds IS NOT NULL
    ON CONFLICT (machine_id, process) DO UPDATE
    SET (until, kind, fault, cause, last_interval_seconds, deaths) =
        (excluded.until, excluded.kind, excluded.fault, excluded.cause, excluded.last_interval_seconds, 0)
),
history_rows AS (
    INSERT INTO work_history (machine_id, process, event, step, kind, fault, failed_cause, session_id)
    SELECT g.machine_id, 'ShepherdRecovery', x.event, x.step, g.kind, g.fault, g.cause, :session_id::uuid
    FROM left_alone g
    CROSS JOIN LATERAL (VALUES ('NotTaken', g.step), (:event, NULL)) AS x (event, step)
    WHERE x.step IS NOT NULL OR x.event = :event
)
SELECT machine_id FROM work_deleted;

-- name: cause_of_deaths
-- How the last function died that worked on the machine, if functions have worked between its last two deaths, only not
-- with this machine: they have ended work on one of the provider's machines. (Had it been this one, the deaths would not be
-- in a row.) In an outage of the functions only operators end work, who leave no ticks, so that it quarantines nobody.
WITH deaths AS (
    SELECT timestamp
    FROM work_history
    WHERE machine_id = :machine_id AND process = :process AND event = 'Expired'
    ORDER BY timestamp DESC
    LIMIT 2
),
-- When the work began in which the last function died. Its death is on record only later, maybe after an outage.
began AS (
    SELECT timestamp
    FROM work_history
    WHERE machine_id = :machine_id
        AND process = :process
        AND event = 'Started'
        AND timestamp < (SELECT max(timestamp) FROM deaths)
    ORDER BY timestamp DESC
    LIMIT 1
)
SELECT b.cause
FROM work_backoff b
JOIN machine_provided p ON p.machine_id = b.machine_id
WHERE b.machine_id = :machine_id
    AND b.process = :process
    AND EXISTS (
        SELECT 1
        FROM work_history h
        WHERE h.timestamp > (SELECT min(timestamp) FROM deaths)
            AND h.timestamp < (SELECT timestamp FROM began)
            AND h.process = :process
            AND h.event IN ('Finished', 'Failed')
            AND (SELECT provider FROM machine_provided WHERE machine_id = h.machine_id) = p.provider
            AND EXISTS (SELECT 1 FROM ticks t WHERE t.session_id = h.session_id)
    );

-- name: quarantine
-- Put machines into quarantine, for which no recovery step is left, or whose functions died: no loop works on them until
-- an operator ends the quarantine.
WITH {ended_work},
quarantine_rows AS (
    INSERT INTO machine_quarantine (machine_id, quarantined_at, kind, cause)
    SELECT machine_id, clock_timestamp(), kind, cause FROM work_deleted
    ON CONFLICT (machine_id) DO NOTHING
),
backoff_cleared AS (DELETE FROM work_backoff WHERE machine_id IN (SELECT machine_id FROM work_deleted)),
history_rows AS (
    INSERT INTO work_history (machine_id, process, event, timestamp, kind, failed_cause, session_id)
    SELECT machine_id, 'ShepherdRecovery', 'Quarantined', clock_timestamp(), kind, cause, NULL FROM work_deleted
    UNION ALL
    SELECT machine_id, :process, 'Finished', clock_timestamp(), NULL, NULL, :session_id::uuid FROM work_deleted
)
SELECT machine_id FROM work_deleted;

-- name: unquarantine
-- End the quarantine of a machine: a new agent is started on it first, within the grace of the Recoverer's policy
-- (without a policy: at any time). The last heartbeat stays until then, because a machine that has just reported must
-- not be forgotten. Follows lock_facts. No row: it is not in quarantine.
WITH quarantine_deleted AS (
    DELETE FROM machine_quarantine WHERE machine_id = :machine_id RETURNING machine_id
),
agent_deleted AS (DELETE FROM machine_agent_started WHERE machine_id IN (SELECT machine_id FROM quarantine_deleted)),
-- No heartbeat of the deleted agent is later than this (accept_heartbeat).
heartbeat_closed AS (
    UPDATE machine_agent_heartbeat
    SET agent_signed_at = 9223372036854775807
    WHERE machine_id IN (SELECT machine_id FROM quarantine_deleted)
),
backoff_cleared AS (DELETE FROM work_backoff WHERE machine_id IN (SELECT machine_id FROM quarantine_deleted)),
grace_rows AS (
    INSERT INTO machine_grace (machine_id, grace_began_at, grace_until)
    SELECT q.machine_id, clock_timestamp(), clock_timestamp() + y.grace_seconds * interval '1 second'
    FROM quarantine_deleted q
    JOIN machine_provided p ON p.machine_id = q.machine_id
    JOIN recovery_policy y ON y.provider = p.provider
    ON CONFLICT (machine_id) DO UPDATE SET grace_began_at = excluded.grace_began_at, grace_until = excluded.grace_until
),
history_rows AS (
    INSERT INTO work_history (machine_id, process, event, failed_cause)
    SELECT machine_id, 'ShepherdRecovery', 'Unquarantined', :reason FROM quarantine_deleted
)
SELECT machine_id FROM quarantine_deleted;

-- name: retry
-- End the backoffs of a machine that are in force, and the suspicion that it kills functions (of one process, or of all);
-- record that in its history. A row for each one that was ended.
WITH backoffs_deleted AS (
    DELETE FROM work_backoff
    WHERE machine_id = :machine_id
        AND (:process::text IS NULL OR process = :process)
        AND (until > clock_timestamp() OR deaths > 0)
    RETURNING machine_id, process, until, kind, cause, last_interval_seconds, deaths
),
history_rows AS (
    INSERT INTO work_history (machine_id, process, event, failed_cause)
    SELECT machine_id, process, 'Retried', :reason FROM backoffs_deleted
)
SELECT process, until, kind, cause, last_interval_seconds, deaths FROM backoffs_deleted ORDER BY process;
