-- Ticks: what the invocations of the loops did. They are written by close_session.

-- name: last_ticks
-- The last tick of each loop at each provider. Steps through the index from one loop and provider to the next, so that
-- it reads as many rows as there are, and not all ticks of two weeks.
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
    t.loop,
    t.provider,
    t.began_at,
    t.ended_at,
    extract(epoch FROM t.ended_at - t.began_at)::float8 AS seconds,
    t.outcome,
    t.cause,
    t.counts,
    t.settings_hash,
    t.code_version,
    t.runtime_info
FROM loops l
CROSS JOIN LATERAL (
    SELECT * FROM ticks x WHERE x.loop = l.loop AND x.provider = l.provider ORDER BY x.began_at DESC LIMIT 1
) AS t
ORDER BY t.provider, t.loop;
