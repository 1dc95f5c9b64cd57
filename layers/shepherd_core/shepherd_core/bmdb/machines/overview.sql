-- The fleet at a glance, for operators. Each page of it has to stay cheap in a large fleet, because it is read again and
-- again.

-- name: fleet_counts
-- The machines by provider, location, state and age of the last heartbeat. Reads all machines, once.
--
-- The states are those of count_machines, from the tables instead of machine_eligibility, which also evaluates backoff,
-- work and pauses of every machine and takes five times as long; a test holds the two together. age_class is the number
-- of :ages (seconds, in descending order) that the last heartbeat is not older than; null: the machine does not report.
WITH policies AS (
    SELECT
        provider,
        statement_timestamp() - heartbeat_timeout_seconds * interval '1 second' AS reported_after,
        statement_timestamp() - startup_timeout_seconds * interval '1 second' AS started_after
    FROM recovery_policy
),
bounds AS (
    SELECT array_agg(statement_timestamp() - x.age * interval '1 second' ORDER BY x.age DESC) AS ages
    FROM unnest(:ages::float8[]) AS x (age)
),
installed AS (
    SELECT q.machine_id
    FROM machine_os_installation_request q
    JOIN machine_os_installation_report r ON r.machine_id = q.machine_id AND r.generation = q.generation
    WHERE r.os_installation_result = 'Success'
)
SELECT
    p.provider,
    p.provider_location AS location,
    CASE
        WHEN z.machine_id IS NOT NULL THEN 'quarantined'
        WHEN i.machine_id IS NOT NULL THEN 'installed'
        WHEN a.machine_id IS NULL THEN 'needs_agent'
        WHEN coalesce(h.agent_heartbeat_at, a.agent_started_at)
            <= CASE WHEN h.machine_id IS NULL THEN y.started_after ELSE y.reported_after END THEN 'unhealthy'
        WHEN h.machine_id IS NOT NULL THEN 'running'
        ELSE 'starting'
    END AS state,
    CASE WHEN z.machine_id IS NULL AND i.machine_id IS NULL THEN width_bucket(h.agent_heartbeat_at, b.ages) END
        AS age_class,
    count(*) AS machines
FROM machine_provided p
CROSS JOIN bounds b
LEFT JOIN machine_agent_started a ON a.machine_id = p.machine_id
LEFT JOIN machine_agent_heartbeat h ON h.machine_id = a.machine_id AND h.agent_heartbeat_at >= a.agent_started_at
LEFT JOIN machine_quarantine z ON z.machine_id = p.machine_id
LEFT JOIN installed i ON i.machine_id = p.machine_id
LEFT JOIN policies y ON y.provider = p.provider
GROUP BY 1, 2, 3, 4
UNION ALL
SELECT provider, NULL, 'creating', NULL, count(*) FROM machine_creation_intent GROUP BY provider
ORDER BY 1, 2, 3, 4;

-- name: fleet_notices
-- What holds machines back, and since when: suspensions, SSH outages, overrides, places that wait for the limit, pauses
-- (those of single machines by owner and reason) and quarantined machines by kind of cause. machines is null where it is
-- not known. The row now has the time of all.
SELECT 'now' AS kind, NULL AS provider, NULL AS location, NULL AS process, NULL::bigint AS machines, NULL AS owner,
    NULL AS reason, statement_timestamp() AS since, NULL::timestamptz AS until
UNION ALL
SELECT 'suspension', provider, location, NULL, NULL, NULL, reason, suspended_at, NULL
FROM recovery_suspensions
WHERE ended_at IS NULL
UNION ALL
SELECT 'ssh_outage', provider, location, NULL, NULL, NULL, reason, began_at, NULL FROM ssh_outages WHERE ended_at IS NULL
UNION ALL
SELECT 'override', provider, location, NULL, machines - used, owner, reason, created_at, expires_at
FROM recovery_overrides
WHERE expires_at > statement_timestamp()
UNION ALL
SELECT 'limit', provider, NULL, NULL, waiting, NULL, max_machines::text, waiting_seen_at, NULL
FROM provisioner_lock
WHERE waiting > 0 AND waiting_seen_at > statement_timestamp() - interval '1 day'
UNION ALL
SELECT 'pause', provider, NULL, process, nullif(count(machine_id), 0), owner, reason, min(created_at), min(expires_at)
FROM pauses_in_force
GROUP BY provider, process, machine_id IS NULL, owner, reason
UNION ALL
SELECT 'quarantine', NULL, NULL, NULL, count(*), NULL, split_part(cause, ':', 1), min(quarantined_at), NULL
FROM machine_quarantine
GROUP BY split_part(cause, ':', 1)
ORDER BY 1, 8
LIMIT :limit;

-- name: tick_totals
-- What the ticks of the last day counted, by loop and half hour, the half hours numbered from 0 (the oldest) to 47.
SELECT
    loop,
    least(47, floor(extract(epoch FROM began_at - (statement_timestamp() - interval '1 day')) / 1800))::integer AS half_hour,
    coalesce(sum((counts ->> 'created')::float8), 0) AS created,
    coalesce(sum((counts ->> 'finished')::float8), 0) AS finished,
    coalesce(sum((counts ->> 'failed')::float8), 0) AS failed,
    count(*) FILTER (WHERE outcome <> 'Succeeded') AS lost
FROM ticks
WHERE began_at > statement_timestamp() - interval '1 day'
GROUP BY 1, 2
ORDER BY 2, 1;
