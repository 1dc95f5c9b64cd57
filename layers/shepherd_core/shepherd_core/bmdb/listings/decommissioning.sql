-- Machines that leave. All of it needs the provider's lock and a live session, as the Provisioner's own writes do, and
-- follows lock_due_rows in its transaction: a claim that is under way ends before, and its work is seen here.

-- name: decommission
-- Take a machine out of our care: a tombstone of what it was, and the tags go by which it would be worked on, counted,
-- heard or found; that of a wanted installation too, which may hold secrets. What tells of its past stays. Not while a
-- live session works on it; to be forgotten, not after a heartbeat that is younger than :fresh_seconds; as released, not
-- before the provider accepted that. Holds the heartbeat, so that none is overlooked. No row: the lock or the session is
-- lost.
WITH lock AS (
    SELECT provider FROM provisioner_lock WHERE provider = :provider AND session_id = :session_id FOR UPDATE
),
fence AS (
    SELECT :provider::text AS provider
    FROM sessions
    WHERE session_id = :session_id AND fence = :fence AND deadline > clock_timestamp() AND EXISTS (SELECT 1 FROM lock)
    FOR UPDATE
),
heartbeat AS (
    SELECT agent_heartbeat_at FROM machine_agent_heartbeat WHERE machine_id = :machine_id FOR UPDATE
),
worked AS (
    SELECT w.process
    FROM work w
    JOIN sessions s ON s.session_id = w.session_id
    WHERE w.machine_id = :machine_id AND s.deadline > clock_timestamp()
),
gone AS (
    DELETE FROM machine_provided
    WHERE machine_id = :machine_id
        AND provider IN (SELECT provider FROM fence)
        AND NOT EXISTS (SELECT 1 FROM worked)
        AND CASE :how::text
            WHEN 'Released' THEN EXISTS (
                SELECT 1 FROM machine_release WHERE machine_id = :machine_id AND accepted_at IS NOT NULL
            )
            ELSE NOT EXISTS (
                SELECT 1
                FROM heartbeat
                WHERE agent_heartbeat_at > clock_timestamp() - :fresh_seconds::float8 * interval '1 second'
            )
        END
    RETURNING machine_id, provider, provider_id, provider_reservation_id
),
buried AS (
    INSERT INTO machine_tombstone (
        machine_id, how, provider, provider_id, provider_reservation_id, agent_heartbeat_at, decommissioned_by, reason
    )
    SELECT
        g.machine_id,
        :how::text,
        g.provider,
        g.provider_id,
        g.provider_reservation_id,
        (SELECT agent_heartbeat_at FROM heartbeat),
        coalesce(:owner::text, r.asked_by),
        coalesce(:reason::text, r.reason)
    FROM gone g
    LEFT JOIN machine_release r ON r.machine_id = g.machine_id
),
undue AS (
    DELETE FROM machine_due WHERE machine_id IN (SELECT machine_id FROM gone)
),
unheard AS (
    DELETE FROM machine_agent_started WHERE machine_id IN (SELECT machine_id FROM gone)
),
silenced AS (
    DELETE FROM machine_agent_heartbeat WHERE machine_id IN (SELECT machine_id FROM gone)
),
unwanted AS (
    DELETE FROM machine_os_installation_request WHERE machine_id IN (SELECT machine_id FROM gone)
),
forgiven AS (
    DELETE FROM work_backoff WHERE machine_id IN (SELECT machine_id FROM gone)
),
given_up AS (
    DELETE FROM machine_quarantine WHERE machine_id IN (SELECT machine_id FROM gone)
),
awaited AS (
    DELETE FROM machine_grace WHERE machine_id IN (SELECT machine_id FROM gone)
),
resumed AS (
    DELETE FROM pauses WHERE machine_id IN (SELECT machine_id FROM gone)
),
fulfilled AS (
    DELETE FROM machine_release WHERE machine_id IN (SELECT machine_id FROM gone)
)
SELECT
    EXISTS (SELECT 1 FROM gone) OR EXISTS (SELECT 1 FROM machine_tombstone WHERE machine_id = :machine_id) AS done,
    EXISTS (SELECT 1 FROM worked) AS worked,
    (SELECT extract(epoch FROM clock_timestamp() - agent_heartbeat_at)::float8 FROM heartbeat) AS heartbeat_seconds
