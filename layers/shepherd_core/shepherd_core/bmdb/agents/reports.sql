-- What agents report. A heartbeat is the one write that every machine causes all the time: it is one statement, and no
-- session is open around it. accept_heartbeat holds every rule by which it is taken, so that none has to be checked
-- before; the others follow it in its transaction.

-- name: reporting_agent
-- Who should be reporting for a machine, and what it was last believed; for a machine that has no agent, or is none, the
-- row says that.
SELECT
    (SELECT max(version) FROM schema_migrations) = :schema_version AS fits,
    (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS time,
    a.agent_public_key,
    h.agent_signed_at
FROM (SELECT 1) AS always
LEFT JOIN machine_agent_started a ON a.machine_id = :machine_id
LEFT JOIN machine_agent_heartbeat h ON h.machine_id = a.machine_id;

-- name: accept_heartbeat
-- The agent is alive, and what is wanted of it. Writes one row and no index entry, and leaves the due row alone (a claim
-- compares). No row: the machine's agent has another key, or the machine none; the agent signed at another time than
-- now, or not later than what is on record; or the schema has another version. It shares the agent's row, so that whoever
-- ends the agent has done so before, and this finds none, or waits for this and sees it (lock_agent). A recovery waits too,
-- but in one statement: the very first heartbeat of an agent beside it stays behind. That counts for nothing, and the next
-- agent start, or the machine's departure, drops it.
WITH heartbeat AS (
    INSERT INTO machine_agent_heartbeat AS h (machine_id, agent_heartbeat_at, agent_signed_at)
    SELECT a.machine_id, clock_timestamp(), :signed_at::bigint
    FROM machine_agent_started a
    WHERE a.machine_id = :machine_id
        AND a.agent_public_key = :public_key
        AND abs(extract(epoch FROM clock_timestamp()) * 1000 - :signed_at) <= :stale_seconds::float8 * 1000
        AND (SELECT max(version) FROM schema_migrations) = :schema_version
    FOR SHARE OF a
    ON CONFLICT (machine_id) DO UPDATE
    SET agent_heartbeat_at = excluded.agent_heartbeat_at, agent_signed_at = excluded.agent_signed_at
    WHERE h.agent_signed_at < excluded.agent_signed_at
    RETURNING h.machine_id, h.agent_heartbeat_at
)
SELECT
    (extract(epoch FROM b.agent_heartbeat_at) * 1000)::bigint AS time,
    q.generation,
    q.os_installation_request_raw
FROM heartbeat b
LEFT JOIN machine_os_installation_request q
    ON q.machine_id = b.machine_id
    AND NOT EXISTS (
        SELECT 1
        FROM machine_os_installation_report r
        WHERE r.machine_id = q.machine_id AND r.generation = q.generation
    );

-- name: lock_agent
-- Keep heartbeats out until this transaction ends, and wait for those that are under way, so that the next statement sees
-- them. After lock_due_rows.
SELECT machine_id FROM machine_agent_started WHERE machine_id = :machine_id FOR UPDATE;

-- name: write_hardware_report
-- What the machine consists of, and the sums that people ask for.
INSERT INTO machine_hardware_report
    (machine_id, hardware_report_raw, reported_at, hardware_threads, memory_bytes, disks, disk_bytes)
VALUES (:machine_id, :raw, clock_timestamp(), :hardware_threads, :memory_bytes, :disks, :disk_bytes)
ON CONFLICT (machine_id) DO UPDATE
SET
    hardware_report_raw = excluded.hardware_report_raw,
    reported_at = excluded.reported_at,
    hardware_threads = excluded.hardware_threads,
    memory_bytes = excluded.memory_bytes,
    disks = excluded.disks,
    disk_bytes = excluded.disk_bytes;

-- name: write_installation_report
-- How an installation went. Between lock_due_rows and reschedule, because a success ends our care. No row: the generation goes
-- backwards, or was never asked for. A report that comes again is taken again; a success stays one.
WITH taken AS (
    SELECT q.machine_id
    FROM machine_os_installation_request q
    LEFT JOIN machine_os_installation_report r ON r.machine_id = q.machine_id
    WHERE q.machine_id = :machine_id
        AND :generation::bigint BETWEEN coalesce(r.generation, :generation) AND q.generation
),
written AS (
    INSERT INTO machine_os_installation_report AS r
        (machine_id, generation, os_installation_result, os_installation_report_raw, reported_at)
    SELECT machine_id, :generation, :result, :raw, clock_timestamp() FROM taken
    ON CONFLICT (machine_id) DO UPDATE
    SET
        generation = excluded.generation,
        os_installation_result = excluded.os_installation_result,
        os_installation_report_raw = excluded.os_installation_report_raw,
        reported_at = excluded.reported_at
    WHERE r.generation < excluded.generation OR r.os_installation_result = 'Error'
)
SELECT machine_id FROM taken;
