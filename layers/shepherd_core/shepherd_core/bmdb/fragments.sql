-- Parts of statements that several of them share. A statement names one in braces, and the loader puts its text there
-- (statements.py). A fragment may name those above it.

-- fragment: clock_agrees
-- The server's clock agrees with that of the caller, who sends :time in milliseconds. Otherwise nothing is written that a
-- time depends on, so that no time on record lies far in the future or the past once the clocks agree again.
abs(extract(epoch FROM clock_timestamp()) * 1000 - :time::bigint) <= :tolerance_seconds::float8 * 1000

-- fragment: schema_fits
-- This code can use the schema (schema/migrate.py).
(SELECT max(version) >= :needed_schema AND max(oldest_code) <= :known_schema FROM schema_migrations)

-- fragment: session_alive
-- The session of this statement has not expired, by a clock that may be believed. A statement that writes uses live_session
-- instead.
session_id = :session_id AND deadline > clock_timestamp() AND {clock_agrees}

-- fragment: session
-- The session, if it has not expired.
session AS (SELECT session_id FROM sessions WHERE {session_alive})

-- fragment: live_session
-- The same, and nothing that was sent later has fenced this statement off (session.sql).
{session_alive} AND fence = :fence

-- fragment: locked_session
-- Lock the row of the session, if it is alive.
locked_session AS (SELECT session_id FROM sessions WHERE {live_session} FOR UPDATE)

-- fragment: ended_work
-- End the work of this session on the machines of :rows, and return it with what the rows say of each.
{locked_session},
-- The proof that the work was still this session's: everything else is written for these machines alone.
work_deleted AS (
    DELETE FROM work w
    USING jsonb_to_recordset(:rows::jsonb) AS g (
        machine_id uuid, kind text, fault text, cause text, seconds float8, agent_sha256 text, public_key text,
        host_key text, origin text
    )
    WHERE w.machine_id = g.machine_id
        AND process = :process
        AND session_id IN (SELECT session_id FROM locked_session)
        AND began_at IS NOT NULL
    RETURNING g.*, w.began_at
)

-- fragment: locked_provider
-- Lock the provider's row, if this session holds the provider's lock, and then the row of the session, if it is alive.
provider_lock AS (
    SELECT provider FROM provisioner_lock WHERE provider = :provider AND session_id = :session_id FOR UPDATE
),
-- One row, if both locks are held.
locked_provider AS (
    SELECT :provider::text AS provider
    FROM sessions
    WHERE {live_session} AND EXISTS (SELECT 1 FROM provider_lock)
    FOR UPDATE
)

-- fragment: last_heartbeat
-- The last heartbeat of the machine; locked, so that none is missed.
last_heartbeat AS (SELECT agent_heartbeat_at FROM machine_agent_heartbeat WHERE machine_id = :machine_id FOR UPDATE)

-- fragment: locked_machine
-- The machine, if this session has locked it.
locked_machine AS (SELECT machine_id FROM work WHERE machine_id = :machine_id AND session_id = :session_id)

-- fragment: waits_for_limit
-- Places wait for the limit of machines, as the Provisioner saw within the last day (provisioner_lock).
waiting > 0 AND waiting_seen_at > statement_timestamp() - interval '1 day'

-- fragment: wide_pauses
-- The pauses that keep the process, or the loop, away from all machines of the provider.
SELECT owner, reason
FROM pause_scopes
WHERE machine_id IS NULL AND process IN ('', :process::text) AND provider IN ('', :provider)

-- fragment: death_seconds
-- The backoff after the last of b.deaths in a row: 30 s, then four times as long each time, up to 64 minutes.
least(30 * power(4, least(b.deaths, 9) - 1), 3840)

-- fragment: failed_at
-- When the work failed, or its function died, from which the backoff b comes.
b.until - coalesce(b.last_interval_seconds, {death_seconds}) * interval '1 second'

-- fragment: fails
-- The backoff b comes from a failure, and the agent, whose last heartbeat is h, has not reported since. A backoff without
-- an interval is a wait, not a failure, unless a function died.
(b.last_interval_seconds IS NOT NULL OR b.deaths > 0) AND coalesce(h.agent_heartbeat_at < {failed_at}, true)

