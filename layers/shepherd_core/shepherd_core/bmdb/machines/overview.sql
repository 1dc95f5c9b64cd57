-- The whole fleet, for operators.

-- name: fleet_counts
-- The number of machines in each state at each location, and how many of them are being worked on, backing off or paused.
-- Reads all machines. A machine that is not provided yet counts for the provider that is to create it. age_class, of machines
-- that report and need it: how many of :ages (seconds) are greater than the age of the last heartbeat; ages counts each class.
WITH known AS (
    SELECT machine_id, provider, process, state, location, CASE WHEN reported THEN last_heartbeat_at END AS heartbeat_at
    FROM machine_need
    UNION ALL
    SELECT machine_id, provider, NULL, 'creating', NULL, NULL FROM machine_creation_intent
),
-- What pauses each machine by itself.
paused AS (
    SELECT machine_id, array_agg(process) AS processes, array_agg(provider) AS providers
    FROM pause_scopes
    WHERE machine_id IS NOT NULL
    GROUP BY machine_id
),
-- Pauses of more than a machine: read once, and not for each row of the result.
wide AS MATERIALIZED (
    SELECT process, provider FROM pause_scopes WHERE machine_id IS NULL
),
-- The times that divide the classes of age.
bounds AS (
    SELECT array_agg(statement_timestamp() - x.age * interval '1 second' ORDER BY x.age DESC) AS ages
    FROM unnest(:ages::float8[]) AS x (age)
),
-- A row for each combination that occurs.
counted AS (
    SELECT
        k.provider, k.location, k.process, k.state,
        CASE WHEN k.process IS NOT NULL THEN width_bucket(k.heartbeat_at, (SELECT ages FROM bounds)) END AS age_class,
        count(*) AS machines,
        count(*) FILTER (WHERE k.machine_id IN (SELECT machine_id FROM work)) AS being_worked_on,
        count(*) FILTER (
            WHERE (k.machine_id, k.process) IN (
                SELECT machine_id, process FROM work_backoff WHERE until > statement_timestamp()
            )
        ) AS backing_off,
        count(*) FILTER (
            WHERE u.machine_id IS NOT NULL
                AND EXISTS (
                    SELECT 1
                    FROM unnest(u.processes, u.providers) AS x (process, provider)
                    WHERE x.process IN ('', k.process) AND x.provider IN ('', k.provider)
                )
        ) AS paused
    FROM known k
    LEFT JOIN paused u ON u.machine_id = k.machine_id
    GROUP BY 1, 2, 3, 4, 5
)
SELECT
    provider, location, state,
    coalesce(jsonb_object_agg(age_class, machines) FILTER (WHERE age_class IS NOT NULL), '{}') AS ages,
    sum(machines)::bigint AS machines,
    sum(being_worked_on)::bigint AS being_worked_on,
    sum(backing_off)::bigint AS backing_off,
    sum(
        CASE
            WHEN EXISTS (
                SELECT 1
                FROM wide x
                WHERE x.process IN ('', c.process) AND x.provider IN ('', c.provider)
            ) THEN machines
            ELSE paused
        END
    )::bigint AS paused
FROM counted c
GROUP BY 1, 2, 3
ORDER BY 1, 2, 3;

-- name: locations
-- The names of the locations where machines are, for who mistyped one.
SELECT DISTINCT provider_location FROM machine_provided WHERE provider_location <> '';

-- name: fleet_notices
-- What holds machines back, and since when: small budgets of recovery, places that wait for the limit, pauses
-- (those of single machines by owner and reason) and quarantined machines by kind. machines is null where it is
-- not known. The row now has the time of the statement, and comes first. Budgets, then pauses of single machines come last,
-- because there may be more than :limit of them.
SELECT *
FROM (
    SELECT 'now' AS kind, NULL AS provider, NULL AS location, NULL AS process, NULL::bigint AS machines, NULL AS owner,
        NULL AS reason, statement_timestamp() AS since, NULL::timestamptz AS until, NULL::text[] AS with_labels
    UNION ALL
    SELECT 'budget', provider, location, NULL, per_hour, NULL, reason, began_at, NULL, NULL FROM recovery_budgets
    UNION ALL
    SELECT 'limit', provider, NULL, NULL, waiting, NULL, max_machines::text, waiting_seen_at, NULL, NULL
    FROM provisioner_lock
    WHERE {waits_for_limit}
    UNION ALL
    SELECT
        'pause', provider, location, process, nullif(count(machine_id), 0), owner, reason,
        min(created_at), min(expires_at), with_labels
    FROM pauses_in_force
    GROUP BY provider, location, process, machine_id IS NULL, owner, reason, with_labels
    UNION ALL
    SELECT 'quarantine', NULL, NULL, NULL, count(*), NULL, kind, min(quarantined_at), NULL, NULL
    FROM machine_quarantine
    GROUP BY kind
) AS n
ORDER BY n.kind <> 'now', n.kind = 'pause' AND n.machines IS NOT NULL, n.kind = 'budget', n.since
LIMIT :limit;

