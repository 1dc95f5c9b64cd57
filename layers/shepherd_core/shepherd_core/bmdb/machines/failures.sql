-- What fails across the fleet, for operators.

-- name: failures
-- What fails now, by loop and kind of cause (the name with which a cause begins), the most frequent first: machines whose
-- last work failed and whose agent has not reported since, machines in quarantine, capacity under a penalty. Reads all
-- machines that fail.
WITH failures AS (
    SELECT
        b.process AS loop,
        p.provider,
        p.provider_location AS location,
        b.cause,
        b.machine_id::text AS example,
        {failed_at} AS failed_at
    FROM work_backoff b
    JOIN machine_provided p ON p.machine_id = b.machine_id
    LEFT JOIN machine_agent_heartbeat h ON h.machine_id = b.machine_id
    WHERE {fails}
    UNION ALL
    SELECT 'quarantine', p.provider, p.provider_location, z.cause, z.machine_id::text, z.quarantined_at
    FROM machine_quarantine z
    JOIN machine_provided p ON p.machine_id = z.machine_id
    UNION ALL
    SELECT 'provisioner', provider, NULL, cause, capacity_id, NULL
    FROM capacity_penalties
    WHERE until > statement_timestamp()
),
ranked AS (
    SELECT *, row_number() OVER (PARTITION BY loop, kind ORDER BY failed_at DESC NULLS LAST, example) AS rank
    FROM (SELECT *, left(split_part(cause, ':', 1), 100) AS kind FROM failures) AS named
    WHERE (:provider::text IS NULL OR provider = :provider) AND (:location::text IS NULL OR location = :location)
)
SELECT
    loop,
    kind,
    count(*) AS count,
    array_agg(example ORDER BY rank) FILTER (WHERE rank <= 3) AS examples,
    min(cause) FILTER (WHERE rank = 1) AS cause,
    max(failed_at) AS failed_at
FROM ranked
GROUP BY loop, kind
ORDER BY 3 DESC, loop, kind;
