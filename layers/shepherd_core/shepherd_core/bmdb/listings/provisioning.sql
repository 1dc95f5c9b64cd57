-- The Provisioner's reading and writing. It writes only while it holds the provider's lock and its session is alive.
-- The session is checked after the lock was obtained, because waiting for the lock may take a while.

-- name: take_lock
-- Take the provider's lock, unless another live session holds it: then no row. Returns how many seconds ago the last machine
-- was created (infinite: never), how many places an earlier invocation saw waiting for the limit of machines, and how many
-- seconds ago (infinite: never).
WITH expired AS (
    -- The holder that this statement sees. Evaluated when the provider's row is locked; waits for a renewal in progress.
    SELECT session_id
    FROM sessions
    WHERE session_id = (SELECT session_id FROM provisioner_lock WHERE provider = :provider) AND deadline <= clock_timestamp()
    FOR UPDATE
)
INSERT INTO provisioner_lock AS l (provider, session_id)
VALUES (:provider, :session_id)
ON CONFLICT (provider) DO UPDATE SET session_id = excluded.session_id
WHERE l.session_id IS NULL OR l.session_id IN (excluded.session_id, (SELECT session_id FROM expired))
RETURNING
    coalesce(extract(epoch FROM clock_timestamp() - last_creation_at)::float8, 'infinity') AS idle_seconds,
    waiting,
    coalesce(extract(epoch FROM clock_timestamp() - waiting_seen_at)::float8, 'infinity') AS waiting_seconds;

-- name: record_waiting
-- Record, for operators, how many places wait for the limit of machines. Only the holder of the lock can.
UPDATE provisioner_lock
SET waiting = :waiting, max_machines = :max_machines, waiting_seen_at = clock_timestamp()
WHERE provider = :provider AND session_id = :session_id;

-- name: waiting
-- The providers where places wait for the limit of machines, as the Provisioner saw within the last day.
SELECT provider, waiting, max_machines, waiting_seen_at AS seen_at
FROM provisioner_lock
WHERE {waits_for_limit}
ORDER BY provider;

-- name: provided_machines
-- All machines of the provider that the BMDB knows. Most are usual: read as few columns as the comparison needs of them.
SELECT
    p.machine_id, p.provider_id,
    extract(epoch FROM clock_timestamp() - h.agent_heartbeat_at)::float8 AS heartbeat_seconds
FROM machine_provided p
LEFT JOIN machine_agent_heartbeat h ON h.machine_id = p.machine_id
WHERE p.provider = :provider;

-- name: unusual_machines
-- Those of them that are new or failed, set aside, quarantined or to be released. set_aside: the Provisioner paused it
-- because the provider did not list it. quarantined: no loop may work on it.
WITH unusual AS (
    SELECT machine_id FROM machines WHERE machine_created_at > statement_timestamp() - interval '1 day'
    UNION
    SELECT machine_id FROM machine_provided WHERE provider_status = 'ProvisioningFailedPermanent'
    UNION
    SELECT machine_id FROM pauses WHERE owner = 'provisioner'
    UNION
    SELECT machine_id FROM machine_quarantine
    UNION
    SELECT machine_id FROM machine_release
)
SELECT
    p.machine_id, p.provider_id,
    extract(epoch FROM clock_timestamp() - h.agent_heartbeat_at)::float8 AS heartbeat_seconds,
    p.provider_reservation_id AS reservation_id, p.provider_status AS status,
    EXISTS (SELECT 1 FROM pauses x WHERE x.machine_id = p.machine_id AND x.owner = 'provisioner') AS set_aside,
    extract(epoch FROM clock_timestamp() - m.machine_created_at)::float8 AS age_seconds,
    extract(epoch FROM clock_timestamp() - r.asked_at)::float8 AS asked_seconds,
    extract(epoch FROM clock_timestamp() - r.accepted_at)::float8 AS released_seconds,
    EXISTS (SELECT 1 FROM machine_quarantine z WHERE z.machine_id = p.machine_id) AS quarantined,
    p.provider_ip_address AS address, p.provider_hardware AS hardware, k.host_key
FROM unusual u
JOIN machine_provided p ON p.machine_id = u.machine_id
JOIN machines m ON m.machine_id = p.machine_id
LEFT JOIN machine_agent_heartbeat h ON h.machine_id = p.machine_id
LEFT JOIN machine_release r ON r.machine_id = p.machine_id
LEFT JOIN machine_host_key k ON k.machine_id = p.machine_id
WHERE p.provider = :provider;

-- name: find_provided
-- The machine with this provider id.
SELECT machine_id FROM machine_provided WHERE provider = :provider AND provider_id = :provider_id;

-- name: tombstones
-- Decommissioned machines of the provider. If it lists one again, it can be told from an unknown machine.
SELECT machine_id, provider_id, how = 'Released' AS released FROM machine_tombstone WHERE provider = :provider;

-- name: intents
-- Decided creations whose outcome is not recorded.
SELECT machine_id, capacity_id, extract(epoch FROM clock_timestamp() - intended_at)::float8 AS age_seconds
FROM machine_creation_intent
WHERE provider = :provider
ORDER BY intended_at, machine_id;

-- name: penalized_capacity
-- Capacity that is under a penalty now.
SELECT capacity_id FROM capacity_penalties WHERE provider = :provider AND until > clock_timestamp();

-- name: loop_paused
-- Whether a loop that works on no single machine is paused: by a pause of it, of the provider, or of everything.
SELECT 'paused by ' || owner || ': ' || reason FROM ({wide_pauses}) AS wide LIMIT 1;

