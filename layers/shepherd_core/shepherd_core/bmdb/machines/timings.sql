-- How long machines take to boot, agents to start and to report.

-- name: timings
-- The median and the 99th percentile of what machines took, by provider and location, from at most :limit rows of the
-- history and :limit agents, of the last 30 days. Decommissioned machines are left out.
--
-- The history of a machine is cut after each agent start that succeeded. In such a part, the machine began to boot at the
-- end of the last recovery step, if that is none of :not_booting; without a step, at its creation, if the history reaches
-- back that far. A step that is taken after a look is recorded by the look, all others by their attempt. It was up when the
-- last agent start began. If an agent start before that did not reach it, it came up between the two: half-way is the
-- estimate, and the part counts in failed_starts. A part in which an operator held the machine back says nothing about booting:
-- a quarantine, a pause, a release that was canceled; nor does an adoption, at which the machine runs already. An agent
-- start that ends with a quarantine is no takeover.
WITH recent AS (
    SELECT
        machine_id,
        timestamp,
        process = 'ShepherdAgentStart' AND event = 'Started' AS begins,
        process = 'ShepherdAgentStart' AND event = 'Finished' AS succeeds,
        process = 'ShepherdAgentStart' AND event = 'Failed' AND split_part(failed_cause, ':', 1) = ANY(:not_up::text[])
            AS not_up,
        process = 'ShepherdRecovery' AND event = 'Finished' AS steps,
        event = 'Quarantined' AS quarantines,
        event IN ('Quarantined', 'Unquarantined', 'Adopted', 'Resumed', 'ReleaseCanceled') AS holds,
        CASE WHEN event IN ('Attempted', 'Looked') THEN step END AS step
    FROM work_history
    WHERE timestamp > statement_timestamp() - interval '30 days'
    ORDER BY timestamp DESC
    LIMIT :limit
),
numbered AS (
    SELECT
        recent.*,
        count(*) FILTER (WHERE succeeds) OVER (
            PARTITION BY machine_id ORDER BY timestamp ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS part
    FROM recent
),
stepped AS (
    SELECT
        numbered.*,
        max(timestamp) FILTER (WHERE steps) OVER (PARTITION BY machine_id, part) AS step_at
    FROM numbered
),
parts AS (
    SELECT
        machine_id,
        part,
        step_at,
        max(timestamp) FILTER (WHERE succeeds) AS started_at,
        max(timestamp) FILTER (WHERE begins) AS up_at,
        max(timestamp) FILTER (WHERE not_up AND coalesce(timestamp > step_at, true)) AS not_up_at,
        (array_agg(step ORDER BY timestamp DESC) FILTER (WHERE step IS NOT NULL AND timestamp <= step_at))[1] AS step,
        max(timestamp) FILTER (WHERE quarantines) AS quarantined_at,
        bool_or(holds) AS held
    FROM stepped
    GROUP BY machine_id, part, step_at
),
located AS (
    SELECT
        p.provider,
        p.provider_location AS location,
        x.started_at,
        x.up_at,
        x.not_up_at,
        CASE
            WHEN x.held THEN NULL
            WHEN x.step_at IS NOT NULL THEN x.step
            WHEN x.part = 0 AND m.machine_created_at > (SELECT min(timestamp) FROM recent) - interval '1 hour'
                THEN 'creation'
        END AS after,
        coalesce(x.step_at, m.machine_created_at) AS down_at,
        CASE
            WHEN b.rebooted_at BETWEEN x.step_at - interval '1 second' AND x.step_at + interval '1 second'
                THEN extract(epoch FROM b.boot_wait_until - b.rebooted_at)
        END AS boot_wait_seconds
    FROM parts x
    JOIN machine_provided p ON p.machine_id = x.machine_id
    JOIN machines m ON m.machine_id = x.machine_id
    LEFT JOIN machine_rebooted b ON b.machine_id = x.machine_id
    WHERE x.started_at IS NOT NULL AND x.up_at IS NOT NULL AND coalesce(x.quarantined_at < x.up_at, true)
),
durations AS (
    SELECT
        provider,
        location,
        'boot' AS what,
        after,
        CASE WHEN not_up_at IS NULL THEN up_at - down_at ELSE (up_at - down_at + (not_up_at - down_at)) / 2 END AS took,
        not_up_at IS NOT NULL AS start_failed,
        boot_wait_seconds
    FROM located
    WHERE after IS NOT NULL AND after <> ALL(:not_booting::text[])
    UNION ALL
    SELECT provider, location, 'return', after, started_at - down_at, false, NULL
    FROM located
    WHERE after IS NOT NULL AND after <> 'creation'
    UNION ALL
    SELECT provider, location, 'takeover', NULL, started_at - up_at, false, NULL
    FROM located
    UNION ALL
    SELECT p.provider, p.provider_location, 'first heartbeat', NULL, h.first_heartbeat_at - a.agent_started_at, false, NULL
    FROM (
        SELECT machine_id, agent_started_at
        FROM machine_agent_started
        WHERE agent_started_at > statement_timestamp() - interval '30 days'
        ORDER BY agent_started_at DESC
        LIMIT :limit
    ) AS a
    JOIN machine_agent_heartbeat h ON h.machine_id = a.machine_id AND h.first_heartbeat_at >= a.agent_started_at
    JOIN machine_provided p ON p.machine_id = a.machine_id
)
SELECT
    d.provider,
    d.location,
    d.what,
    d.after,
    count(*) AS samples,
    count(*) FILTER (WHERE d.start_failed) AS failed_starts,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM d.took)::float8) AS p50,
    percentile_disc(0.99) WITHIN GROUP (ORDER BY extract(epoch FROM d.took)::float8) AS p99,
    max(d.boot_wait_seconds)::float8 AS boot_wait_seconds,
    max(y.startup_timeout_seconds) AS startup_timeout_seconds,
    max(y.grace_seconds) AS grace_seconds
FROM durations d
LEFT JOIN recovery_policy y ON y.provider = d.provider
GROUP BY d.provider, d.location, d.what, d.after
ORDER BY d.provider, coalesce(d.location, ''), d.what, coalesce(d.after, '');
