-- Pauses, by which operators keep loops away from machines. The claim statement itself checks them.

-- name: pause
-- Pause a machine, a process, a provider, any combination of them, or (if all are null) everything. If the same pause is in
-- force, change its end.
WITH repeated AS (
    UPDATE pauses
    SET expires_at = clock_timestamp() + :seconds::float8 * interval '1 second'
    WHERE machine_id IS NOT DISTINCT FROM :machine_id::uuid
        AND process IS NOT DISTINCT FROM :process::text
        AND provider IS NOT DISTINCT FROM :provider::text
        AND (owner, reason) = (:owner, :reason)
        AND coalesce(expires_at > clock_timestamp(), true)
    RETURNING pause_id
),
-- None of the kind was in force.
new AS (
    INSERT INTO pauses (machine_id, process, provider, owner, reason, expires_at)
    SELECT
        :machine_id::uuid, :process::text, :provider::text, :owner, :reason,
        clock_timestamp() + :seconds::float8 * interval '1 second'
    WHERE NOT EXISTS (SELECT 1 FROM repeated)
    RETURNING pause_id
)
SELECT pause_id FROM repeated UNION ALL SELECT pause_id FROM new;

-- name: pauses_in_force
-- The pauses in force, oldest first.
SELECT
    z.pause_id, z.machine_id, p.provider_id, nullif(z.process, '') AS process, nullif(z.provider, '') AS provider,
    z.owner, z.reason, z.created_at, z.expires_at
FROM pause_scopes z
LEFT JOIN machine_provided p ON p.machine_id = z.machine_id
ORDER BY z.created_at;

-- name: resume
-- End one pause; if an operator does, record that in the history of its machine, with what the pause was.
WITH pause_deleted AS (
    DELETE FROM pauses WHERE pause_id = :pause_id RETURNING pause_id, machine_id, owner, reason
),
history_rows AS (
    INSERT INTO work_history (machine_id, process, event, failed_cause)
    SELECT machine_id, 'operator', 'Resumed', :owner::text || ': paused by ' || owner || ': ' || reason
    FROM pause_deleted
    WHERE machine_id IS NOT NULL AND :owner::text IS NOT NULL
)
SELECT pause_id FROM pause_deleted;