-- name: create_intent
-- Decide to create a machine: insert its row, whose id is the idempotency token at the provider, and the intent. No
-- row: creations are paused (ignored unless :respect_pauses, because an operator may adopt a machine during a pause),
-- or the lock or the session is lost.
WITH {locked_provider},
-- Its id is the token of the creation.
new_machine AS (
    INSERT INTO machines (machine_created_at)
    SELECT clock_timestamp()
    FROM locked_provider
    WHERE NOT :respect_pauses::boolean OR NOT EXISTS (
        {wide_pauses}
    )
    RETURNING machine_id
)
INSERT INTO machine_creation_intent (machine_id, provider, capacity_id)
SELECT machine_id, :provider, :capacity_id FROM new_machine
RETURNING machine_id;

-- name: provide
-- The machine exists at the provider: record it, pin its host key if the provider reports one, delete the intent and
-- any penalty on its capacity. Its agent is not started before it can have booted. :created: the provider
-- created it for this; the interval until the next creation starts now. No row: the lock or the session is lost, and
-- the intent stays for a later invocation.
WITH {locked_provider},
provided_row AS (
    INSERT INTO machine_provided (
        machine_id, provider, provider_id, provider_reservation_id, provider_ip_address, provider_location,
        provider_status, provider_failure, provider_hardware, provider_labels
    )
    SELECT
        :machine_id::uuid, f.provider, :provider_id, :provider_reservation_id, :provider_ip_address,
        :provider_location, :provider_status, :provider_failure, :provider_hardware, :provider_labels::jsonb
    FROM locked_provider f
    RETURNING machine_id, provider
),
host_key_pinned AS (
    INSERT INTO machine_host_key (machine_id, host_key, pinned_at, origin)
    SELECT machine_id, :host_key::text, clock_timestamp(), 'Provider'
    FROM provided_row
    WHERE :host_key::text IS NOT NULL
),
-- No interval, because nothing failed.
backoff_set AS (
    INSERT INTO work_backoff (machine_id, process, until, cause)
    SELECT
        machine_id,
        'ShepherdAgentStart',
        clock_timestamp() + :boot_seconds::float8 * interval '1 second',
        'it was only just created, and has yet to boot'
    FROM provided_row
    WHERE :boot_seconds::float8 > 0
),
intent_deleted AS (DELETE FROM machine_creation_intent WHERE machine_id IN (SELECT machine_id FROM provided_row)),
penalty_deleted AS (
    DELETE FROM capacity_penalties
    WHERE provider = :provider AND capacity_id = :capacity_id AND EXISTS (SELECT 1 FROM provided_row)
),
-- From when the interval until the next creation counts.
lock_updated AS (
    UPDATE provisioner_lock
    SET last_creation_at = clock_timestamp()
    WHERE :created::boolean AND provider IN (SELECT provider FROM provided_row)
)
SELECT machine_id FROM provided_row;

-- name: record_adoption
-- An operator added the machine to the BMDB. In the transaction of provide.
INSERT INTO work_history (machine_id, process, event, failed_cause)
VALUES (:machine_id, 'operator', 'Adopted', :owner);

-- name: rebind
-- The machine has another id at the provider now: record what is listed under it, and end the Provisioner's pause. No
-- row: the lock or the session is lost.
WITH {locked_provider},
-- The machine keeps its id, history and labels.
rebound AS (
    UPDATE machine_provided
    SET provider_id = :provider_id, provider_reservation_id = :provider_reservation_id,
        provider_ip_address = :provider_ip_address, provider_location = :provider_location,
        provider_status = :provider_status, provider_failure = :provider_failure, provider_hardware = :provider_hardware,
        provider_labels = :provider_labels::jsonb
    WHERE machine_id = :machine_id AND provider IN (SELECT provider FROM locked_provider)
    RETURNING machine_id
),
pause_deleted AS (DELETE FROM pauses WHERE owner = 'provisioner' AND machine_id IN (SELECT machine_id FROM rebound)),
history_row AS (
    INSERT INTO work_history (machine_id, process, event, failed_cause)
    SELECT machine_id, 'operator', 'Rebound', :reason FROM rebound
)
SELECT machine_id FROM rebound;

-- name: delete_intent
-- The machine was never created and never will be: delete the intent and its row in machines. No row: the lock or the
-- session is lost.
WITH {locked_provider},
intent_deleted AS (
    DELETE FROM machine_creation_intent
    WHERE machine_id = :machine_id AND provider IN (SELECT provider FROM locked_provider)
    RETURNING machine_id
),
pauses_deleted AS (DELETE FROM pauses WHERE machine_id IN (SELECT machine_id FROM intent_deleted))
DELETE FROM machines WHERE machine_id IN (SELECT machine_id FROM intent_deleted) RETURNING machine_id;

-- name: penalize
-- Do not use this capacity for a while.
INSERT INTO capacity_penalties (provider, capacity_id, until, kind, cause)
VALUES (:provider, :capacity_id, clock_timestamp() + :seconds::float8 * interval '1 second', :kind, :cause)
ON CONFLICT (provider, capacity_id) DO UPDATE
SET until = excluded.until, kind = excluded.kind, cause = excluded.cause;

-- name: set_aside
-- Pause a machine that the provider does not list, for every loop.
INSERT INTO pauses (machine_id, owner, reason)
SELECT p.machine_id, 'provisioner', :reason
FROM machine_provided p
WHERE p.machine_id = :machine_id
    AND NOT EXISTS (SELECT 1 FROM machine_quarantine z WHERE z.machine_id = p.machine_id)
    AND NOT EXISTS (SELECT 1 FROM pauses x WHERE x.machine_id = p.machine_id AND x.owner = 'provisioner');

-- name: take_back
-- End that pause: the provider lists the machine again.
DELETE FROM pauses WHERE machine_id = :machine_id AND owner = 'provisioner' RETURNING machine_id;
