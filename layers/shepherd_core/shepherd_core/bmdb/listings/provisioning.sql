-- What the Provisioner reads and writes. It writes only while it holds the provider's lock and its session lives; the
-- session is looked at when the lock is had, which may take a while.

-- name: lock_provisioner_row
-- Hold on to the provider's lock row while its holder is looked at; no row: nobody ever took it.
SELECT session_id FROM provisioner_lock WHERE provider = :provider FOR UPDATE;

-- name: create_provisioner_lock
-- Make the lock row of a provider that has none.
INSERT INTO provisioner_lock (provider) VALUES (:provider) ON CONFLICT (provider) DO NOTHING;

-- name: lock_live_session
-- Whether a session lives, holding its row so that it is not kept alive meanwhile. Its deadline is looked at when the row
-- is had: until then, it may just be kept alive.
WITH held AS (
    SELECT session_id, deadline FROM sessions WHERE session_id = :session_id FOR UPDATE
)
SELECT session_id FROM held WHERE deadline > clock_timestamp();

-- name: take_lock
-- Make the lock ours, and tell how many seconds ago the last machine was created (null: never), how many places an earlier
-- pass saw waiting for the limit of machines, and how many seconds ago (null: never).
UPDATE provisioner_lock
SET session_id = :session_id
WHERE provider = :provider
RETURNING
    extract(epoch FROM clock_timestamp() - last_creation_at)::float8,
    waiting,
    extract(epoch FROM clock_timestamp() - waiting_seen_at)::float8;

-- name: record_waiting
-- Keep, for people, how many places wait for the limit of machines; by who has the lock.
UPDATE provisioner_lock
SET waiting = :waiting, max_machines = :max_machines, waiting_seen_at = clock_timestamp()
WHERE provider = :provider AND session_id = :session_id;

-- name: waiting
-- Where places wait for the limit of machines, as the Provisioner saw it within a day.
SELECT provider, waiting, max_machines, waiting_seen_at AS seen_at
FROM provisioner_lock
WHERE waiting > 0 AND waiting_seen_at > clock_timestamp() - interval '1 day'
ORDER BY provider;

-- name: provided_machines
-- Every machine of the provider that the BMDB knows. set_aside: the Provisioner itself paused it, because the
-- provider did not list it. quarantined: it is nobody's to touch.
SELECT
    p.machine_id,
    p.provider_id,
    p.provider_reservation_id,
    p.provider_status,
    EXISTS (
        SELECT 1 FROM pauses x WHERE x.machine_id = p.machine_id AND x.owner = 'provisioner'
    ) AS set_aside,
    extract(epoch FROM clock_timestamp() - m.machine_created_at)::float8 AS age_seconds,
    extract(epoch FROM clock_timestamp() - h.agent_heartbeat_at)::float8 AS heartbeat_seconds,
    extract(epoch FROM clock_timestamp() - r.asked_at)::float8 AS asked_seconds,
    extract(epoch FROM clock_timestamp() - r.accepted_at)::float8 AS released_seconds,
    EXISTS (SELECT 1 FROM machine_quarantine z WHERE z.machine_id = p.machine_id) AS quarantined
FROM machine_provided p
JOIN machines m ON m.machine_id = p.machine_id
LEFT JOIN machine_agent_heartbeat h ON h.machine_id = p.machine_id
LEFT JOIN machine_release r ON r.machine_id = p.machine_id
WHERE p.provider = :provider;

-- name: find_provided
-- The machine that the BMDB knows by an id of the provider's.
SELECT machine_id FROM machine_provided WHERE provider = :provider AND provider_id = :provider_id;

-- name: tombstones
-- Machines that were the provider's and are out of our care: should it list one again, that is told from a stranger.
SELECT machine_id, provider_id, how = 'Released' FROM machine_tombstone WHERE provider = :provider;

-- name: intents
-- Creations that were decided and whose outcome is not recorded.
SELECT machine_id, capacity_id, extract(epoch FROM clock_timestamp() - intended_at)::float8
FROM machine_creation_intent
WHERE provider = :provider
ORDER BY intended_at, machine_id;

-- name: penalized_capacity
-- Capacity that is to be left alone now.
SELECT capacity_id FROM capacity_penalties WHERE provider = :provider AND until > clock_timestamp();

-- name: create_intent
-- Decide to create a machine: its row, whose id is the token at the provider, and the intent. No row: somebody put
-- creations on hold, which an operator who takes one machine in need not heed; or the lock or the session is lost.
WITH lock AS (
    SELECT provider FROM provisioner_lock WHERE provider = :provider AND session_id = :session_id FOR UPDATE
),
fence AS (
    SELECT :provider::text AS provider
    FROM sessions
    WHERE session_id = :session_id AND fence = :fence AND deadline > clock_timestamp() AND EXISTS (SELECT 1 FROM lock)
    FOR UPDATE
),
machine AS (
    INSERT INTO machines (machine_created_at)
    SELECT clock_timestamp()
    FROM fence
    WHERE NOT :respect_pauses::boolean OR NOT EXISTS (
        SELECT 1
        FROM pauses
        WHERE machine_id IS NULL
            AND process IS NULL
            AND (pauses.provider IS NULL OR pauses.provider = :provider)
            AND (expires_at IS NULL OR expires_at > clock_timestamp())
    )
    RETURNING machine_id
)
INSERT INTO machine_creation_intent (machine_id, provider, capacity_id)
SELECT machine_id, :provider, :capacity_id FROM machine
RETURNING machine_id;