-- name: failures
-- What fails now, by loop and kind, the most frequent first: machines whose
-- last work failed and whose agent has not reported since, machines that wait for the budget of recovery (by what the last
-- look found), machines in quarantine or recovered often, machines that failed for good at their provider, capacity under
-- a penalty. Reads all machines.
WITH failures AS (
    SELECT
        b.process AS loop, p.provider, p.provider_location AS location, b.kind, b.cause,
        b.machine_id::text AS example,
        {failed_at} AS failed_at
    FROM work_backoff b
    JOIN machine_provided p ON p.machine_id = b.machine_id
    LEFT JOIN machine_agent_heartbeat h ON h.machine_id = b.machine_id
    WHERE {fails}
    UNION ALL
    SELECT 'ShepherdRecovery', e.provider, e.provider_location, x.kind, x.failed_cause, e.machine_id::text, x.timestamp
    FROM machine_provided e
    CROSS JOIN LATERAL ({last_look}) AS x
    WHERE x.kind IS NOT NULL
    UNION ALL
    SELECT 'quarantine', p.provider, p.provider_location, {quarantine_kind}, z.cause, z.machine_id::text, z.quarantined_at
    FROM machine_quarantine z
    JOIN machine_provided p ON p.machine_id = z.machine_id
    LEFT JOIN machine_agent_heartbeat h ON h.machine_id = z.machine_id
    UNION ALL
    SELECT
        'ShepherdRecovery',
        p.provider, p.provider_location,
        'recovered-often',
        r.times || ' times in the last day',
        r.machine_id::text,
        r.last_at
    FROM ({recovered_often}) AS r
    JOIN machine_provided p ON p.machine_id = r.machine_id
    UNION ALL
    SELECT
        'provider', p.provider, p.provider_location, 'provisioning-failed', coalesce(p.provider_failure, p.provider_status),
        p.machine_id::text, NULL
    FROM machine_need n
    JOIN machine_provided p ON p.machine_id = n.machine_id
    WHERE p.provider_status = 'ProvisioningFailedPermanent' AND n.state = 'failed'
    UNION ALL
    SELECT 'provisioner', provider, NULL, kind, cause, capacity_id, NULL
    FROM capacity_penalties
    WHERE until > statement_timestamp()
),
-- The latest of each kind are its examples.
ranked AS (
    SELECT *, row_number() OVER (PARTITION BY loop, kind ORDER BY failed_at DESC NULLS LAST, example) AS rank
    FROM failures
    WHERE (:provider::text IS NULL OR provider = :provider) AND (:location::text IS NULL OR location = :location)
)
SELECT
    loop, kind,
    count(*) AS count,
    array_agg(example ORDER BY rank) FILTER (WHERE rank <= 3) AS examples,
    min(cause) FILTER (WHERE rank = 1) AS cause,
    max(failed_at) AS failed_at
FROM ranked
GROUP BY loop, kind
ORDER BY 3 DESC, loop, kind;

-- name: unsteady
-- How many machines of each provider are recovered often, and how many in quarantine report again; since when the first of
-- these is there.
SELECT
    p.provider,
    count(x.often) AS recovered_often,
    count(*) FILTER (WHERE x.kind = 'reports-again') AS reports_again,
    min(x.quarantined_at) AS quarantined_since
FROM (
    SELECT machine_id, machine_id AS often, NULL AS kind, NULL AS quarantined_at FROM ({recovered_often}) AS recovered
    UNION ALL
    SELECT z.machine_id, NULL, {quarantine_kind}, z.quarantined_at
    FROM machine_quarantine z
    LEFT JOIN machine_agent_heartbeat h ON h.machine_id = z.machine_id
) AS x
JOIN machine_provided p ON p.machine_id = x.machine_id
GROUP BY p.provider
ORDER BY p.provider;
