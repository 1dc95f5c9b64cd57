-- The SSH host keys that operators pin and forget. The takeover pins them too, see finish_agent_start.

-- name: pin_host_key
-- Pin a host key that an operator names, in place of another only if :replace, and record that in the machine's
-- history. Returns the key that was pinned before, and whether this one is now. No row: the machine is not provided.
WITH machine AS (SELECT machine_id FROM machine_provided WHERE machine_id = :machine_id),
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
    SELECT machine_id, 'operator', 'HostKeyPinned', :reason FROM host_key_pinned
)
SELECT k.host_key AS before, EXISTS (SELECT 1 FROM host_key_pinned) AS pinned
FROM machine m
LEFT JOIN machine_host_key k ON k.machine_id = m.machine_id;

-- name: forget_host_key
-- Delete the pinned host key, so that the next takeover pins a new one, and record that in the machine's history. No
-- row: none was pinned.
WITH host_key_deleted AS (
    DELETE FROM machine_host_key WHERE machine_id = :machine_id RETURNING machine_id, host_key
),
history_rows AS (
    INSERT INTO work_history (machine_id, process, event, failed_cause)
    SELECT machine_id, 'operator', 'HostKeyForgotten', :reason FROM host_key_deleted
)
SELECT host_key FROM host_key_deleted;
