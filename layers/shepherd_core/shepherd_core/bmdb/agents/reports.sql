-- Reports of agents. Heartbeats are the most frequent write: many are recorded in one statement, without a session.
-- accept_heartbeats itself checks everything that a heartbeat must satisfy. The statements that write reports follow it in
-- its transaction.

-- name: reporting_agents
-- The agents that should be reporting for these machines, where these are, and the time in the last heartbeat that was
-- accepted from each. For a machine without an agent, or for an unknown id, these columns are null.
SELECT
    n.machine_id,
    (SELECT max(version) FROM schema_migrations) = :schema_version AS fits,
    (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS time,
    a.agent_public_key,
    a.agent_response_key,
    p.provider,
    p.provider_location,
    h.agent_signed_at
FROM unnest(:machine_ids::uuid[]) AS n (machine_id)
LEFT JOIN machine_agent_started a ON a.machine_id = n.machine_id
LEFT JOIN machine_provided p ON p.machine_id = a.machine_id
LEFT JOIN machine_agent_heartbeat h ON h.machine_id = a.machine_id;

-- name: accept_heartbeats
-- Record a heartbeat of each of these machines, and return the installations that are requested. Writes one row for each
-- and no index entry, and leaves the due rows alone (a claim compares). An agent's first heartbeat inserts the row, and
-- first_heartbeat_at by its default; later ones leave that as it is. No row for a machine: it has no agent, or its agent
-- has another key; the agent's time differs too much from the database's, or is not later than the last one; or the
-- schema has another version. No machine may be in it twice.
--
-- A heartbeat that is not the first one writes nothing but its row: no lock and no index entry. Whatever deletes or
-- replaces an agent also deletes that row, or sets agent_signed_at to the highest number (unquarantine). So either this
-- statement updates the row first, and the other one waits for it; or this one waits, and then finds no row that it may
-- update. A machine whose row is in the snapshot can only be in renewed, and every other one only in first.
--
-- Before its first heartbeat, an agent has no such row. FOR SHARE on the agent's row orders this statement with those that
-- delete the agent. Either the agent was deleted first, and this statement finds none; or the other one waits for this
-- statement and sees its heartbeat (lock_agent). A recovery waits too, but its single statement has an older snapshot, so
-- the heartbeat's row remains. It has no effect; the next agent start or the decommissioning deletes it.
--
-- Rows are written by machine id, so that concurrent batches do not deadlock. With skip_locked, machines whose rows others
-- hold are left out, and returned without a time. It is not the default: a lock writes half as much WAL as a heartbeat.
WITH input_rows AS (
    SELECT
        g.machine_id, decode(g.public_key, 'hex') AS public_key, g.signed_at, g.report_interval_seconds, g.failed_attempts
    FROM unnest(
        :machine_ids::uuid[],
        :public_keys::text[],
        :signed_at::bigint[],
        :report_intervals::integer[],
        :failed_attempts::integer[]
    ) AS g (machine_id, public_key, signed_at, report_interval_seconds, failed_attempts)
    WHERE abs(extract(epoch FROM clock_timestamp()) * 1000 - g.signed_at) <= :stale_seconds::float8 * 1000
        AND (SELECT max(version) FROM schema_migrations) = :schema_version
    ORDER BY g.machine_id
),
free_heartbeats AS (
    SELECT machine_id
    FROM machine_agent_heartbeat
    WHERE :skip_locked::boolean AND machine_id = ANY (:machine_ids::uuid[])
    ORDER BY machine_id
    FOR UPDATE SKIP LOCKED
),
free_agents AS (
    SELECT a.machine_id
    FROM machine_agent_started a
    WHERE :skip_locked::boolean AND a.machine_id = ANY (:machine_ids::uuid[])
        AND NOT EXISTS (SELECT 1 FROM machine_agent_heartbeat x WHERE x.machine_id = a.machine_id)
    ORDER BY a.machine_id
    FOR SHARE OF a SKIP LOCKED
),
free_rows AS (
    SELECT machine_id, public_key, signed_at, report_interval_seconds, failed_attempts
    FROM input_rows
    WHERE NOT :skip_locked::boolean
        OR machine_id IN (SELECT machine_id FROM free_heartbeats UNION ALL SELECT machine_id FROM free_agents)
),
renewed AS (
    UPDATE machine_agent_heartbeat h
    SET
        agent_heartbeat_at = clock_timestamp(),
        agent_signed_at = n.signed_at,
        report_interval_seconds = n.report_interval_seconds,
        failed_attempts = n.failed_attempts,
        padding = NULL
    FROM free_rows n
    JOIN machine_agent_started a ON a.machine_id = n.machine_id
    WHERE h.machine_id = n.machine_id AND h.agent_signed_at < n.signed_at AND a.agent_public_key = n.public_key
    RETURNING h.machine_id, h.agent_heartbeat_at
),
first AS (
    INSERT INTO machine_agent_heartbeat AS h
        (machine_id, agent_heartbeat_at, agent_signed_at, report_interval_seconds, failed_attempts)
    SELECT a.machine_id, clock_timestamp(), n.signed_at, n.report_interval_seconds, n.failed_attempts
    FROM free_rows n
    JOIN machine_agent_started a ON a.machine_id = n.machine_id
    WHERE a.agent_public_key = n.public_key
        AND (SELECT x.machine_id FROM machine_agent_heartbeat x WHERE x.machine_id = n.machine_id) IS NULL
    ORDER BY a.machine_id
    FOR SHARE OF a
    ON CONFLICT (machine_id) DO UPDATE
    SET
        agent_heartbeat_at = excluded.agent_heartbeat_at,
        agent_signed_at = excluded.agent_signed_at,
        report_interval_seconds = excluded.report_interval_seconds,
        failed_attempts = excluded.failed_attempts,
        padding = NULL
    WHERE h.agent_signed_at < excluded.agent_signed_at
    RETURNING h.machine_id, h.agent_heartbeat_at
)
SELECT
    b.machine_id,
    (extract(epoch FROM b.agent_heartbeat_at) * 1000)::bigint AS time,
    q.generation,
    q.os_installation_request_raw
FROM (SELECT * FROM renewed UNION ALL SELECT * FROM first) AS b
LEFT JOIN machine_os_installation_request q
    ON q.machine_id = b.machine_id
    AND NOT EXISTS (
        SELECT 1
        FROM machine_os_installation_report r
        WHERE r.machine_id = q.machine_id AND r.generation = q.generation
    )
UNION ALL
SELECT n.machine_id, NULL, NULL, NULL
FROM input_rows n
JOIN machine_agent_started a ON a.machine_id = n.machine_id AND a.agent_public_key = n.public_key
WHERE :skip_locked::boolean AND n.machine_id NOT IN (SELECT machine_id FROM free_rows);

-- name: lock_agent
-- Keep heartbeats out until this transaction ends, and wait for those in progress, so that the next statement sees
-- them. Runs after lock_due_rows.
SELECT machine_id FROM machine_agent_started WHERE machine_id = :machine_id FOR UPDATE;

-- name: machines_with_locked_due_rows
-- Lock the due rows of these machines as lock_due_rows does, but skip those that others hold, and return the machines
-- whose rows were skipped.
WITH locked AS (
    SELECT machine_id, process
    FROM machine_due
    WHERE machine_id = ANY (:machine_ids::uuid[])
    ORDER BY machine_id, process
    FOR UPDATE SKIP LOCKED
)
SELECT DISTINCT d.machine_id
FROM machine_due d
WHERE d.machine_id = ANY (:machine_ids::uuid[])
    AND NOT EXISTS (SELECT 1 FROM locked l WHERE l.machine_id = d.machine_id AND l.process = d.process);

-- name: write_hardware_reports
-- The hardware of these machines, and the sums that the inventory reads.
INSERT INTO machine_hardware_report
    (machine_id, hardware_report_raw, reported_at, hardware_threads, memory_bytes, disks, disk_bytes)
SELECT n.machine_id, decode(n.raw, 'hex'), clock_timestamp(), n.hardware_threads, n.memory_bytes, n.disks, n.disk_bytes
FROM unnest(
    :machine_ids::uuid[],
    :raws::text[],
    :hardware_threads::bigint[],
    :memory_bytes::bigint[],
    :disks::bigint[],
    :disk_bytes::bigint[]
) AS n (machine_id, raw, hardware_threads, memory_bytes, disks, disk_bytes)
ORDER BY n.machine_id
ON CONFLICT (machine_id) DO UPDATE
SET
    hardware_report_raw = excluded.hardware_report_raw,
    reported_at = excluded.reported_at,
    hardware_threads = excluded.hardware_threads,
    memory_bytes = excluded.memory_bytes,
    disks = excluded.disks,
    disk_bytes = excluded.disk_bytes;

-- name: write_installation_reports
-- The outcomes of installations. Runs between lock_due_rows and reschedule, because after a success the machine needs
-- nothing. No row for a machine: the generation is lower than the last reported one, or was never requested. A repeated
-- report is accepted again; a success is never overwritten by an error of the same generation.
WITH accepted AS (
    SELECT q.machine_id, n.generation, n.result, decode(n.raw, 'hex') AS raw
    FROM unnest(:machine_ids::uuid[], :generations::bigint[], :results::text[], :raws::text[])
        AS n (machine_id, generation, result, raw)
    JOIN machine_os_installation_request q ON q.machine_id = n.machine_id
    LEFT JOIN machine_os_installation_report r ON r.machine_id = q.machine_id
    WHERE n.generation BETWEEN coalesce(r.generation, n.generation) AND q.generation
),
report_rows AS (
    INSERT INTO machine_os_installation_report AS r
        (machine_id, generation, os_installation_result, os_installation_report_raw, reported_at)
    SELECT machine_id, generation, result, raw, clock_timestamp() FROM accepted
    ON CONFLICT (machine_id) DO UPDATE
    SET
        generation = excluded.generation,
        os_installation_result = excluded.os_installation_result,
        os_installation_report_raw = excluded.os_installation_report_raw,
        reported_at = excluded.reported_at
    WHERE r.generation < excluded.generation OR r.os_installation_result = 'Error'
)
SELECT machine_id FROM accepted;
