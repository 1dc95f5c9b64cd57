-- Suspension of recovery: the figures that the circuit breaker judges, and its decision. The claim itself checks
-- suspensions.

-- name: read_fleet_health
-- The health of all machines of the provider, from their facts: a row for each location with its figures and the
-- machines that may be recovered, and at least one row, which has the figures of the whole provider.
--
-- sessions: 1 if the session is alive, else 0. May run twice.
WITH {session},
half AS (
    SELECT
        heartbeat_timeout_seconds * interval '1 second' / 2 AS heartbeat,
        startup_timeout_seconds * interval '1 second' / 2 AS startup
    FROM recovery_policy
    WHERE provider = :provider
),
-- Times between two snapshots that are long enough to matter: the one that this snapshot ends, and earlier ones.
gaps AS (
    SELECT g.began_at, g.ended_at
    FROM recovery_gaps_until_now g
    CROSS JOIN half h
    WHERE g.provider = :provider
        AND g.ended_at > statement_timestamp() - 2 * greatest(h.heartbeat, h.startup)
        -- A little shorter than every gap that machine_eligibility takes into account; a test compares the two.
        AND g.ended_at > g.began_at + 0.82 * least(h.heartbeat, h.startup)
),
gap_recorded AS (
    INSERT INTO recovery_gaps (provider, began_at, ended_at)
    SELECT :provider, g.began_at, g.ended_at FROM gaps g CROSS JOIN session WHERE g.ended_at = statement_timestamp()
),
snapshot_recorded AS (
    INSERT INTO recovery_snapshots (provider, taken_at)
    SELECT :provider, clock_timestamp() FROM session
    ON CONFLICT (provider) DO UPDATE SET taken_at = excluded.taken_at
),
-- Every machine with an agent, counted in one pass. reporting: with a heartbeat within half of its timeout. heard: the
-- same by the policy's timeout; losing: those of them that had lost requests before. The arrays have the quiet ones:
-- without a heartbeat for half of their timeout, also since the last suspension ended there. OFFSET 0: each column is
-- computed once for a machine. The process is no condition of a WHERE, which the planner would expect few to pass.
counted AS MATERIALIZED (
    SELECT
        location,
        count(*) FILTER (WHERE watched AND reported AND NOT silent) AS reporting,
        count(*) FILTER (WHERE watched AND heard) AS heard,
        count(*) FILTER (WHERE watched AND heard AND failed_attempts > 0) AS losing,
        array_agg(machine_id) FILTER (WHERE quiet) AS quiet_ids,
        array_agg(reported) FILTER (WHERE quiet) AS quiet_reported,
        array_agg(last_heartbeat_at) FILTER (WHERE quiet) AS quiet_heartbeats,
        array_agg(timeout_at) FILTER (WHERE quiet) AS quiet_timeouts
    FROM (
        SELECT
            n.machine_id,
            n.location,
            n.reported,
            n.last_heartbeat_at,
            n.failed_attempts,
            n.process = 'ShepherdRecovery' AS watched,
            n.reported AND n.last_heartbeat_at > statement_timestamp() - (SELECT heartbeat FROM half) AS heard,
            n.last_heartbeat_at <= statement_timestamp() - n.timeout / 2 AS silent,
            -- In this order, because since is dear.
            CASE
                WHEN n.last_heartbeat_at <= statement_timestamp() - n.timeout / 2 AND n.process = 'ShepherdRecovery'
                    THEN n.since <= statement_timestamp() - n.timeout / 2
            END AS quiet,
            CASE WHEN n.last_heartbeat_at <= statement_timestamp() - n.timeout / 2 THEN n.since + n.timeout END AS timeout_at
        FROM machine_need n
        WHERE n.provider = :provider
        OFFSET 0
    ) AS m
    GROUP BY location
),
-- failed: recovery was tried and failed since the last heartbeat, and not by a fault of ours.
quiet AS MATERIALIZED (
    SELECT
        q.machine_id,
        c.location,
        q.reported,
        q.timeout_at,
        coalesce(
            b.fault <> 'ours' AND b.until - b.last_interval_seconds * interval '1 second' > q.last_heartbeat_at, false
        ) AS failed,
        q.machine_id IN (
            SELECT x.machine_id
            FROM pause_scopes x
            WHERE x.machine_id IS NOT NULL AND x.process IN ('', 'ShepherdRecovery') AND x.provider IN ('', :provider)
        ) AS paused,
        coalesce(b.until > statement_timestamp(), false) AS waits,
        coalesce(b.deaths > 0, false) AS suspect
    FROM counted c
    CROSS JOIN LATERAL unnest(c.quiet_ids, c.quiet_reported, c.quiet_heartbeats, c.quiet_timeouts)
        AS q (machine_id, reported, last_heartbeat_at, timeout_at)
    LEFT JOIN work_backoff b ON b.machine_id = q.machine_id AND b.process = 'ShepherdRecovery'
),
-- Paused machines, and those whose recovery failed, say nothing about an outage.
late AS (
    SELECT location, reported, count(*) AS machines FROM quiet WHERE NOT failed AND NOT paused GROUP BY location, reported
),
in_recovery AS MATERIALIZED (
    SELECT w.machine_id, n.location, n.reported
    FROM work w
    CROSS JOIN LATERAL (SELECT * FROM machine_need WHERE machine_id = w.machine_id LIMIT 1) AS n
    WHERE w.process = 'ShepherdRecovery' AND n.provider = :provider
),
-- Machines rebooted in the last six hours. in_trouble: recovery is suspended there, or was within the last hour; otherwise
-- each hour of the same trouble would begin with reboots. uncounted: neither reporting nor late.
rebooted AS MATERIALIZED (
    SELECT
        r.machine_id,
        n.location,
        r.had_reported AS reported,
        r.rebooted_at > statement_timestamp() - interval '1 hour' AS recently,
        EXISTS (
            SELECT 1
            FROM recovery_suspensions x
            WHERE x.provider = :provider
                AND x.location IN ('', n.location)
                AND coalesce(x.ended_at > statement_timestamp() - interval '1 hour', true)
        ) AS in_trouble,
        (
            n.process = 'ShepherdRecovery' AND n.reported AND n.last_heartbeat_at > statement_timestamp() - n.timeout / 2
            OR r.machine_id IN (SELECT machine_id FROM quiet WHERE NOT failed AND NOT paused)
        ) IS NOT TRUE AS uncounted
    FROM machine_rebooted r
    CROSS JOIN LATERAL (SELECT * FROM machine_need WHERE machine_id = r.machine_id LIMIT 1) AS n
    WHERE r.rebooted_at > statement_timestamp() - interval '6 hours' AND n.provider = :provider
),
-- Being recovered, or rebooted in the last hour.
recovering AS (
    SELECT location, reported FROM in_recovery
    UNION ALL
    SELECT location, reported
    FROM rebooted
    WHERE recently AND machine_id <> ALL (ARRAY(SELECT machine_id FROM in_recovery))
),
-- Machines that should have come back in the last six hours and cannot be reached by SSH. Six hours: machines that are
-- really dead must not hold up their own recovery without end.
unreached AS MATERIALIZED (
    SELECT n.location
    FROM machine_grace w
    JOIN work_backoff b
        ON b.machine_id = w.machine_id
        AND b.process = 'ShepherdAgentStart'
        AND b.fault = 'unreached'
        AND b.last_interval_seconds IS NOT NULL
    CROSS JOIN LATERAL (SELECT * FROM machine_need WHERE machine_id = w.machine_id LIMIT 1) AS n
    WHERE w.grace_until <= statement_timestamp()
        AND w.grace_until > statement_timestamp() - interval '6 hours'
        AND n.process = 'ShepherdAgentStart'
        AND n.provider = :provider
),
-- If there are any: machines on which SSH started an agent in the last hour.
reached AS (
    SELECT nullif(p.provider_location, '') AS location
    FROM machine_agent_started a
    JOIN machine_provided p ON p.machine_id = a.machine_id
    WHERE a.agent_started_at > statement_timestamp() - interval '1 hour'
        AND p.provider = :provider
        AND EXISTS (SELECT 1 FROM unreached)
),
-- The machines to look at: unhealthy ones and those that did not come back, without what keeps one machine back. Of
-- each location the longest unhealthy come first, so that one with thousands of machines does not hide the others.
first AS MATERIALIZED (
    SELECT machine_id, failed, suspect
    FROM (
        SELECT
            x.machine_id,
            x.failed,
            x.suspect,
            x.timeout_at,
            row_number() OVER (PARTITION BY x.location ORDER BY x.timeout_at, x.machine_id) AS place
        FROM (
            SELECT machine_id, location, failed, suspect, timeout_at
            FROM quiet
            WHERE timeout_at <= statement_timestamp() AND NOT paused AND NOT waits
            UNION ALL
            SELECT w.machine_id, p.provider_location, false, coalesce(b.deaths > 0, false), w.grace_until
            FROM machine_grace w
            JOIN machine_provided p ON p.machine_id = w.machine_id
            LEFT JOIN work_backoff b ON b.machine_id = w.machine_id AND b.process = 'ShepherdRecovery'
            WHERE w.grace_until <= statement_timestamp()
                AND p.provider = :provider
                AND coalesce(b.until <= statement_timestamp(), true)
        ) AS x
        WHERE x.machine_id NOT IN (SELECT machine_id FROM work)
    ) AS ranked
    ORDER BY place, timeout_at, machine_id
    LIMIT :limit
),
-- new: recovery has not failed since the last heartbeat, and no step of the last hour has failed to bring it back.
looked_at AS MATERIALIZED (
    SELECT
        f.machine_id,
        e.location,
        e.reported,
        e.due,
        greatest(e.due_at, e.backoff_until) AS due_at,
        f.suspect,
        NOT f.failed
            AND NOT EXISTS (
                SELECT 1
                FROM machine_rebooted x
                WHERE x.machine_id = f.machine_id
                    AND (
                        x.rebooted_at > statement_timestamp() - interval '1 hour'
                        OR e.overdue
                            AND x.rebooted_at >= (SELECT g.grace_began_at FROM machine_grace g WHERE g.machine_id = f.machine_id)
                    )
            ) AS new,
        CASE WHEN e.in_doubt AND e.reported THEN extract(epoch FROM e.due_at - e.since)::float8 END AS extended_seconds
    FROM first f
    CROSS JOIN LATERAL (
        SELECT * FROM machine_eligibility WHERE machine_id = f.machine_id AND process = 'ShepherdRecovery' LIMIT 1
    ) AS e
),
due AS (
    SELECT
        location,
        array_agg(machine_id ORDER BY due_at, machine_id) AS ids,
        array_agg(extract(epoch FROM statement_timestamp() - due_at)::float8 ORDER BY due_at, machine_id) AS due_seconds,
        array_agg(reported ORDER BY due_at, machine_id) AS reported,
        array_agg(new ORDER BY due_at, machine_id) AS new,
        array_agg(suspect ORDER BY due_at, machine_id) AS suspects
    FROM looked_at
    WHERE due
    GROUP BY location
),
figures AS (
    SELECT location, 'reporting' AS figure, reporting AS machines FROM counted
    UNION ALL
    SELECT location, 'heard', heard FROM counted
    UNION ALL
    SELECT location, 'losing', losing FROM counted
    UNION ALL
    SELECT location, CASE WHEN reported THEN 'late' ELSE 'late_first' END, machines FROM late
    UNION ALL
    SELECT location, CASE WHEN reported THEN 'recovering' ELSE 'recovering_first' END, 1 FROM recovering
    UNION ALL
    SELECT location, CASE WHEN reported THEN 'uncounted' ELSE 'uncounted_first' END, 1 FROM rebooted WHERE recently AND uncounted
    UNION ALL
    SELECT location, CASE WHEN reported THEN 'in_trouble' ELSE 'in_trouble_first' END, 1 FROM rebooted WHERE in_trouble
    UNION ALL
    SELECT location, 'unreached', 1 FROM unreached
    UNION ALL
    SELECT location, 'reached', 1 FROM reached
    UNION ALL
    SELECT location, 'due', 0 FROM due
),
locations AS (
    SELECT location, jsonb_object_agg(figure, machines) AS figures
    FROM (SELECT location, figure, sum(machines) AS machines FROM figures GROUP BY location, figure) AS x
    GROUP BY location
)
SELECT
    (SELECT count(*) FROM session) AS sessions,
    EXISTS (SELECT 1 FROM suspensions_in_force WHERE provider = :provider) AS suspended,
    ARRAY(SELECT location FROM outages_in_force WHERE provider = :provider) AS outages,
    ARRAY(SELECT extract(epoch FROM ended_at - began_at)::float8 FROM gaps ORDER BY ended_at) AS gap_seconds,
    ARRAY(SELECT extract(epoch FROM statement_timestamp() - ended_at)::float8 FROM gaps ORDER BY ended_at) AS gaps_ended_ago,
    (SELECT max(extended_seconds) FROM looked_at) AS extended_seconds,
    (
        SELECT count(*)
        FROM machine_quarantine z
        JOIN machine_provided p ON p.machine_id = z.machine_id
        WHERE p.provider = :provider
    ) AS quarantined,
    -- Machines on which no agent can be started, or that cannot be looked at, until an operator acts.
    (
        SELECT count(DISTINCT b.machine_id)
        FROM work_backoff b
        JOIN machine_provided p ON p.machine_id = b.machine_id
        WHERE b.fault = 'access' AND p.provider = :provider
    ) AS no_access,
    l.location,
    l.figures,
    d.ids,
    d.due_seconds,
    d.reported,
    d.new,
    d.suspects
