-- Facts about machines that are written outside of work, and queries for operators.

-- name: record_heartbeat
-- Record a heartbeat whose sender is not verified; signed heartbeats come through accept_heartbeats. No row: the machine
-- has no started agent.
INSERT INTO machine_agent_heartbeat (machine_id, agent_heartbeat_at)
SELECT a.machine_id, clock_timestamp() FROM machine_agent_started a WHERE a.machine_id = :machine_id FOR SHARE OF a
ON CONFLICT (machine_id) DO UPDATE SET agent_heartbeat_at = excluded.agent_heartbeat_at
RETURNING machine_id;

-- name: forget_host_key
-- Delete the pinned host key, so that the next takeover pins a new one, and record that in the machine's history. No
-- row: none was pinned.
WITH host_key_deleted AS (
    DELETE FROM machine_host_key WHERE machine_id = :machine_id RETURNING machine_id, host_key
),
history_rows AS (
    INSERT INTO work_history (machine_id, process, event, failed_cause)
    SELECT machine_id, 'ShepherdAgentStart', 'HostKeyForgotten', :reason FROM host_key_deleted
)
SELECT host_key FROM host_key_deleted;

-- name: pin_host_key
-- Pin a host key that an operator names, in place of another only if :replace, and record that in the machine's
-- history. Returns the key that was pinned before, and whether this one is now. No row: the machine is not provided.
WITH machine AS (
    SELECT machine_id FROM machine_provided WHERE machine_id = :machine_id
),
host_key_pinned AS (
    INSERT INTO machine_host_key (machine_id, host_key, pinned_at, origin)
    SELECT machine_id, :host_key, clock_timestamp(), 'Operator' FROM machine
    ON CONFLICT (machine_id) DO UPDATE
    SET host_key = excluded.host_key, pinned_at = excluded.pinned_at, origin = excluded.origin
    WHERE :replace::boolean OR machine_host_key.host_key = excluded.host_key
    RETURNING machine_id
),
history_rows AS (
    INSERT INTO work_history (machine_id, process, event, failed_cause)
    SELECT machine_id, 'ShepherdAgentStart', 'HostKeyPinned', :reason FROM host_key_pinned
)
SELECT k.host_key AS before, EXISTS (SELECT 1 FROM host_key_pinned) AS pinned
FROM machine m
LEFT JOIN machine_host_key k ON k.machine_id = m.machine_id;

-- name: count_machines
-- The number of machines in each state, and how many of them are being worked on, backing off or paused. Reads all
-- machines. A machine that is not provided yet counts for the provider that is to create it.
WITH machine_states AS (
    SELECT machine_id, provider, state, locked_until, backoff_until FROM machine_eligibility WHERE NOT overdue
    UNION ALL
    SELECT machine_id, provider, 'creating', NULL, NULL FROM machine_creation_intent
)
SELECT
    provider,
    state,
    count(*) AS machines,
    count(locked_until) AS being_worked_on,
    count(*) FILTER (WHERE backoff_until > statement_timestamp()) AS backing_off,
    count(*) FILTER (WHERE machine_id IN (SELECT machine_id FROM machine_pauses WHERE NOT overdue)) AS paused
FROM machine_states
GROUP BY provider, state
ORDER BY provider, state;

-- name: show_machine
-- Everything that the BMDB knows about one machine.
SELECT
    m.machine_id,
    m.machine_created_at,
    p.provider,
    p.provider_id,
    p.provider_reservation_id,
    p.provider_ip_address,
    p.provider_location,
    p.provider_status,
    a.agent_started_at,
    encode(a.agent_public_key, 'hex') AS agent_public_key,
    h.agent_heartbeat_at,
    k.host_key,
    k.origin AS host_key_origin,
    k.pinned_at AS host_key_pinned_at,
    b.rebooted_at,
    b.boot_wait_until,
    i.intended_at,
    r.asked_at AS release_asked_at,
    r.asked_by AS release_asked_by,
    r.reason AS release_reason,
    r.accepted_at AS release_accepted_at,
    d.how AS decommissioned_how,
    d.decommissioned_at,
    d.decommissioned_by,
    d.reason AS decommissioned_reason,
    d.provider AS decommissioned_provider,
    d.provider_id AS decommissioned_provider_id,
    n.process AS needs,
    n.since,
    n.unhealthy_at,
    n.backoff_until,
    n.locked_until,
    ARRAY(
        SELECT x.pause_id
        FROM machine_pauses x
        WHERE x.machine_id = m.machine_id AND NOT x.overdue
        ORDER BY x.created_at, x.pause_id
    ) AS pause_ids,
    w.grace_until,
    z.quarantined_at,
    z.cause AS quarantine_cause,
    z.evidence AS quarantine_evidence
