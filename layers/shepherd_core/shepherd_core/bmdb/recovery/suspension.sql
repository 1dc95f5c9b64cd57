-- Holding recovery back: what the verdict is made from, and what comes of it. The claim honours a hold by itself.

-- name: take_health_snapshot
-- All that the verdict is made from, in rows of a figure, the location, whether the machines had reported, whether it is
-- news, and a number.
-- reporting, quiet: machines with an agent, of a sample: :sample machines (1,000 at most) in the order of their ids, which
-- are random, from the id :start on; so it is all of them in a fleet of up to 1,000, and costs the same in any.
-- recovering: machines that are in work, or were rebooted within an hour. quarantined: machines of the provider.
-- unreached, reached: machines that should have come back and that SSH does not reach and, where there are any, those on
-- which it started an agent within an hour. outage: an outage of SSH is in force. no_access: machines on which no agent can be started
-- until an operator acts, counted to 1,000.
-- held: a hold is in force. gap: a time in which nobody looked, in seconds, and how many seconds ago it ended (ago); the one
-- that this look ends, which is put on record as the look is, and those before it that may matter still.
-- due: machines that are due for recovery in truth, outside of the locations in :skipped_locations; no news is a machine whose
-- recovery failed since it was last heard, that was rebooted within an hour, or that did not come back after a recovery. A
-- window of due rows is judged as the claim does it; those of machines that are not silent are moved to the moment at
-- which they may be, so that the silent ones are left at its head: if the window was full and something was moved, look
-- again. What is locked, paused or backing off is left to the claim, and is not counted. window, moved: due rows; awaited:
-- those of machines that may not have come back.
WITH session AS (
    SELECT session_id
    FROM sessions
    WHERE session_id = :session_id AND deadline > clock_timestamp()
),
gap AS (
    SELECT began_at, ended_at
    FROM recovery_gaps_until_now
    WHERE provider = :provider
        AND ended_at > statement_timestamp()
            - greatest(:heartbeat_timeout_seconds::float8, :startup_timeout_seconds::float8) * interval '1 second'
        AND ended_at > began_at + :heartbeat_timeout_seconds::float8 * interval '1 second' / 2
),
ended AS (
    INSERT INTO recovery_gaps (provider, began_at, ended_at)
    SELECT :provider, g.began_at, g.ended_at FROM gap g CROSS JOIN session WHERE g.ended_at = statement_timestamp()
),
seen AS (
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
            WHERE process = 'ShepherdRecovery' AND provider = :provider AND machine_id >= :start::uuid
            ORDER BY machine_id
            LIMIT 1000
        )
        UNION ALL
        (
            SELECT machine_id
            FROM machine_due
            WHERE process = 'ShepherdRecovery' AND provider = :provider AND machine_id < :start::uuid
            ORDER BY machine_id
            LIMIT 1000
        )
    ) AS around
    LIMIT :sample
),
told AS (
    SELECT
        n.location,
        n.reported,
        CASE
            WHEN n.reported
                AND n.last_heartbeat_at > statement_timestamp() - :heartbeat_timeout_seconds::float8 * interval '1 second' / 2
                THEN 'reporting'
            WHEN NOT n.failed
                AND n.paused_until IS NULL
                AND n.since <= statement_timestamp() - CASE
                    WHEN n.reported THEN :heartbeat_timeout_seconds::float8 * interval '1 second'
                    ELSE :startup_timeout_seconds::float8 * interval '1 second'
                END / 2
                THEN 'quiet'
        END AS figure
    FROM sample s
    CROSS JOIN LATERAL (SELECT * FROM machine_eligibility WHERE machine_id = s.machine_id AND NOT overdue LIMIT 1) AS n
    WHERE n.process = 'ShepherdRecovery'
),
working AS (
    SELECT w.machine_id, n.location, n.reported
    FROM work w
    CROSS JOIN LATERAL (SELECT * FROM machine_need WHERE machine_id = w.machine_id LIMIT 1) AS n
    WHERE w.process = 'ShepherdRecovery' AND n.provider = :provider
),
rebooted AS (
    SELECT r.machine_id, nullif(p.provider_location, '') AS location, r.had_reported AS reported
    FROM machine_rebooted r
    CROSS JOIN LATERAL (SELECT * FROM machine_provided WHERE machine_id = r.machine_id LIMIT 1) AS p
    WHERE r.rebooted_at > statement_timestamp() - interval '1 hour'
        AND p.provider = :provider
        AND r.machine_id <> ALL (ARRAY(SELECT machine_id FROM working))
),
looked AS (
    SELECT d.machine_id, d.revision
    FROM machine_due d
    WHERE d.process = 'ShepherdRecovery'
        AND d.provider = :provider
        AND d.not_before <= statement_timestamp()
        AND EXISTS (SELECT 1 FROM session)
        AND CASE
            WHEN cardinality(:skipped_locations::text[]) > 0 THEN coalesce(
                (SELECT p.provider_location FROM machine_provided p WHERE p.machine_id = d.machine_id)
                    <> ALL (:skipped_locations::text[]),
                true
            )
            ELSE true
        END
    ORDER BY d.not_before, d.machine_id
    LIMIT 1000
),
judged AS (
    SELECT
        l.machine_id,
        l.revision,
        n.location,
        n.reported,
        NOT n.failed
            AND NOT coalesce(
                (SELECT rebooted_at > statement_timestamp() - interval '1 hour'
                FROM machine_rebooted WHERE machine_id = l.machine_id),
                false
            ) AS news,
        n.since + CASE
            WHEN n.reported THEN :effective_heartbeat_timeout_seconds::float8 * interval '1 second'
            ELSE :effective_startup_timeout_seconds::float8 * interval '1 second'
        END AS silent_at,
        n.locked_until IS NULL
            AND n.paused_until IS NULL
            AND coalesce(n.backoff_until <= statement_timestamp(), true) AS free
    FROM looked l
    CROSS JOIN LATERAL (SELECT * FROM machine_eligibility WHERE machine_id = l.machine_id AND NOT overdue LIMIT 1) AS n
    WHERE n.process = 'ShepherdRecovery'
),
awaited AS (
    SELECT d.machine_id
    FROM machine_due d
    WHERE d.provider = :provider
        AND d.process IS DISTINCT FROM 'ShepherdRecovery'
        AND d.recovery_not_before <= statement_timestamp()
        AND EXISTS (SELECT 1 FROM session)
        AND CASE
            WHEN cardinality(:skipped_locations::text[]) > 0 THEN coalesce(
                (SELECT p.provider_location FROM machine_provided p WHERE p.machine_id = d.machine_id)
                    <> ALL (:skipped_locations::text[]),
                true
            )
            ELSE true
        END
    ORDER BY d.recovery_not_before, d.machine_id
    LIMIT 1000
),
not_back AS (
    SELECT l.machine_id, n.location, n.reported
    FROM awaited l
    CROSS JOIN LATERAL (SELECT * FROM machine_eligibility WHERE machine_id = l.machine_id AND overdue LIMIT 1) AS n
    WHERE n.since <= statement_timestamp() - :min_overdue_seconds::float8 * interval '1 second'
        AND n.locked_until IS NULL
        AND n.paused_until IS NULL
        AND coalesce(n.backoff_until <= statement_timestamp(), true)
),
unreached AS (
    SELECT n.location
    FROM (SELECT machine_id FROM machine_grace WHERE grace_until <= statement_timestamp()) AS w
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
reached AS (
    SELECT nullif(p.provider_location, '') AS location
    FROM (
        SELECT machine_id
        FROM machine_agent_started
        WHERE agent_started_at > statement_timestamp() - interval '1 hour' AND EXISTS (SELECT 1 FROM unreached)
        ORDER BY agent_started_at DESC
        LIMIT 1000
    ) AS a
    CROSS JOIN LATERAL (SELECT * FROM machine_provided WHERE machine_id = a.machine_id LIMIT 1) AS p
    WHERE p.provider = :provider
),
early AS (
    SELECT
        j.machine_id,
        least(
            j.silent_at,
            statement_timestamp() + :recheck_seconds::float8 * interval '1 second',
            CASE WHEN NOT j.reported THEN statement_timestamp() + :heartbeat_timeout_seconds::float8 * interval '1 second' END
        ) AS not_before
    FROM machine_due d
    JOIN judged j ON j.machine_id = d.machine_id AND j.revision = d.revision
    WHERE d.machine_id = ANY(ARRAY(SELECT machine_id FROM looked)) AND j.silent_at > statement_timestamp()
    ORDER BY j.machine_id
    FOR UPDATE OF d SKIP LOCKED
),
moved AS (
    UPDATE machine_due d
    SET not_before = e.not_before, revision = d.revision + 1
    FROM early e
    WHERE d.machine_id = e.machine_id
    RETURNING d.machine_id
)
SELECT
    'sessions' AS figure,
    NULL AS location,
    NULL::boolean AS reported,
    NULL::boolean AS news,
    count(*)::float8 AS number,
    NULL::float8 AS ago
FROM session
UNION ALL
SELECT
    'gap',
    NULL,
    NULL,
    NULL,
    extract(epoch FROM ended_at - began_at)::float8,
    extract(epoch FROM statement_timestamp() - ended_at)::float8
FROM gap
UNION ALL
SELECT 'held', location, NULL, NULL, 1, NULL FROM recovery_suspensions WHERE provider = :provider AND ended_at IS NULL
UNION ALL
SELECT figure, location, reported, NULL, count(*), NULL FROM told WHERE figure IS NOT NULL GROUP BY figure, location, reported
UNION ALL
SELECT 'recovering', location, reported, NULL, count(*), NULL
FROM (SELECT location, reported FROM working UNION ALL SELECT location, reported FROM rebooted) AS either
GROUP BY location, reported
UNION ALL
SELECT 'quarantined', NULL, NULL, NULL, count(*), NULL
FROM machine_quarantine z
CROSS JOIN LATERAL (SELECT provider FROM machine_provided WHERE machine_id = z.machine_id LIMIT 1) AS p
WHERE p.provider = :provider
UNION ALL
SELECT 'unreached', location, NULL, NULL, count(*), NULL FROM unreached GROUP BY location
UNION ALL
SELECT 'reached', location, NULL, NULL, count(*), NULL FROM reached GROUP BY location
UNION ALL
SELECT 'outage', location, NULL, NULL, 1, NULL FROM ssh_outages WHERE provider = :provider AND ended_at IS NULL
UNION ALL
SELECT 'no_access', NULL, NULL, NULL, count(*), NULL
FROM (
    SELECT 1
    FROM (SELECT machine_id, process FROM work_backoff WHERE fault = 'access') AS b
    CROSS JOIN LATERAL (SELECT provider FROM machine_provided WHERE machine_id = b.machine_id LIMIT 1) AS p
    WHERE b.process = 'ShepherdAgentStart' AND p.provider = :provider
    LIMIT 1000
) AS counted
UNION ALL
SELECT 'window', NULL, NULL, NULL, count(*), NULL FROM looked
UNION ALL
SELECT 'awaited', NULL, NULL, NULL, count(*), NULL FROM awaited
UNION ALL
SELECT 'moved', NULL, NULL, NULL, count(*), NULL FROM moved
UNION ALL
SELECT 'due', location, reported, news, count(*), NULL
FROM (
    SELECT location, reported, news FROM judged WHERE free AND silent_at <= statement_timestamp()
    UNION ALL
    SELECT location, reported, false FROM not_back
) AS j
GROUP BY location, reported, news;

-- name: set_suspensions
-- Hold recovery back in these locations ('' for the provider as a whole), from now on if it is not so yet, and nowhere
-- else any more. The reason is the last one: while a hold is in force, it may become
-- another. One row for each location where it ended, and one in any case.
WITH session AS (
    SELECT session_id
    FROM sessions
    WHERE session_id = :session_id AND fence = :fence AND deadline > clock_timestamp()
    FOR UPDATE
),
wanted AS (
    SELECT :provider AS provider, g.location, clock_timestamp() AS suspended_at, NULL::timestamptz AS ended_at, g.reason
    FROM unnest(:locations::text[], :reasons::text[]) AS g (location, reason)
    UNION ALL
    SELECT provider, location, suspended_at, clock_timestamp(), reason
    FROM recovery_suspensions
    WHERE provider = :provider AND ended_at IS NULL AND location <> ALL (:locations::text[])
),
changed AS (
    INSERT INTO recovery_suspensions AS h (provider, location, suspended_at, ended_at, reason)
    SELECT w.provider, w.location, w.suspended_at, w.ended_at, w.reason
    FROM wanted w CROSS JOIN session
    ORDER BY w.location
    ON CONFLICT (provider, location) DO UPDATE
    SET
        suspended_at = CASE WHEN h.ended_at IS NULL THEN h.suspended_at ELSE excluded.suspended_at END,
        ended_at = excluded.ended_at,
        reason = excluded.reason
    WHERE h.ended_at IS NOT NULL OR excluded.ended_at IS NOT NULL OR h.reason <> excluded.reason
    RETURNING h.location, h.ended_at
)
SELECT (SELECT count(*) FROM session) AS sessions, c.location
FROM (SELECT 1) AS always
LEFT JOIN changed c ON c.ended_at IS NOT NULL;

-- name: set_ssh_outages
-- SSH has an outage in these locations ('' for the provider as a whole), from now on if it is not on record yet, and
-- nowhere else any more.
WITH session AS (
    SELECT session_id
    FROM sessions
    WHERE session_id = :session_id AND fence = :fence AND deadline > clock_timestamp()
    FOR UPDATE
),
wanted AS (
    SELECT :provider AS provider, g.location, clock_timestamp() AS began_at, NULL::timestamptz AS ended_at, g.reason
    FROM unnest(:locations::text[], :reasons::text[]) AS g (location, reason)
    UNION ALL
    SELECT provider, location, began_at, clock_timestamp(), reason
    FROM ssh_outages
    WHERE provider = :provider AND ended_at IS NULL AND location <> ALL (:locations::text[])
),
changed AS (
    INSERT INTO ssh_outages AS o (provider, location, began_at, ended_at, reason)
    SELECT w.provider, w.location, w.began_at, w.ended_at, w.reason
    FROM wanted w CROSS JOIN session
    ORDER BY w.location
    ON CONFLICT (provider, location) DO UPDATE
    SET
        began_at = CASE WHEN o.ended_at IS NULL THEN o.began_at ELSE excluded.began_at END,
        ended_at = excluded.ended_at,
        reason = excluded.reason
)
SELECT count(*) FROM session;

-- name: ignore_suspensions
-- For a rehearsal, which is rolled back: what would be claimed if nothing were held back?
DELETE FROM recovery_suspensions WHERE provider = :provider AND ended_at IS NULL;

-- name: recovery_gaps
-- For how long nobody looked, in seconds, and how many seconds ago that ended, as a look would find it now.
SELECT
    extract(epoch FROM ended_at - began_at)::float8 AS seconds,
    extract(epoch FROM statement_timestamp() - ended_at)::float8 AS ended_ago
FROM recovery_gaps_until_now
WHERE provider = :provider;

-- name: delete_old_gaps
-- Drop what nobody asks for any more: gaps that ended long ago.
DELETE FROM recovery_gaps WHERE provider = :provider AND ended_at < statement_timestamp() - interval '1 day';

-- name: recovery_suspensions
-- The holds in force, and those that ended within a day, after which silence is counted from their end; and the outages of
-- SSH likewise.
SELECT provider, location, suspended_at, ended_at, reason
FROM (
    SELECT provider, location, suspended_at, ended_at, reason FROM recovery_suspensions
    UNION ALL
    SELECT provider, location, began_at, ended_at, reason FROM ssh_outages
) AS either
WHERE ended_at IS NULL OR ended_at > clock_timestamp() - interval '1 day'
ORDER BY provider, location, suspended_at;
