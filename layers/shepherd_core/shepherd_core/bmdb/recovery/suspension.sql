-- Suspension of recovery: the figures that the circuit breaker judges, and its decision. The claim itself checks
-- suspensions.

-- name: take_health_snapshot
-- The figures from which the circuit breaker decides. Each row has a figure, a location, whether the machines had
-- reported, whether they are new, a number, and for gaps ended_ago.
--
-- - sessions: 1 if the session is alive, else 0.
-- - reporting, late: machines with an agent in a sample, with a heartbeat within half of their heartbeat timeout, or
--   without one for half of their timeout. The sample is :sample machines (1,000 at most) in the order of their ids,
--   from the id :start on. Ids are random, so it costs the same in a fleet of any size; a fleet of up to 1,000 is
--   examined whole. Late machines exclude those that are paused, and those whose recovery failed since the last
--   heartbeat.
-- - heard, losing: machines of the sample with a heartbeat within half of the policy's heartbeat timeout; and those of
--   them that had lost requests before it.
-- - recovering: machines with recovery work, or rebooted in the last hour.
-- - unsampled: machines rebooted in the last hour that are neither reporting nor late.
-- - in_trouble: machines rebooted in the last six hours where recovery is suspended, or was within the last hour.
--   Otherwise each hour of the same trouble would begin with reboots. Six hours: as for unreached.
-- - quarantined: quarantined machines of the provider.
-- - unreached, reached: machines that should have come back in the last six hours and cannot be reached by SSH; and,
--   if there are any, machines on which SSH started an agent in the last hour. Six hours: machines that are really dead
--   must not hold up their own recovery without end.
-- - outage: an SSH outage is in force there.
-- - no_access: machines on which no agent can be started, or that cannot be looked at, until an operator acts, counted to
--   1,000.
-- - suspended: a suspension is in force there.
-- - gap: a time between two snapshots long enough to matter, in seconds, and how many seconds ago it ended (ended_ago):
--   the one that this snapshot ends and records, and earlier ones that still matter.
-- - extended: after how many seconds without a heartbeat a machine is recovered at the latest whose timeout is over, but
--   longer because of a gap.
-- - due: machines that are due for recovery, outside of :skipped_locations. A machine is not new if
--   - its recovery failed since the last heartbeat,
--   - it was rebooted in the last hour, or
--   - it did not come back after a reboot. After a restart of its agent alone it is new.
-- - window: due rows that were examined.
-- - rescheduled: due rows that were moved.
-- - forward: a timeout became shorter, and due rows are to be brought forward.
--
-- The due rows are evaluated as in claim, up to 1,000 at a time. Rows of machines that are not unhealthy are moved to
-- the time from which they may be, so that the unhealthy ones remain first: if the window was full and rows were moved,
-- take another snapshot. Machines that are locked, paused or backing off are left to the claim and not counted. Rows
-- locked by another statement, or changed since this one began (revision), are left alone. May run twice.
WITH {session},
half AS (
    SELECT
        heartbeat_timeout_seconds * interval '1 second' / 2 AS heartbeat,
        startup_timeout_seconds * interval '1 second' / 2 AS startup
    FROM recovery_policy
    WHERE provider = :provider
),
gaps AS (
    SELECT g.began_at, g.ended_at
    FROM recovery_gaps_until_now g
    CROSS JOIN half h
    WHERE g.provider = :provider
        AND g.ended_at > statement_timestamp() - 2 * greatest(h.heartbeat, h.startup)
        -- A little shorter than every gap that machine_due_at takes into account; a test compares the two.
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
sample AS (
    SELECT machine_id
    FROM (
        (
            SELECT machine_id
            FROM machine_due
            WHERE process = 'ShepherdRecovery'
                AND not_before IS NOT NULL
                AND provider = :provider
                AND machine_id >= :start::uuid
                AND (SELECT a.machine_id FROM machine_agent_started a WHERE a.machine_id = machine_due.machine_id) IS NOT NULL
            ORDER BY machine_id
            LIMIT 1000
        )
        UNION ALL
        (
            SELECT machine_id
            FROM machine_due
            WHERE process = 'ShepherdRecovery'
                AND not_before IS NOT NULL
                AND provider = :provider
                AND machine_id < :start::uuid
                AND (SELECT a.machine_id FROM machine_agent_started a WHERE a.machine_id = machine_due.machine_id) IS NOT NULL
            ORDER BY machine_id
            LIMIT 1000
        )
    ) AS two_ranges
    LIMIT :sample
),
sample_figures AS (
    SELECT
        n.machine_id,
        n.location,
        n.reported,
        CASE
            WHEN n.reported AND n.last_heartbeat_at > statement_timestamp() - n.timeout / 2 THEN 'reporting'
            WHEN NOT n.failed AND n.paused_until IS NULL AND n.since <= statement_timestamp() - n.timeout / 2 THEN 'late'
        END AS figure,
        n.reported AND n.last_heartbeat_at > statement_timestamp() - (SELECT heartbeat FROM half) AS heard,
        n.failed_attempts > 0 AS lost
    FROM sample s
    CROSS JOIN LATERAL (
        SELECT
            machine_id, location, reported, last_heartbeat_at, timeout, failed, paused_until, since, failed_attempts, overdue
        FROM machine_eligibility
        WHERE machine_id = s.machine_id AND process = 'ShepherdRecovery'
        LIMIT 1
    ) AS n
    WHERE NOT n.overdue
),
in_recovery AS (
    SELECT w.machine_id, n.location, n.reported
    FROM work w
    CROSS JOIN LATERAL (SELECT * FROM machine_need WHERE machine_id = w.machine_id LIMIT 1) AS n
    WHERE w.process = 'ShepherdRecovery' AND n.provider = :provider
),
recent_suspensions AS (
    SELECT location
    FROM recovery_suspensions
    WHERE provider = :provider AND coalesce(ended_at > statement_timestamp() - interval '1 hour', true)
),
rebooted AS (
    SELECT
        r.machine_id,
        nullif(p.provider_location, '') AS location,
        r.had_reported AS reported,
        r.rebooted_at > statement_timestamp() - interval '1 hour' AS recently,
        EXISTS (SELECT 1 FROM recent_suspensions x WHERE x.location IN ('', p.provider_location)) AS in_trouble
    FROM machine_rebooted r
    CROSS JOIN LATERAL (SELECT * FROM machine_provided WHERE machine_id = r.machine_id LIMIT 1) AS p
    WHERE r.rebooted_at > statement_timestamp() - interval '6 hours' AND p.provider = :provider
),
recovering AS (
    SELECT machine_id, location, reported FROM in_recovery
    UNION ALL
    SELECT machine_id, location, reported
    FROM rebooted
    WHERE recently AND machine_id <> ALL (ARRAY(SELECT machine_id FROM in_recovery))
),
skipped_locations AS (
    SELECT g.location FROM unnest(:skipped_locations::text[]) AS g (location)
),
candidates AS (
    SELECT d.machine_id, d.revision
    FROM machine_due d
    WHERE d.process = 'ShepherdRecovery'
        AND d.provider = :provider
        AND d.not_before
            >= coalesce((SELECT floor FROM due_floors WHERE process = 'ShepherdRecovery' AND provider = :provider), '-infinity')
        AND d.not_before <= statement_timestamp()
        AND EXISTS (SELECT 1 FROM session)
        AND {outside_skipped_locations}
    ORDER BY d.not_before, d.machine_id
    LIMIT 1000
),
evaluated AS (
    SELECT
        l.machine_id,
        l.revision,
        n.location,
        n.reported,
        NOT n.failed
            AND NOT EXISTS (
                SELECT 1
                FROM machine_rebooted x
                WHERE x.machine_id = l.machine_id
                    AND (
                        x.rebooted_at > statement_timestamp() - interval '1 hour'
                        OR n.overdue
                            AND x.rebooted_at >= (SELECT g.grace_began_at FROM machine_grace g WHERE g.machine_id = l.machine_id)
                    )
            ) AS is_new,
        n.ready,
        n.since,
        n.due_at,
        n.in_doubt,
        n.in_outage,
        n.recheck_at
    FROM candidates l
    CROSS JOIN LATERAL (
        SELECT location, reported, failed, overdue, ready, since, due_at, in_doubt, in_outage, recheck_at
        FROM machine_eligibility
        WHERE machine_id = l.machine_id AND process = 'ShepherdRecovery'
        LIMIT 1
    ) AS n
),
ssh_unreached AS (
    SELECT n.location
    FROM (
        SELECT machine_id
        FROM machine_grace
        WHERE grace_until <= statement_timestamp() AND grace_until > statement_timestamp() - interval '6 hours'
    ) AS w
    CROSS JOIN LATERAL (
        SELECT machine_id
        FROM work_backoff
        WHERE machine_id = w.machine_id
            AND process = 'ShepherdAgentStart'
            AND fault = 'unreached'
            AND last_interval_seconds IS NOT NULL
        LIMIT 1
    ) AS b
    CROSS JOIN LATERAL (SELECT * FROM machine_need WHERE machine_id = w.machine_id LIMIT 1) AS n
    WHERE n.process = 'ShepherdAgentStart' AND n.provider = :provider
    LIMIT 1000
),
ssh_reached AS (
    SELECT nullif(p.provider_location, '') AS location
    FROM (
        SELECT machine_id
        FROM machine_agent_started
        WHERE agent_started_at > statement_timestamp() - interval '1 hour' AND EXISTS (SELECT 1 FROM ssh_unreached)
        ORDER BY agent_started_at DESC
        LIMIT 1000
    ) AS a
    CROSS JOIN LATERAL (SELECT * FROM machine_provided WHERE machine_id = a.machine_id LIMIT 1) AS p
    WHERE p.provider = :provider
),
not_due AS (
    SELECT e.machine_id, e.recheck_at
    FROM machine_due d
    JOIN evaluated e ON e.machine_id = d.machine_id AND e.revision = d.revision
    WHERE d.process = 'ShepherdRecovery'
        AND d.machine_id = ANY(ARRAY(SELECT machine_id FROM candidates))
        AND (e.due_at > statement_timestamp() OR e.in_outage)
    ORDER BY e.machine_id
    FOR UPDATE OF d SKIP LOCKED
),
rescheduled AS (
    UPDATE machine_due d
    SET not_before = e.recheck_at, revision = d.revision + 1
    FROM not_due e
    WHERE d.machine_id = e.machine_id AND d.process = 'ShepherdRecovery'
    RETURNING d.machine_id
)
SELECT
    'sessions' AS figure,
    NULL AS location,
    NULL::boolean AS reported,
    NULL::boolean AS is_new,
    count(*)::float8 AS number,
    NULL::float8 AS ended_ago
FROM session
UNION ALL
SELECT
    'gap',
    NULL,
    NULL,
    NULL,
    extract(epoch FROM ended_at - began_at)::float8,
    extract(epoch FROM statement_timestamp() - ended_at)::float8
FROM gaps
UNION ALL
SELECT 'extended', NULL, NULL, NULL, extract(epoch FROM max(due_at - since))::float8, NULL
FROM evaluated
WHERE in_doubt AND reported
HAVING count(*) > 0
UNION ALL
SELECT 'suspended', location, NULL, NULL, 1, NULL FROM suspensions_in_force WHERE provider = :provider
UNION ALL
SELECT figure, location, reported, NULL, count(*), NULL FROM sample_figures WHERE figure IS NOT NULL GROUP BY figure, location, reported
UNION ALL
SELECT 'heard', location, NULL, NULL, count(*), NULL FROM sample_figures WHERE heard GROUP BY location
UNION ALL
SELECT 'losing', location, NULL, NULL, count(*), NULL FROM sample_figures WHERE heard AND lost GROUP BY location
UNION ALL
SELECT 'recovering', location, reported, NULL, count(*), NULL FROM recovering GROUP BY location, reported
UNION ALL
SELECT 'unsampled', location, reported, NULL, count(*), NULL
FROM rebooted
WHERE recently AND machine_id <> ALL (ARRAY(SELECT machine_id FROM sample_figures WHERE figure IS NOT NULL))
GROUP BY location, reported
UNION ALL
SELECT 'in_trouble', location, reported, NULL, count(*), NULL FROM rebooted WHERE in_trouble GROUP BY location, reported
UNION ALL
SELECT 'quarantined', NULL, NULL, NULL, count(*), NULL
FROM machine_quarantine z
CROSS JOIN LATERAL (SELECT provider FROM machine_provided WHERE machine_id = z.machine_id LIMIT 1) AS p
WHERE p.provider = :provider
UNION ALL
SELECT 'unreached', location, NULL, NULL, count(*), NULL FROM ssh_unreached GROUP BY location
UNION ALL
SELECT 'reached', location, NULL, NULL, count(*), NULL FROM ssh_reached GROUP BY location
UNION ALL
SELECT 'outage', location, NULL, NULL, 1, NULL FROM outages_in_force WHERE provider = :provider
UNION ALL
SELECT 'no_access', NULL, NULL, NULL, count(*), NULL
FROM (
    SELECT DISTINCT b.machine_id
    FROM (SELECT machine_id, process FROM work_backoff WHERE fault = 'access') AS b
    CROSS JOIN LATERAL (SELECT provider FROM machine_provided WHERE machine_id = b.machine_id LIMIT 1) AS p
    WHERE b.process IN ('ShepherdAgentStart', 'ShepherdRecovery') AND p.provider = :provider
    LIMIT 1000
) AS first_1000
UNION ALL
SELECT 'window', NULL, NULL, NULL, count(*), NULL FROM candidates
UNION ALL
SELECT 'rescheduled', NULL, NULL, NULL, count(*), NULL FROM rescheduled
UNION ALL
SELECT 'forward', NULL, NULL, NULL, 1, NULL FROM recovery_policy WHERE provider = :provider AND forward_from IS NOT NULL
UNION ALL
SELECT 'due', location, reported, is_new, count(*), NULL FROM evaluated WHERE ready GROUP BY location, reported, is_new;

-- name: bring_due_rows_forward
-- A timeout became shorter: make the next :rows machines, in the order of their ids, due for a check now, which moves
-- each row to the time that follows from the new policy. Rows locked by another statement keep their time, and are due by
-- the old timeout at the latest. If a timeout became shorter again since this statement began, all machines are left to be
-- brought forward (began). A row if there may be more. May run twice, and needs no session: a row may be too early.
WITH began AS (
    SELECT forward_from FROM recovery_policy WHERE provider = :provider
),
due_rows AS (
    SELECT machine_id
    FROM (
        SELECT machine_id
        FROM machine_due
        WHERE process = 'ShepherdRecovery'
            AND provider = :provider
            AND not_before IS NOT NULL
            AND machine_id > (SELECT forward_from FROM began)
        ORDER BY machine_id
        LIMIT 5000 -- a constant, for the plan
        FOR UPDATE SKIP LOCKED
    ) AS next_machines
    LIMIT :rows
),
rescheduled AS (
    UPDATE machine_due
    SET not_before = least(not_before, clock_timestamp()), revision = revision + 1
    WHERE process = 'ShepherdRecovery' AND machine_id = ANY (ARRAY(SELECT machine_id FROM due_rows))
),
policy_row AS (
    UPDATE recovery_policy
    SET forward_from = (
        SELECT machine_id
        FROM due_rows
        WHERE (SELECT count(*) FROM due_rows) >= :rows
        ORDER BY machine_id DESC
        LIMIT 1
    )
    WHERE provider = :provider AND forward_from = (SELECT forward_from FROM began)
    RETURNING forward_from
)
SELECT forward_from FROM policy_row WHERE forward_from IS NOT NULL;

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
-- Machines that did not come back are due now. Locked rows are left alone: the transaction has locked other due rows
-- already, so it must not wait for one.
WITH outages_deleted AS (
    DELETE FROM ssh_outages WHERE provider = :provider
),
rescheduled AS (
    UPDATE machine_due
    SET not_before = clock_timestamp(), revision = revision + 1
    WHERE process = 'ShepherdRecovery' AND machine_id IN (
        SELECT machine_id
        FROM machine_due
        WHERE process = 'ShepherdRecovery' AND provider = :provider AND not_before = 'infinity'
        ORDER BY machine_id
        FOR UPDATE SKIP LOCKED
    )
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