-- name: provide
-- The machine exists at the provider: tag it, pin its host key if the provider knows it, drop its intent and any penalty
-- on its capacity, and make it due, but not before it can have booted. created: the provider was made to create it, and
-- the next creation waits for that. No row: the lock or the session is lost, and the
-- intent is still there for a later pass.
WITH lock AS (
    SELECT provider FROM provisioner_lock WHERE provider = :provider AND session_id = :session_id FOR UPDATE
),
fence AS (
    SELECT :provider::text AS provider
    FROM sessions
    WHERE session_id = :session_id AND fence = :fence AND deadline > clock_timestamp() AND EXISTS (SELECT 1 FROM lock)
    FOR UPDATE
),
tagged AS (
    INSERT INTO machine_provided (
        machine_id, provider, provider_id, provider_reservation_id, provider_ip_address, provider_location,
        provider_status
    )
    SELECT
        :machine_id::uuid, f.provider, :provider_id, :provider_reservation_id, :provider_ip_address,
        :provider_location, :provider_status
    FROM fence f
    RETURNING machine_id, provider
),
pinned AS (
    INSERT INTO machine_host_key (machine_id, host_key, pinned_at)
    SELECT machine_id, :host_key::text, clock_timestamp() FROM tagged WHERE :host_key::text IS NOT NULL
),
-- Without an interval, because nothing failed.
rested AS (
    INSERT INTO work_backoff (machine_id, process, until, cause)
    SELECT
        machine_id,
        'ShepherdAgentStart',
        clock_timestamp() + :boot_seconds::float8 * interval '1 second',
        'it was only just created, and has yet to boot'
    FROM tagged
    WHERE :boot_seconds::float8 > 0
),
kept AS (
    DELETE FROM machine_creation_intent WHERE machine_id IN (SELECT machine_id FROM tagged)
),
forgiven AS (
    DELETE FROM capacity_penalties
    WHERE provider = :provider AND capacity_id = :capacity_id AND EXISTS (SELECT 1 FROM tagged)
),
counted AS (
    UPDATE provisioner_lock
    SET last_creation_at = clock_timestamp()
    WHERE :created::boolean AND provider IN (SELECT provider FROM tagged)
)
INSERT INTO machine_due (machine_id, provider, process, not_before)
SELECT
    machine_id,
    provider,
    'ShepherdAgentStart',
    clock_timestamp() + :boot_seconds::float8 * interval '1 second'
FROM tagged
RETURNING machine_id;

-- name: delete_intent
-- The machine was never created and never will be. No row: the lock or the session is lost.
WITH lock AS (
    SELECT provider FROM provisioner_lock WHERE provider = :provider AND session_id = :session_id FOR UPDATE
),
fence AS (
    SELECT :provider::text AS provider
    FROM sessions
    WHERE session_id = :session_id AND fence = :fence AND deadline > clock_timestamp() AND EXISTS (SELECT 1 FROM lock)
    FOR UPDATE
),
dropped AS (
    DELETE FROM machine_creation_intent
    WHERE machine_id = :machine_id AND provider IN (SELECT provider FROM fence)
    RETURNING machine_id
),
released AS (
    DELETE FROM pauses WHERE machine_id IN (SELECT machine_id FROM dropped)
)
DELETE FROM machines WHERE machine_id IN (SELECT machine_id FROM dropped) RETURNING machine_id;

-- name: penalize
-- Leave capacity alone for a while.
INSERT INTO capacity_penalties (provider, capacity_id, until, cause)
VALUES (:provider, :capacity_id, clock_timestamp() + :seconds::float8 * interval '1 second', :cause)
ON CONFLICT (provider, capacity_id) DO UPDATE SET until = excluded.until, cause = excluded.cause;

-- name: set_aside
-- Keep every loop away from a machine that the provider does not list.
INSERT INTO pauses (machine_id, owner, reason)
SELECT p.machine_id, 'provisioner', :reason
FROM machine_provided p
WHERE p.machine_id = :machine_id
    AND NOT EXISTS (SELECT 1 FROM machine_quarantine z WHERE z.machine_id = p.machine_id)
    AND NOT EXISTS (SELECT 1 FROM pauses x WHERE x.machine_id = p.machine_id AND x.owner = 'provisioner');

-- name: take_back
-- The provider lists the machine again.
DELETE FROM pauses WHERE machine_id = :machine_id AND owner = 'provisioner' RETURNING machine_id;