FROM fence;

-- name: request_release
-- Record that a machine is to be given back, and put it on hold for every loop. Under the same conditions; a heartbeat
-- that is younger than :fresh_seconds is in the way unless :despite_heartbeat. One that was recorded before stays as it
-- is, and known tells so. No row: the lock or the session is lost.
WITH lock AS (
    SELECT provider FROM provisioner_lock WHERE provider = :provider AND session_id = :session_id FOR UPDATE
),
fence AS (
    SELECT :provider::text AS provider
    FROM sessions
    WHERE session_id = :session_id AND fence = :fence AND deadline > clock_timestamp() AND EXISTS (SELECT 1 FROM lock)
    FOR UPDATE
),
heartbeat AS (
    SELECT agent_heartbeat_at FROM machine_agent_heartbeat WHERE machine_id = :machine_id FOR UPDATE
),
worked AS (
    SELECT w.process
    FROM work w
    JOIN sessions s ON s.session_id = w.session_id
    WHERE w.machine_id = :machine_id AND s.deadline > clock_timestamp()
),
allowed AS (
    SELECT p.machine_id
    FROM machine_provided p
    WHERE p.machine_id = :machine_id
        AND p.provider IN (SELECT provider FROM fence)
        AND NOT EXISTS (SELECT 1 FROM worked)
        AND (
            :despite_heartbeat::boolean
            OR NOT EXISTS (
                SELECT 1
                FROM heartbeat
                WHERE agent_heartbeat_at > clock_timestamp() - :fresh_seconds::float8 * interval '1 second'
            )
        )
),
known AS (
    SELECT machine_id FROM machine_release WHERE machine_id = :machine_id
),
asked AS (
    INSERT INTO machine_release (machine_id, asked_by, reason)
    SELECT machine_id, :owner::text, :reason::text FROM allowed WHERE NOT EXISTS (SELECT 1 FROM known)
    RETURNING machine_id, reason
),
paused AS (
    INSERT INTO pauses (machine_id, owner, reason) SELECT machine_id, 'release', reason FROM asked
)
SELECT
    EXISTS (SELECT 1 FROM allowed) AS done,
    EXISTS (SELECT 1 FROM worked) AS worked,
    (SELECT extract(epoch FROM clock_timestamp() - agent_heartbeat_at)::float8 FROM heartbeat) AS heartbeat_seconds,
    EXISTS (SELECT 1 FROM known) AS known
FROM fence;

-- name: accept_release
-- The provider agreed to take the machine back. True whoever holds the lock by now.
UPDATE machine_release
SET accepted_at = coalesce(accepted_at, clock_timestamp())
WHERE machine_id = :machine_id
RETURNING machine_id;

-- name: cancel_release
-- The machine is kept after all: the provider did not accept its release. No row: the lock or the session is lost.
WITH lock AS (
    SELECT provider FROM provisioner_lock WHERE provider = :provider AND session_id = :session_id FOR UPDATE
),
fence AS (
    SELECT :provider::text AS provider
    FROM sessions
    WHERE session_id = :session_id AND fence = :fence AND deadline > clock_timestamp() AND EXISTS (SELECT 1 FROM lock)
    FOR UPDATE
),
withdrawn AS (
    DELETE FROM machine_release
    WHERE machine_id = :machine_id AND accepted_at IS NULL AND EXISTS (SELECT 1 FROM fence)
    RETURNING machine_id
),
resumed AS (
    DELETE FROM pauses WHERE owner = 'release' AND machine_id IN (SELECT machine_id FROM withdrawn)
)
SELECT :machine_id::uuid FROM fence;