FROM (SELECT 1) AS one_row
LEFT JOIN locations l ON true
LEFT JOIN due d ON d.location IS NOT DISTINCT FROM l.location;

-- name: set_suspensions
-- Suspend recovery in these locations ('' is the whole provider), from now on unless it is suspended already, and end
-- every other suspension of the provider. The reason is replaced: it may change while a suspension is in force. One row
-- for each location where a suspension ended, and one row in any case. May run twice, also concurrently: rows are
-- locked in the order of location.
WITH {locked_session},
new_rows AS (
    SELECT :provider AS provider, g.location, clock_timestamp() AS suspended_at, NULL::timestamptz AS ended_at, g.reason
    FROM unnest(:locations::text[], :reasons::text[]) AS g (location, reason)
    UNION ALL
    SELECT provider, location, suspended_at, clock_timestamp(), reason
    FROM suspensions_in_force
    WHERE provider = :provider AND location <> ALL (:locations::text[])
),
suspension_rows AS (
    INSERT INTO recovery_suspensions AS h (provider, location, suspended_at, ended_at, reason)
    SELECT w.provider, w.location, w.suspended_at, w.ended_at, w.reason
    FROM new_rows w CROSS JOIN locked_session
    ORDER BY w.location
    ON CONFLICT (provider, location) DO UPDATE
    SET
        suspended_at = CASE WHEN h.ended_at IS NULL THEN h.suspended_at ELSE excluded.suspended_at END,
        ended_at = excluded.ended_at,
        reason = excluded.reason
    WHERE h.ended_at IS NOT NULL OR excluded.ended_at IS NOT NULL OR h.reason <> excluded.reason
    RETURNING h.location, h.ended_at
)
SELECT (SELECT count(*) FROM locked_session) AS sessions, c.location
FROM (SELECT 1) AS one_row
LEFT JOIN suspension_rows c ON c.ended_at IS NOT NULL;

