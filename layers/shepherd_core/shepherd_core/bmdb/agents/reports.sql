-- Reports of agents. Heartbeats are the most frequent write: each is recorded by one statement, without a session.
-- accept_heartbeat itself checks everything that a heartbeat must satisfy. The statements that write reports follow it in
-- its transaction.

-- name: reporting_agent
-- The agent that should be reporting for this machine, and the time in the last heartbeat that was accepted from it. For a
-- machine without an agent, or for an unknown id, these columns are null.
SELECT
    {schema_fits} AS fits,
    (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS time,
    a.agent_public_key AS public_key, h.agent_signed_at AS signed_at
FROM (VALUES (:machine_id::uuid)) AS n (machine_id)
LEFT JOIN machine_agent_started a ON a.machine_id = n.machine_id
LEFT JOIN machine_agent_heartbeat h ON h.machine_id = a.machine_id;

-- name: accept_heartbeat
-- Record a heartbeat, and return the installation that is requested. Writes one row and no index entry. An
-- agent's first heartbeat inserts the row, and first_heartbeat_at by its default; later
-- ones leave that as it is. No row: the machine has no agent, or its agent has another key; the agent's time differs too
-- much from the database's, or is not later than the last one; the database's time differs from the function's; or the
-- schema has another version.
--
-- A heartbeat that is not the first one writes nothing but its row: no lock and no index entry. Whatever deletes or
-- replaces an agent also deletes that row, or sets agent_signed_at to the highest number (unquarantine). So either this
-- statement updates the row first, and the other one waits for it; or this one waits, and then finds no row that it may
-- update. A machine whose row is in the snapshot can only be in renewed, and every other one only in first.
--
-- Before its first heartbeat, an agent has no such row. An update of the agent's row, which changes nothing, orders this
-- statement with those that delete the agent. Either the agent was deleted first, and this statement finds none; or the
-- other one waits for this statement and sees its heartbeat (lock_facts). A lock would not do: under snapshot isolation
-- only two writes conflict. A recovery waits too, but its single statement has an older snapshot, so the heartbeat's row
-- remains. It has no effect; the next agent start or the decommissioning deletes it.
WITH timely AS (
    SELECT 1
    WHERE abs(extract(epoch FROM clock_timestamp()) * 1000 - :signed_at::bigint) <= :tolerance_seconds::float8 * 1000
        AND {clock_agrees}
        AND {schema_fits}
),
-- An agent that has a heartbeat: the usual case.
renewed AS (
    UPDATE machine_agent_heartbeat h
    SET
        agent_heartbeat_at = clock_timestamp(),
        agent_signed_at = :signed_at::bigint,
        report_interval_seconds = :report_interval::integer,
        failed_attempts = :failed_attempts::integer,
        padding = NULL
    FROM machine_agent_started a
    WHERE h.machine_id = :machine_id::uuid
        AND h.agent_signed_at < :signed_at::bigint
        AND a.machine_id = :machine_id::uuid
        AND a.agent_public_key = decode(:public_key::text, 'hex')
        AND EXISTS (SELECT 1 FROM timely)
    RETURNING h.agent_heartbeat_at
),
-- An agent without one.
agent AS (
    UPDATE machine_agent_started SET agent_started_at = agent_started_at
    WHERE machine_id = :machine_id::uuid
        AND agent_public_key = decode(:public_key::text, 'hex')
        AND EXISTS (SELECT 1 FROM timely)
        AND NOT EXISTS (SELECT 1 FROM machine_agent_heartbeat WHERE machine_id = :machine_id::uuid)
    RETURNING machine_id
),
-- Its first heartbeat, or the second of two that came at once.
first AS (
    INSERT INTO machine_agent_heartbeat AS h
        (machine_id, agent_heartbeat_at, agent_signed_at, report_interval_seconds, failed_attempts)
    SELECT machine_id, clock_timestamp(), :signed_at::bigint, :report_interval::integer, :failed_attempts::integer
    FROM agent
    ON CONFLICT (machine_id) DO UPDATE
    SET (agent_heartbeat_at, agent_signed_at, report_interval_seconds, failed_attempts) =
        (excluded.agent_heartbeat_at, excluded.agent_signed_at, excluded.report_interval_seconds, excluded.failed_attempts)
    WHERE h.agent_signed_at < excluded.agent_signed_at
    RETURNING h.agent_heartbeat_at
)
SELECT
    (extract(epoch FROM b.agent_heartbeat_at) * 1000)::bigint AS time,
    q.generation, q.os_installation_request_raw AS request
FROM (SELECT * FROM renewed UNION ALL SELECT * FROM first) AS b
LEFT JOIN machine_os_installation_request q
    ON q.machine_id = :machine_id::uuid
    AND NOT EXISTS (
        SELECT 1
        FROM machine_os_installation_report r
        WHERE r.machine_id = q.machine_id AND r.generation = q.generation
    );

-- name: lock_facts
-- Keep heartbeats and requests of installations out until this transaction ends, and wait for those in progress, so that
-- the next statement sees them.
WITH provided AS (SELECT machine_id FROM machine_provided WHERE machine_id = :machine_id FOR UPDATE),
agent AS (SELECT machine_id FROM machine_agent_started WHERE machine_id = :machine_id FOR UPDATE)
SELECT (SELECT count(*) FROM provided), (SELECT count(*) FROM agent);

-- name: write_hardware_report
-- The hardware of the machine, and the sums that the inventory reads.
INSERT INTO machine_hardware_report
    (machine_id, hardware_report_raw, reported_at, hardware_threads, memory_bytes, disks, disk_bytes)
VALUES (:machine_id, decode(:raw, 'hex'), clock_timestamp(), :hardware_threads, :memory_bytes, :disks, :disk_bytes)
ON CONFLICT (machine_id) DO UPDATE
SET
    hardware_report_raw = excluded.hardware_report_raw,
    reported_at = excluded.reported_at,
    hardware_threads = excluded.hardware_threads,
    memory_bytes = excluded.memory_bytes,
    disks = excluded.disks,
    disk_bytes = excluded.disk_bytes;

-- name: write_installation_report
-- The outcome of an installation. No row: the generation is lower than the last reported one, or was never requested. A
-- repeated report is accepted again; a success is never overwritten by an error of the same generation.
WITH accepted AS (
    SELECT q.machine_id
    FROM machine_os_installation_request q
    LEFT JOIN machine_os_installation_report r ON r.machine_id = q.machine_id
    WHERE q.machine_id = :machine_id::uuid
        AND :generation::bigint BETWEEN coalesce(r.generation, :generation::bigint) AND q.generation
),
-- The latest outcome replaces the one before.
report_rows AS (
    INSERT INTO machine_os_installation_report AS r
        (machine_id, generation, os_installation_result, os_installation_report_raw, reported_at)
    SELECT machine_id, :generation::bigint, :result::text, decode(:raw::text, 'hex'), clock_timestamp() FROM accepted
    ON CONFLICT (machine_id) DO UPDATE
    SET (generation, os_installation_result, os_installation_report_raw, reported_at) =
        (excluded.generation, excluded.os_installation_result, excluded.os_installation_report_raw, excluded.reported_at)
    WHERE r.generation < excluded.generation OR r.os_installation_result = 'Error'
)
SELECT machine_id FROM accepted;
