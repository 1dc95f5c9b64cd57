-- Ticks: what the invocations of the loops did. They are written by close_session.

-- name: last_ticks
-- The last :each ticks of each loop at each provider, newest first, without those that left the work to a concurrent
-- invocation. Steps through the index from one loop and provider to
-- the next, so that it reads no more rows than it returns, and not all ticks of two weeks.
WITH RECURSIVE loops AS (
    (SELECT loop, provider FROM ticks ORDER BY loop, provider LIMIT 1)
    UNION ALL
    SELECT n.loop, n.provider
    FROM loops l
    CROSS JOIN LATERAL (
        SELECT t.loop, t.provider
        FROM ticks t
        WHERE (t.loop, t.provider) > (l.loop, l.provider)
        ORDER BY t.loop, t.provider
        LIMIT 1
    ) AS n
)
SELECT
    t.loop, t.provider, t.began_at, t.ended_at,
    extract(epoch FROM t.ended_at - t.began_at)::float8 AS seconds,
    t.outcome, t.kind, t.cause, t.counts, t.settings_hash, t.code_version, t.runtime_info,
    -- Of the last one alone, if it failed: the first after the last that succeeded.
    CASE WHEN t.nth = 1 AND t.outcome <> 'Succeeded' THEN (
        SELECT x.began_at
        FROM ticks x
        WHERE x.loop = t.loop AND x.provider = t.provider AND NOT x.counts ? 'left' AND x.began_at > coalesce(
            (
                SELECT y.began_at
                FROM ticks y
                WHERE y.loop = t.loop AND y.provider = t.provider AND y.outcome = 'Succeeded' AND NOT y.counts ? 'left'
                ORDER BY y.began_at DESC
                LIMIT 1
            ),
            '-infinity'
        )
        ORDER BY x.began_at
        LIMIT 1
    ) END AS failing_since,
    -- Of the last one alone, if it succeeded: by count of :lasting, the first after the last that succeeded without it.
    CASE WHEN t.nth = 1 AND t.outcome = 'Succeeded' THEN (
        SELECT coalesce(jsonb_object_agg(k.name, extract(epoch FROM t.ended_at - f.began_at)), '{}')
        FROM unnest(:lasting::text[]) AS k (name)
        CROSS JOIN LATERAL (
            SELECT x.began_at
            FROM ticks x
            WHERE x.loop = t.loop AND x.provider = t.provider AND NOT x.counts ? 'left' AND x.began_at > coalesce(
                (
                    SELECT y.began_at
                    FROM ticks y
                    WHERE y.loop = t.loop AND y.provider = t.provider AND y.outcome = 'Succeeded' AND NOT y.counts ? 'left'
                        AND coalesce((y.counts ->> k.name)::float8, 0) = 0
                    ORDER BY y.began_at DESC
                    LIMIT 1
                ),
                '-infinity'
            )
            ORDER BY x.began_at
            LIMIT 1
        ) AS f
        WHERE (t.counts ->> k.name)::float8 > 0
    ) END AS lasting
FROM loops l
CROSS JOIN LATERAL (
    SELECT x.*, row_number() OVER (ORDER BY x.began_at DESC) AS nth
    FROM ticks x
    WHERE x.loop = l.loop AND x.provider = l.provider AND NOT x.counts ? 'left'
    ORDER BY x.began_at DESC
    LIMIT :each
) AS t
ORDER BY t.provider, t.loop, t.began_at DESC;

-- name: tick_totals
-- The counts of the ticks of the last day, by loop and half hour, the half hours numbered from 0 (the oldest) to 47.
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
