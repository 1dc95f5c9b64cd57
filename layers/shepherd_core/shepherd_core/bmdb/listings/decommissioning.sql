-- Decommissioning: machines that are released or forgotten. Like the Provisioner's writes, all statements but
-- accept_release require the provider's lock and a live session. decommission and request_release also require that this
-- session has locked the machine (lock_machines), so that no loop works on it. They follow lock_facts in their
-- transaction.

-- name: decommission
-- Decommission a machine: write a tombstone of what it was, and delete every fact by which it would be claimed, counted
-- or listed, and the installation request, which may contain secrets. Its row in machines, its history and other facts
-- about its past stay.
--
-- A machine is not forgotten after a heartbeat younger than
-- :fresh_seconds, and not removed as released before the provider accepted the release. Locks the heartbeat row, so
-- that no heartbeat is missed. No row: the lock or the session is lost.
WITH {locked_provider},
{last_heartbeat},
{locked_machine},
-- If it may be decommissioned; all that follows is about this row.
provided_deleted AS (
    DELETE FROM machine_provided
    WHERE machine_id IN (SELECT machine_id FROM locked_machine)
        AND provider IN (SELECT provider FROM locked_provider)
        AND CASE :how::text
            WHEN 'Released' THEN EXISTS (
                SELECT 1 FROM machine_release WHERE machine_id = :machine_id AND accepted_at IS NOT NULL
            )
            ELSE NOT EXISTS (
                SELECT 1
                FROM last_heartbeat
                WHERE agent_heartbeat_at > clock_timestamp() - :fresh_seconds::float8 * interval '1 second'
            )
        END
    RETURNING machine_id, provider, provider_id
),
-- Keeps who took it out, and why.
tombstone AS (
    INSERT INTO machine_tombstone (machine_id, how, provider, provider_id, decommissioned_by, reason)
    SELECT
        g.machine_id, :how::text, g.provider, g.provider_id, coalesce(:owner::text, r.asked_by), coalesce(:reason::text, r.reason)
    FROM provided_deleted g
    LEFT JOIN machine_release r ON r.machine_id = g.machine_id
),
agent_deleted AS (DELETE FROM machine_agent_started WHERE machine_id IN (SELECT machine_id FROM provided_deleted)),
heartbeat_deleted AS (
    DELETE FROM machine_agent_heartbeat WHERE machine_id IN (SELECT machine_id FROM provided_deleted)
),
installation_request_deleted AS (
    DELETE FROM machine_os_installation_request WHERE machine_id IN (SELECT machine_id FROM provided_deleted)
),
backoff_cleared AS (DELETE FROM work_backoff WHERE machine_id IN (SELECT machine_id FROM provided_deleted)),
quarantine_deleted AS (DELETE FROM machine_quarantine WHERE machine_id IN (SELECT machine_id FROM provided_deleted)),
grace_deleted AS (DELETE FROM machine_grace WHERE machine_id IN (SELECT machine_id FROM provided_deleted)),
pauses_deleted AS (DELETE FROM pauses WHERE machine_id IN (SELECT machine_id FROM provided_deleted)),
release_deleted AS (DELETE FROM machine_release WHERE machine_id IN (SELECT machine_id FROM provided_deleted))
SELECT
    EXISTS (SELECT 1 FROM provided_deleted)
        OR EXISTS (SELECT 1 FROM machine_tombstone WHERE machine_id = :machine_id) AS done,
    (SELECT extract(epoch FROM clock_timestamp() - agent_heartbeat_at)::float8 FROM last_heartbeat) AS heartbeat_seconds
FROM locked_provider;

-- name: request_release
-- Record that a machine is to be released, and pause it for every loop. It is not done after a heartbeat younger than
-- :fresh_seconds unless :despite_heartbeat. A request that is on record already stays as it is, and the column
-- release_on_record says so. No row: the lock or the session is lost.
WITH {locked_provider},
{last_heartbeat},
{locked_machine},
-- If it may be released.
allowed AS (
    SELECT p.machine_id
    FROM machine_provided p
    WHERE p.machine_id IN (SELECT machine_id FROM locked_machine)
        AND p.provider IN (SELECT provider FROM locked_provider)
        AND (
            :despite_heartbeat::boolean
            OR NOT EXISTS (
                SELECT 1
                FROM last_heartbeat
                WHERE agent_heartbeat_at > clock_timestamp() - :fresh_seconds::float8 * interval '1 second'
            )
        )
),
-- Requested before: it is not recorded twice.
release_on_record AS (SELECT machine_id FROM machine_release WHERE machine_id = :machine_id),
release_row AS (
    INSERT INTO machine_release (machine_id, asked_by, reason)
    SELECT machine_id, :owner::text, :reason::text FROM allowed WHERE NOT EXISTS (SELECT 1 FROM release_on_record)
    RETURNING machine_id, reason
),
pause_row AS (
    INSERT INTO pauses (machine_id, owner, reason) SELECT machine_id, 'release', reason FROM release_row
)
SELECT
    EXISTS (SELECT 1 FROM allowed) AS done,
    (SELECT extract(epoch FROM clock_timestamp() - agent_heartbeat_at)::float8 FROM last_heartbeat) AS heartbeat_seconds,
    EXISTS (SELECT 1 FROM release_on_record) AS release_on_record
FROM locked_provider;

-- name: accept_release
-- The provider accepted the release. That is so no matter who holds the lock by now, so the lock is not required.
UPDATE machine_release
SET accepted_at = coalesce(accepted_at, clock_timestamp())
WHERE machine_id = :machine_id
RETURNING machine_id;

-- name: cancel_release
-- Cancel a release that the provider has not accepted: the loops work on the machine again. No row: the lock or the
-- session is lost.
WITH {locked_provider},
release_deleted AS (
    DELETE FROM machine_release
    WHERE machine_id = :machine_id AND accepted_at IS NULL AND EXISTS (SELECT 1 FROM locked_provider)
    RETURNING machine_id
),
pause_deleted AS (
    DELETE FROM pauses WHERE owner = 'release' AND machine_id IN (SELECT machine_id FROM release_deleted)
),
history_rows AS (
    INSERT INTO work_history (machine_id, process, event, failed_cause)
    SELECT machine_id, 'operator', 'ReleaseCanceled', :reason FROM release_deleted WHERE :reason::text IS NOT NULL
)
SELECT true AS done FROM locked_provider;
