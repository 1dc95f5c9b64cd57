-- The budget of recovery: the figures of a fleet, the steps that count, and what operators are shown.

-- name: read_fleet
-- The fleet of the provider by its facts, in one reading: a row for each location ('': machines without one), see
-- LocationFleet; one row in any case, unless the session has expired.
WITH {session},
-- The timeouts that the Recoverer recorded, as times.
policy AS (
    SELECT
        startup_timeout_seconds, heartbeat_timeout_seconds,
        statement_timestamp() - heartbeat_timeout_seconds * interval '1 second' AS fresh_since,
        statement_timestamp() - heartbeat_timeout_seconds / 2 * interval '1 second' AS heard_since
    FROM recovery_policy
    WHERE provider = :provider
),
-- fresh: its agent reported within the policy's timeout, the shortest there is, so it is healthy: it is only counted.
-- OFFSET 0: computed once for each machine.
counted AS MATERIALIZED (
    SELECT
        location,
        count(*) FILTER (WHERE fresh) AS fresh,
        count(*) FILTER (WHERE heard) AS heard,
        count(*) FILTER (WHERE heard AND failed_attempts > 0) AS losing,
        array_agg(ROW(machine_id, last_heartbeat_at, report_interval_seconds)) FILTER (WHERE NOT fresh) AS others
    FROM (
        SELECT
            n.machine_id, n.location, n.last_heartbeat_at, n.report_interval_seconds, n.failed_attempts,
            n.reported AND n.last_heartbeat_at > (SELECT heard_since FROM policy) AS heard,
            coalesce(n.reported AND n.last_heartbeat_at > (SELECT fresh_since FROM policy), false) AS fresh
        FROM machine_need n
        WHERE n.provider = :provider AND n.process IS NOT NULL
        OFFSET 0
    ) AS m
    GROUP BY location
),
-- watched: its agent was started. dark_at: when that is unhealthy, or when the machine should have had one again.
others AS MATERIALIZED (
    SELECT
        o.machine_id,
        coalesce(c.location, '') AS location,
        o.last_heartbeat_at IS NOT NULL AS watched,
        o.report_interval_seconds IS NOT NULL AS reported,
        coalesce(o.last_heartbeat_at + {agent_timeout}, n.back_by) AS dark_at
    FROM counted c
    CROSS JOIN LATERAL unnest(c.others)
        AS o (machine_id uuid, last_heartbeat_at timestamptz, report_interval_seconds integer)
    LEFT JOIN policy ON true
    LEFT JOIN LATERAL (
        SELECT back_by FROM machine_need WHERE machine_id = o.machine_id AND o.last_heartbeat_at IS NULL LIMIT 1
    ) AS n ON true
),
-- Unhealthy machines, and those that did not come back though an agent start was tried; not the paused ones. alive: the
-- last look of the last hour found it alive.
dark AS MATERIALIZED (
    SELECT
        d.machine_id, d.location, d.watched, d.dark_at,
        d.watched AND coalesce(
            (
                SELECT x.step IS NOT NULL
                FROM work_history x
                WHERE x.machine_id = d.machine_id
                    AND x.process = 'ShepherdRecovery'
                    AND x.event = 'Looked'
                    AND x.timestamp > statement_timestamp() - interval '1 hour'
                ORDER BY x.timestamp DESC
                LIMIT 1
            ),
            false
        ) AS alive,
        f.fault
    FROM others d
    LEFT JOIN work_backoff f
        ON f.machine_id = d.machine_id
        AND f.process = 'ShepherdAgentStart'
        AND f.last_interval_seconds IS NOT NULL
        AND NOT d.watched
    WHERE d.dark_at <= statement_timestamp()
        AND (d.watched OR f.fault IN ('machine', 'unreached'))
        AND d.machine_id NOT IN (
            SELECT x.machine_id
            FROM pause_scopes x
            WHERE x.machine_id IS NOT NULL AND x.process IN ('', 'ShepherdRecovery') AND x.provider IN ('', :provider)
        )
),
-- Machines that failed for good at the provider, if there are steps for them. They count as no part of the fleet: what their
-- provider says of them tells nothing about the way to the others.
failed AS MATERIALIZED (
    SELECT p.machine_id, coalesce(p.provider_location, '') AS location, e.due_at AS dark_at
    FROM machine_provided p
    CROSS JOIN LATERAL (
        SELECT * FROM machine_eligibility
        WHERE machine_id = p.machine_id AND process = :process::text AND ready AND overdue
        LIMIT 1
    ) AS e
    WHERE p.provider = :provider AND p.provider_status = 'ProvisioningFailedPermanent'
),
-- In the last six hours, or of them in the last hour (recently).
interrupted AS MATERIALIZED (
    SELECT
        r.machine_id,
        coalesce(n.location, '') AS location,
        n.process IS NOT DISTINCT FROM 'ShepherdRecovery' AS watched,
        n.state = 'failed' AS failed,
        r.rebooted_at > statement_timestamp() - interval '1 hour' AS recently
    FROM machine_rebooted r
    CROSS JOIN LATERAL (SELECT * FROM machine_need WHERE machine_id = r.machine_id LIMIT 1) AS n
    WHERE r.rebooted_at > statement_timestamp() - interval '6 hours' AND n.provider = :provider
),
-- Not found alive, or interrupted a short while ago.
dead AS (
    SELECT machine_id, location, watched FROM dark WHERE NOT alive
    UNION
    SELECT machine_id, location, watched FROM interrupted WHERE NOT failed
),
-- They should be back, and SSH does not reach them.
unreached AS (
    SELECT machine_id, location FROM dark WHERE fault = 'unreached' AND dark_at > statement_timestamp() - interval '6 hours'
),
-- With them count the machines beside them that were interrupted in the last hour and have no agent yet.
awaited AS (
    SELECT machine_id, location FROM interrupted
    WHERE recently AND NOT watched AND NOT failed AND location IN (SELECT location FROM unreached)
),
-- If there are any: machines on which SSH started an agent in the last hour.
reached AS (
    SELECT coalesce(p.provider_location, '') AS location
    FROM machine_agent_started a
    JOIN machine_provided p ON p.machine_id = a.machine_id
    WHERE a.agent_started_at > statement_timestamp() - interval '1 hour'
        AND p.provider = :provider
        AND EXISTS (SELECT 1 FROM unreached)
),
-- The sums by location: each row counts for the columns in which it has a one.
figures AS (
    SELECT
        location,
        sum(fleet)::bigint AS fleet,
        sum(reporting)::bigint AS reporting,
        sum(heard)::bigint AS heard,
        sum(losing)::bigint AS losing,
        sum(dead)::bigint AS dead,
        sum(steps)::bigint AS steps,
        sum(steps_six_hours)::bigint AS steps_six_hours,
        sum(unreached)::bigint AS unreached,
        sum(reached)::bigint AS reached
    FROM (
        SELECT coalesce(location, ''), fresh, fresh, heard, losing, 0, 0, 0, 0, 0 FROM counted
        UNION ALL
        SELECT location, watched::integer, (reported AND dark_at > statement_timestamp())::integer, 0, 0, 0, 0, 0, 0, 0 FROM others
        UNION ALL
        SELECT location, (NOT watched)::integer, 0, 0, 0, 1, 0, 0, 0, 0 FROM dead
        UNION ALL
        SELECT location, 0, 0, 0, 0, 0, recently::integer, 1, 0, 0 FROM interrupted
        UNION ALL
        SELECT location, 0, 0, 0, 0, 0, 0, 0, 1, 0 FROM (SELECT * FROM unreached UNION SELECT * FROM awaited) AS u
        UNION ALL
        SELECT location, 0, 0, 0, 0, 0, 0, 0, 0, 1 FROM reached
        UNION ALL
        SELECT location, 0, 0, 0, 0, 0, 0, 0, 0, 0 FROM failed
    ) AS x (location, fleet, reporting, heard, losing, dead, steps, steps_six_hours, unreached, reached)
    GROUP BY location
),
-- Without what keeps a machine back; a claim looks at each of them again. Of each location the longest waiting come
-- first, so that one with thousands of machines does not hide the others.
candidates AS (
    SELECT
        location,
        array_agg(machine_id ORDER BY due_at, machine_id) AS ids,
        array_agg(extract(epoch FROM statement_timestamp() - due_at)::float8 ORDER BY due_at, machine_id) AS due_seconds,
        array_agg(suspect ORDER BY due_at, machine_id) AS suspects
    FROM (
        SELECT
            d.machine_id, d.location,
            greatest(d.dark_at, b.until) AS due_at,
            coalesce(b.deaths > 0, false) AS suspect,
            row_number() OVER (PARTITION BY d.location ORDER BY greatest(d.dark_at, b.until), d.machine_id) AS place
        FROM (SELECT machine_id, location, dark_at FROM dark UNION ALL SELECT * FROM failed) AS d
        LEFT JOIN work_backoff b ON b.machine_id = d.machine_id AND b.process = 'ShepherdRecovery'
        LEFT JOIN work w ON w.machine_id = d.machine_id
        WHERE w.machine_id IS NULL
            AND coalesce(b.until <= statement_timestamp(), true)
            AND NOT EXISTS ({wide_pauses})
        ORDER BY place, due_at, d.machine_id
        LIMIT :limit
    ) AS x
    GROUP BY location
)
SELECT
    EXISTS (
        SELECT 1
        FROM ticks
        WHERE began_at BETWEEN statement_timestamp() - interval '7 minutes' AND statement_timestamp() - interval '2 minutes'
    ) AS settled,
    EXISTS (SELECT 1 FROM recovery_budgets WHERE provider = :provider) AS limited,
    EXISTS (
        SELECT 1
        FROM recovery_budgets
        WHERE provider = :provider AND brake = 'silent' AND seen_at > statement_timestamp() - interval '2 minutes'
    ) AS silent,
    (
        SELECT count(*)
        FROM machine_quarantine z
        JOIN machine_provided p ON p.machine_id = z.machine_id
        WHERE p.provider = :provider
    ) AS quarantined,
    (
        SELECT count(DISTINCT b.machine_id)
        FROM work_backoff b
        JOIN machine_provided p ON p.machine_id = b.machine_id
        WHERE b.fault = 'access' AND p.provider = :provider
    ) AS no_access,
    f.*,
    c.ids, c.due_seconds, c.suspects
