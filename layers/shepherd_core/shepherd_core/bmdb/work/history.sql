-- The audit trail of each machine: what was done to it and how it ended, written by the statements that do it.

-- name: history
-- The audit trail of one machine, newest first. What an operator ends of a loop's stands in the row with that loop.
SELECT
    timestamp, CASE WHEN event IN ('Retried', 'Unquarantined') THEN 'operator' ELSE process END AS process, event, step, kind, fault, seen, failed_cause, session_id
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