-- fragment: last_look
-- What the last look at the machine e, whose step waits for the budget, found to be wrong with it.
SELECT l.kind, l.failed_cause, l.timestamp
FROM work_backoff b
CROSS JOIN LATERAL (
    SELECT kind, failed_cause, timestamp
    FROM work_history
    WHERE machine_id = b.machine_id AND process = 'ShepherdRecovery' AND event = 'Looked'
    ORDER BY timestamp DESC
    LIMIT 1
) AS l
LEFT JOIN machine_agent_heartbeat h ON h.machine_id = b.machine_id
WHERE b.machine_id = e.machine_id AND b.process = 'ShepherdRecovery' AND b.kind = 'held-back'
    AND coalesce(h.agent_heartbeat_at < l.timestamp, true)

-- fragment: agent_timeout
-- How long an agent is healthy without a heartbeat, in the words of the view machine_need.
interval '1 second' * CASE
    WHEN report_interval_seconds IS NULL THEN startup_timeout_seconds
    -- Null without a policy, which greatest alone would ignore.
    ELSE heartbeat_timeout_seconds + greatest(0, 2.5::float8 * report_interval_seconds - heartbeat_timeout_seconds)
END

-- fragment: quarantine_kind
-- Why the machine is in quarantine (z), or that its agent, whose last heartbeat is h, has reported since.
CASE WHEN h.agent_heartbeat_at > z.quarantined_at THEN 'reports-again' ELSE z.kind END

-- fragment: often
-- Of the recoveries of a machine in a day: it fails again and again. The usual policy has five steps, then comes
-- quarantine.
count(*) > 5

-- fragment: recovered_often
-- The machines that were recovered often, of the last 20,000 recoveries: if there are more in a day, no single machine is
-- to blame.
SELECT machine_id, count(*) AS times, max(timestamp) AS last_at
FROM (SELECT machine_id, timestamp FROM machine_recoveries ORDER BY timestamp DESC LIMIT 20000) AS last
GROUP BY machine_id
HAVING {often}

-- fragment: found_facts
-- What is looked up of the machine c, its state s and its eligibility n. Subqueries, since few machines are looked up.
coalesce((SELECT labels FROM machine_labels WHERE machine_id = c.machine_id), '{}') AS labels,
s.state,
s.state_since,
(SELECT agent_started_at FROM machine_agent_started WHERE machine_id = c.machine_id) AS agent_started_at,
(SELECT agent_heartbeat_at FROM machine_agent_heartbeat WHERE machine_id = c.machine_id) AS agent_heartbeat_at,
n.process AS needs,
coalesce(n.backoff_until > clock_timestamp(), false) AS backing_off,
n.backoff_until,
(SELECT x.machine_id FROM work x WHERE x.machine_id = c.machine_id) IS NOT NULL AS being_worked_on,
u.pause_ids,
(SELECT quarantined_at FROM machine_quarantine WHERE machine_id = c.machine_id) AS quarantined_at,
(SELECT count(*) FROM machine_recoveries WHERE machine_id = c.machine_id) AS recoveries

-- fragment: found_joins
CROSS JOIN LATERAL (SELECT * FROM machine_states WHERE machine_id = c.machine_id LIMIT 1) AS s
LEFT JOIN LATERAL (SELECT * FROM machine_eligibility WHERE machine_id = c.machine_id AND NOT overdue LIMIT 1) AS n ON true
CROSS JOIN LATERAL (
    SELECT ARRAY(
        SELECT pause_id FROM machine_pauses WHERE machine_id = c.machine_id AND NOT overdue ORDER BY created_at, pause_id
    ) AS pause_ids
) AS u

-- fragment: not_ready
-- A machine about which the provider may soon say something new. Missing ones count as steady; so do permanently failed ones,
-- unless steps are taken on them.
(
    provider_status IS NULL
    OR provider_status IN ('Provisioning', 'Stopped', 'Unknown')
    OR (provider_status = 'Running' AND provider_ip_address IS NULL)
    OR (
        provider_status = 'ProvisioningFailedPermanent'
        AND EXISTS (SELECT 1 FROM recovery_policy WHERE provider = :provider AND failed_steps)
    )
)

-- fragment: updated_machines
-- The machines whose facts the Updater keeps. No join: the planner overestimates those that are not ready, and would read
-- all machines.
FROM machine_provided p
WHERE provider = :provider AND (SELECT machine_id FROM machine_quarantine WHERE machine_id = p.machine_id) IS NULL

-- fragment: recorded_facts
SELECT
    provider_reservation_id AS reservation_id, provider_ip_address AS address, provider_location AS location,
    provider_status AS status, provider_failure AS failure, provider_hardware AS hardware, provider_labels AS labels,
    machine_id, provider_id,
    (
        SELECT extract(epoch FROM clock_timestamp() - machine_created_at)::float8 FROM machines WHERE machine_id = p.machine_id
    ) AS age_seconds
{updated_machines}