FROM session
LEFT JOIN figures f ON true
LEFT JOIN candidates c ON c.location = f.location;

-- name: set_budgets
-- Show operators these budgets of the provider, and no others. began_at stays while the brake is the same, seen_at while it
-- only lasts. May run twice.
WITH {locked_session},
-- Those that are smaller than usual now.
budgets AS (
    SELECT g.*
    FROM locked_session
    CROSS JOIN jsonb_to_recordset(:rows::jsonb) AS g (location text, per_hour bigint, brake text, reason text, lasts boolean)
),
-- As usual again.
budgets_deleted AS (
    DELETE FROM recovery_budgets
    WHERE provider = :provider
        AND location NOT IN (SELECT location FROM budgets)
        AND EXISTS (SELECT 1 FROM locked_session)
),
-- In the order of their keys, so that two writers never wait for each other.
budget_rows AS (
    INSERT INTO recovery_budgets AS o (provider, location, per_hour, brake, reason, seen_at)
    SELECT :provider, location, per_hour, brake, reason, CASE WHEN lasts THEN '-infinity' ELSE clock_timestamp() END
    FROM budgets
    ORDER BY location
    ON CONFLICT (provider, location) DO UPDATE
    SET
        per_hour = excluded.per_hour,
        brake = excluded.brake,
        reason = excluded.reason,
        began_at = CASE WHEN o.brake = excluded.brake THEN o.began_at ELSE excluded.began_at END,
        seen_at = greatest(o.seen_at, excluded.seen_at)
)
SELECT 1 FROM locked_session;

-- name: budgets
-- Where the budget of recovery is smaller than usual, and how many machines there wait for it. Those that wait are read once,
-- however many budgets are small.
WITH waiting AS MATERIALIZED (
    SELECT p.provider, p.provider_location AS location, count(*) AS machines
    FROM work_backoff b
    JOIN machine_provided p ON p.machine_id = b.machine_id
    WHERE b.process = 'ShepherdRecovery' AND b.kind = 'held-back' AND b.until > statement_timestamp()
    GROUP BY p.provider, p.provider_location
)
SELECT
    g.provider,
    g.location,
    g.per_hour,
    g.brake,
    g.reason,
    g.began_at,
    (
        SELECT coalesce(sum(w.machines), 0)::bigint
        FROM waiting w
        WHERE w.provider = g.provider AND g.location IN ('', w.location)
    ) AS waiting
FROM recovery_budgets g
ORDER BY g.provider, g.location;
