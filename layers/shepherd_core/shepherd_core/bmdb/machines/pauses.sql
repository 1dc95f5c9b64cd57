-- Pauses, by which operators keep loops away from machines. The claim statement itself checks them.

-- name: pause
-- Pause a machine, a process, a provider, a location, labels, any combination of them, or (if all are null) everything. If the
-- same pause is in force, change its end. One that is over begins again, with another id.
INSERT INTO pauses AS o (machine_id, process, provider, location, with_labels, owner, reason, expires_at)
VALUES (
    :machine_id, :process, :provider, :location, :with_labels, :owner, :reason,
    clock_timestamp() + :seconds::float8 * interval '1 second'
)
ON CONFLICT (machine_id, process, provider, location, with_labels, owner, hashtextextended(reason, 0)) DO UPDATE
SET
    pause_id = CASE WHEN o.expires_at <= clock_timestamp() THEN excluded.pause_id ELSE o.pause_id END,
    created_at = CASE WHEN o.expires_at <= clock_timestamp() THEN excluded.created_at ELSE o.created_at END,
    expires_at = excluded.expires_at
RETURNING pause_id;

-- name: pauses_in_force
-- The pauses in force, oldest first.
SELECT
    z.pause_id, z.machine_id, p.provider_id, z.process, z.provider, z.location, z.with_labels,
    z.owner, z.reason, z.created_at, z.expires_at
FROM pauses_in_force z
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