FROM machines m
LEFT JOIN machine_provided p ON p.machine_id = m.machine_id
LEFT JOIN machine_agent_started a ON a.machine_id = m.machine_id
LEFT JOIN machine_agent_heartbeat h ON h.machine_id = m.machine_id
LEFT JOIN machine_host_key k ON k.machine_id = m.machine_id
LEFT JOIN machine_rebooted b ON b.machine_id = m.machine_id
LEFT JOIN machine_creation_intent i ON i.machine_id = m.machine_id
LEFT JOIN machine_eligibility n ON n.machine_id = m.machine_id AND NOT n.overdue
LEFT JOIN machine_grace w ON w.machine_id = m.machine_id
LEFT JOIN machine_quarantine z ON z.machine_id = m.machine_id
LEFT JOIN machine_release r ON r.machine_id = m.machine_id
LEFT JOIN machine_tombstone d ON d.machine_id = m.machine_id
WHERE m.machine_id = :machine_id;

-- name: work_on_machine
-- The work in progress on one machine, and until when its session is alive.
SELECT w.process, s.component_name, s.runtime_info, s.deadline
FROM work w
JOIN sessions s ON s.session_id = w.session_id
WHERE w.machine_id = :machine_id
ORDER BY w.process;

-- name: backoffs
-- The backoffs of one machine, for each process: until when, the cause, and how often in a row its function died.
SELECT process, until, cause, last_interval_seconds, deaths FROM work_backoff WHERE machine_id = :machine_id ORDER BY process;

-- name: history
-- The audit trail of one machine, newest first.
SELECT timestamp, process, event, step, failed_cause, session_id
FROM work_history
WHERE machine_id = :machine_id
ORDER BY timestamp DESC
LIMIT :limit;

-- name: delete_old_history
-- Delete at most 1,000 history rows that are older than :days, and others of the same machines and moments (history has
-- no key). Rows that a concurrent run is deleting are skipped.
DELETE FROM work_history h
USING (
    SELECT machine_id, timestamp
    FROM work_history
    WHERE timestamp < statement_timestamp() - :days::integer * interval '1 day'
    ORDER BY timestamp
    LIMIT 1000
    FOR UPDATE SKIP LOCKED
) AS old
WHERE h.machine_id = old.machine_id AND h.timestamp = old.timestamp
RETURNING 1;

-- name: find_machines
-- The machines whose id begins with a text, or whose provider id is that text. Two rows are enough to see that it is
-- ambiguous.
SELECT m.machine_id
FROM machines m
LEFT JOIN machine_provided p ON p.machine_id = m.machine_id
WHERE left(m.machine_id::text, length(:name::text)) = :name OR p.provider_id = :provider_id
ORDER BY m.machine_id
LIMIT 2;

-- name: find_oldest_transaction
-- The oldest transaction that keeps the dead rows of this database, if it is older than :seconds: an open one or a prepared
-- one. PostgreSQL tells the age of open ones to their own user, and to members of pg_read_all_stats.
SELECT kind, pid, owner, application, state, seconds
FROM (
    SELECT
        'open' AS kind,
        pid,
        usename::text AS owner,
        application_name AS application,
        state,
        extract(epoch FROM clock_timestamp() - xact_start)::float8 AS seconds
    FROM pg_stat_activity
    WHERE datname = current_database()
        AND pid <> pg_backend_pid()
        AND backend_type = 'client backend'
        AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
    UNION ALL
    SELECT 'prepared', NULL, owner::text, gid, NULL, extract(epoch FROM clock_timestamp() - prepared)::float8
    FROM pg_prepared_xacts
    WHERE database = current_database()
) AS transactions
WHERE seconds > :seconds
ORDER BY seconds DESC
LIMIT 1;

-- name: sees_transactions
-- Who asks, and whether find_oldest_transaction shows the transactions of other users to it.
SELECT current_user::text, pg_has_role('pg_read_all_stats', 'USAGE');

-- name: now
-- The database's time, for output such as "5 minutes ago".
SELECT clock_timestamp();