-- name: set_ssh_outages
-- Record an SSH outage in these locations ('' is the whole provider), from now on unless it is on record already, and
-- end every other outage of the provider. May run twice, also concurrently: rows are locked in the order of location.
WITH {locked_session},
new_rows AS (
    SELECT :provider AS provider, g.location, clock_timestamp() AS began_at, NULL::timestamptz AS ended_at, g.reason
    FROM unnest(:locations::text[], :reasons::text[]) AS g (location, reason)
    UNION ALL
    SELECT provider, location, began_at, clock_timestamp(), reason
    FROM outages_in_force
    WHERE provider = :provider AND location <> ALL (:locations::text[])
),
outage_rows AS (
    INSERT INTO ssh_outages AS o (provider, location, began_at, ended_at, reason)
    SELECT w.provider, w.location, w.began_at, w.ended_at, w.reason
    FROM new_rows w CROSS JOIN locked_session
    ORDER BY w.location
    ON CONFLICT (provider, location) DO UPDATE
    SET
        began_at = CASE WHEN o.ended_at IS NULL THEN o.began_at ELSE excluded.began_at END,
        ended_at = excluded.ended_at,
        reason = excluded.reason
)
SELECT count(*) FROM locked_session;

-- name: ignore_suspensions
-- For a dry run, which is rolled back: let a claim take what it would take if recovery were not suspended. Deletes the
-- suspensions in force, and all SSH outages (one that is over still holds machines whose agent start failed during it).
WITH outages_deleted AS (
    DELETE FROM ssh_outages WHERE provider = :provider
)
DELETE FROM recovery_suspensions WHERE provider = :provider AND ended_at IS NULL;

-- name: delete_old_gaps
-- Delete gaps that ended more than a day ago, which no statement needs any more.
DELETE FROM recovery_gaps WHERE provider = :provider AND ended_at < statement_timestamp() - interval '1 day';

-- name: recovery_suspensions
-- The suspensions and SSH outages in force, and those that ended within a day. After a suspension, the timeouts start
-- at its end.
SELECT kind, provider, location, suspended_at, ended_at, reason
FROM (
    SELECT 'suspension' AS kind, provider, location, suspended_at, ended_at, reason FROM recovery_suspensions
    UNION ALL
    SELECT 'ssh_outage', provider, location, began_at, ended_at, reason FROM ssh_outages
) AS combined
WHERE ended_at IS NULL OR ended_at > clock_timestamp() - interval '1 day'
ORDER BY provider, location, suspended_at, kind DESC;
