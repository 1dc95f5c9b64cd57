-- Parts of statements that several of them share. A statement names one in braces, and the loader puts its text there
-- (statements.py). A fragment may name those above it.

-- fragment: session_alive
-- The session of this statement has not expired. A statement that writes uses live_session instead.
session_id = :session_id AND deadline > clock_timestamp()

-- fragment: session
-- The session, if it has not expired.
session AS (
    SELECT session_id FROM sessions WHERE {session_alive}
)

-- fragment: live_session
-- The same, and nothing that was sent later has fenced this statement off (session.sql).
{session_alive} AND fence = :fence

-- fragment: locked_session
-- Lock the row of the session, if it is alive.
locked_session AS (
    SELECT session_id FROM sessions WHERE {live_session} FOR UPDATE
)

-- fragment: end_locks
-- The locks of every statement that ends work, in their order: the due rows by machine id and process, then the
-- session's row, whose deadline and fence are checked when it is locked.
due_rows AS (
    SELECT machine_id
    FROM machine_due
    WHERE machine_id = ANY(:machine_ids::uuid[])
    ORDER BY machine_id, process
    FOR UPDATE
),
locked_session AS (
    SELECT session_id FROM sessions WHERE (SELECT count(*) FROM due_rows) >= 0 AND {live_session} FOR UPDATE
)

-- fragment: ended_work
-- End the work of this session on the machines, also on those without a due row (start_work does not need one).
{end_locks},
work_deleted AS (
    DELETE FROM work
    WHERE process = :process
        AND session_id IN (SELECT session_id FROM locked_session)
        AND machine_id = ANY(:machine_ids::uuid[])
    RETURNING machine_id
)

-- fragment: ended_work_on_due_machines
-- End the work of this session on those of the machines that have a due row, because facts are recorded that decide
-- what they need. A machine without one is not provided.
{end_locks},
work_deleted AS (
    DELETE FROM work
    WHERE process = :process
        AND session_id IN (SELECT session_id FROM locked_session)
        AND machine_id IN (SELECT machine_id FROM due_rows)
    RETURNING machine_id
)

-- fragment: host_key_pinned
-- Pin the host keys of the input_rows whose work this statement ended, unless one is pinned.
host_key_pinned AS (
    INSERT INTO machine_host_key (machine_id, host_key, pinned_at, origin)
    SELECT g.machine_id, g.host_key, clock_timestamp(), g.origin
    FROM input_rows g JOIN work_deleted e ON e.machine_id = g.machine_id
    WHERE g.host_key IS NOT NULL
    ON CONFLICT (machine_id) DO NOTHING
    RETURNING machine_id
)

-- fragment: locked_provider
-- Lock the provider's row, if this session holds the provider's lock, and then the row of the session, if it is alive.
provider_lock AS (
    SELECT provider FROM provisioner_lock WHERE provider = :provider AND session_id = :session_id FOR UPDATE
),
locked_provider AS (
    SELECT :provider::text AS provider
    FROM sessions
    WHERE {live_session} AND EXISTS (SELECT 1 FROM provider_lock)
    FOR UPDATE
)

-- fragment: last_heartbeat
-- The last heartbeat of the machine; locked, so that none is missed.
last_heartbeat AS (
    SELECT agent_heartbeat_at FROM machine_agent_heartbeat WHERE machine_id = :machine_id FOR UPDATE
)

-- fragment: live_work
-- The work of live sessions on the machine.
live_work AS (
    SELECT w.process
    FROM work w
    JOIN sessions s ON s.session_id = w.session_id
    WHERE w.machine_id = :machine_id AND s.deadline > clock_timestamp()
)

-- fragment: waits_for_limit
-- Places wait for the limit of machines, as the Provisioner saw within the last day (provisioner_lock).
waiting > 0 AND waiting_seen_at > statement_timestamp() - interval '1 day'

-- fragment: due_floor
-- The time below which the process has no due row at the provider (due_floors).
coalesce((SELECT floor FROM due_floors WHERE process = :process AND provider = :provider), '-infinity')

-- fragment: outside_skipped_locations
-- The machine of the due row d is at none of the skipped_locations, a CTE; '' stands for the whole provider. A machine
-- without a location is at none. Where no location is skipped, nothing is looked up.
CASE
    WHEN NOT EXISTS (SELECT 1 FROM skipped_locations) THEN true
    WHEN '' = ANY (ARRAY(SELECT location FROM skipped_locations)) THEN false
    ELSE (SELECT p.provider_location FROM machine_provided p WHERE p.machine_id = d.machine_id)
        <> ALL (ARRAY(SELECT location FROM skipped_locations)) IS NOT FALSE
END

-- fragment: suspects
-- The machines whose work for this process expired last time, and whose backoff is over.
SELECT machine_id FROM work_backoff WHERE process = :process AND deaths > 0 AND until <= statement_timestamp()

-- fragment: due_suspects
-- How many of them are due at the provider.
SELECT count(*)
FROM ({suspects}) AS b
JOIN machine_due d ON d.machine_id = b.machine_id AND d.process = :process
WHERE d.provider = :provider AND d.not_before <= statement_timestamp()

-- fragment: wide_pauses
-- The pauses that keep the process away from all machines of the provider. If :process is null: those that keep the
-- Provisioner from creating machines, which are not those of a process.
SELECT owner, reason
FROM pause_scopes
WHERE machine_id IS NULL AND process IN ('', :process::text) AND provider IN ('', :provider)

-- fragment: failed_at
-- When the work failed from which the backoff b comes.
coalesce(b.died_at, b.until - b.last_interval_seconds * interval '1 second')

-- fragment: fails
-- The backoff b comes from a failure, and the agent, whose last heartbeat is h, has not reported since. A backoff without
-- an interval is a wait, not a failure, unless a function died.
(b.last_interval_seconds IS NOT NULL OR b.deaths > 0) AND coalesce(h.agent_heartbeat_at < {failed_at}, true)
