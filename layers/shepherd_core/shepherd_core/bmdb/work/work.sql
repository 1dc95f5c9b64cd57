-- Work: claim, and the ways to end it. Every statement that ends work locks the due rows first, in the order of
-- the machine id (one lock order everywhere), then holds the session's row and checks its deadline and its fence (see
-- session.sql), deletes the work rows that are this session's, and does the rest for those that it deleted and no others. What comes back is what was
-- ended; what is missing there was lost.

-- name: claim
-- Take up to :limit due machines, longest waiting first. As many due rows are locked as are wanted (10 where none is),
-- and judged by the tags: what is due in truth is claimed, what is not is moved to the moment at which it may be. Rows that another claim holds (SKIP LOCKED), or that changed since the tags were read (revision, of
-- which the statement sees the older one when it reads the row without a lock), are left alone. A claimed row moves to
-- the session's deadline: should the session die, the machine falls due by itself. Only a claim that takes something
-- locks the session's row: one that finds nothing writes nothing. Where recovery is held back, machines
-- are passed over and stay as due as they are, so that it can be seen how many they are, but for those that an operator's
-- override lets through (spared), which the history says. The inner limit is a constant,
-- and the judgement LATERAL, so that the planner expects few rows in any fleet and never scans it.
WITH session AS (
    SELECT session_id
    FROM sessions
    WHERE session_id = :session_id AND fence = :fence AND deadline > clock_timestamp()
),
held AS (
    SELECT location
    FROM recovery_suspensions
    WHERE :process = 'ShepherdRecovery' AND provider = :provider AND ended_at IS NULL
),
spared AS (
    SELECT machine_id, owner, reason
    FROM recovery_exempt_machines
    WHERE provider = :provider AND EXISTS (SELECT 1 FROM held)
),
admitted AS (
    SELECT session_id
    FROM session
    WHERE NOT EXISTS (
        SELECT 1
        FROM pauses
        WHERE machine_id IS NULL
            AND (process IS NULL OR process = :process)
            AND (provider IS NULL OR provider = :provider)
            AND (expires_at IS NULL OR expires_at > clock_timestamp())
    )
    AND ('' <> ALL (ARRAY(SELECT location FROM held)) OR EXISTS (SELECT 1 FROM spared))
),
looked AS (
    SELECT machine_id, not_before, revision
    FROM (
        SELECT d.machine_id, d.not_before, d.revision
        FROM machine_due d
        WHERE d.process = :process
            AND d.provider = :provider
            AND d.not_before <= statement_timestamp()
            AND EXISTS (SELECT 1 FROM admitted)
            AND CASE
                WHEN d.machine_id = ANY (ARRAY(SELECT machine_id FROM spared)) THEN true
                WHEN '' = ANY (ARRAY(SELECT location FROM held)) THEN false
                WHEN EXISTS (SELECT 1 FROM held) THEN coalesce(
                    (SELECT p.provider_location FROM machine_provided p WHERE p.machine_id = d.machine_id)
                        <> ALL (ARRAY(SELECT location FROM held)),
                    true
                )
                ELSE true
            END
        ORDER BY d.not_before, d.machine_id
        LIMIT 100
        FOR UPDATE OF d SKIP LOCKED
    ) AS window_of_due
    LIMIT CASE WHEN :limit > 0 THEN :limit ELSE 10 END
),
-- Machines that did not come back after a recovery are found by a date of their own.
awaited AS (
    SELECT machine_id, recovery_not_before, revision
    FROM (
        SELECT d.machine_id, d.recovery_not_before, d.revision
        FROM machine_due d
        WHERE :process = 'ShepherdRecovery'
            AND d.process IS DISTINCT FROM 'ShepherdRecovery'
            AND d.provider = :provider
            AND d.recovery_not_before <= statement_timestamp()
            AND EXISTS (SELECT 1 FROM admitted)
            AND CASE
                WHEN d.machine_id = ANY (ARRAY(SELECT machine_id FROM spared)) THEN true
                WHEN '' = ANY (ARRAY(SELECT location FROM held)) THEN false
                WHEN EXISTS (SELECT 1 FROM held) THEN coalesce(
                    (SELECT p.provider_location FROM machine_provided p WHERE p.machine_id = d.machine_id)
                        <> ALL (ARRAY(SELECT location FROM held)),
                    true
                )
                ELSE true
            END
        ORDER BY d.recovery_not_before, d.machine_id
        LIMIT 100
        FOR UPDATE OF d SKIP LOCKED
    ) AS window_of_awaited
    LIMIT CASE WHEN :limit > 0 THEN :limit ELSE 10 END
),
seen AS (
    SELECT machine_id, not_before, revision, false AS overdue FROM looked
    UNION ALL
    SELECT machine_id, recovery_not_before, revision, true FROM awaited
),
judged AS (
    SELECT
        l.machine_id,
        l.not_before,
        l.overdue,
        n.process,
        n.reported,
        n.last_interval_seconds,
        CASE
            WHEN n.machine_id IS NULL THEN NULL
            WHEN n.process IS NULL THEN statement_timestamp()
            WHEN n.locked_until IS NOT NULL
                THEN greatest(n.locked_until, statement_timestamp() + interval '5 seconds')
            ELSE greatest(
                n.since + CASE
                    WHEN n.process <> 'ShepherdRecovery' THEN interval '0 seconds'
                    WHEN n.overdue THEN :min_overdue_seconds::float8 * interval '1 second'
                    WHEN n.reported THEN :effective_heartbeat_timeout_seconds::float8 * interval '1 second'
                    ELSE :effective_startup_timeout_seconds::float8 * interval '1 second'
                END,
                n.backoff_until,
                CASE
                    WHEN n.paused_until IS NULL THEN n.since
                    ELSE least(n.paused_until, statement_timestamp() + interval '10 minutes')
                END
            )
        END AS ready_at
    FROM seen l
    JOIN machine_due d ON d.machine_id = l.machine_id AND d.revision = l.revision
    LEFT JOIN LATERAL (
        SELECT * FROM machine_eligibility WHERE machine_id = l.machine_id AND overdue = l.overdue LIMIT 1
    ) AS n ON true
    WHERE l.overdue OR n.machine_id IS NOT NULL
),
chosen AS (
    SELECT machine_id, not_before, last_interval_seconds, overdue
    FROM judged
    WHERE process = :process AND ready_at <= statement_timestamp()
    ORDER BY not_before, machine_id
    LIMIT :limit
),
fence AS (
    SELECT session_id, deadline
    FROM sessions
    WHERE session_id = :session_id
        AND fence = :fence
        AND deadline > clock_timestamp()
        AND EXISTS (SELECT 1 FROM chosen)
    FOR UPDATE
),
taken AS (
    SELECT c.machine_id, c.not_before, c.last_interval_seconds, c.overdue, f.session_id, f.deadline
    FROM chosen c CROSS JOIN fence f
),
-- Patience may end sooner than it seems now, and leave the due row as it is: with a fresh agent by its first heartbeat, so
-- its row waits no longer than an agent may be silent; after a gap in which nobody looked in :recheck_seconds (null: there is
-- no gap).
early AS (
    SELECT
        machine_id,
        process,
        overdue,
        CASE
            WHEN ready_at IS NULL OR process IS DISTINCT FROM 'ShepherdRecovery' THEN ready_at
            ELSE least(
                ready_at,
                statement_timestamp() + :recheck_seconds::float8 * interval '1 second',
                CASE
                    WHEN NOT overdue AND NOT reported
                        THEN statement_timestamp() + :heartbeat_timeout_seconds::float8 * interval '1 second'
                END
            )
        END AS ready_at
    FROM judged
    WHERE process IS DISTINCT FROM :process OR ready_at > statement_timestamp()
),
moved AS (
    UPDATE machine_due d
    SET
        process = CASE WHEN x.overdue THEN d.process ELSE x.process END,
        not_before = CASE WHEN x.overdue THEN d.not_before ELSE x.not_before END,
        recovery_not_before = CASE WHEN x.overdue THEN x.not_before ELSE d.recovery_not_before END,
        revision = d.revision + 1
    FROM (
        SELECT t.machine_id, :process AS process, t.overdue, t.deadline AS not_before FROM taken t
        UNION ALL
        SELECT e.machine_id, e.process, e.overdue, e.ready_at FROM early e
    ) AS x
    WHERE d.machine_id = x.machine_id
    RETURNING d.machine_id
),
locked AS (
    INSERT INTO work (machine_id, process, session_id)
    SELECT machine_id, :process, session_id FROM taken
),
noted AS (
    INSERT INTO work_history (machine_id, process, event, failed_cause, session_id)
    SELECT
        t.machine_id,
        :process,
        'Started',
        (
            SELECT 'although recovery is suspended, by ' || max(s.owner) || ': ' || max(s.reason)
            FROM spared s
            WHERE s.machine_id = t.machine_id
            HAVING count(*) > 0
        ),
        t.session_id
    FROM taken t
)
SELECT
    (SELECT count(*) FROM session) AS sessions,
    (SELECT count(*) FROM moved) AS examined,
    t.machine_id,
    p.provider_id,
    k.host_key,
    t.last_interval_seconds,
    t.not_before
FROM (SELECT 1) AS always
LEFT JOIN taken t ON true
LEFT JOIN machine_provided p ON p.machine_id = t.machine_id
LEFT JOIN machine_host_key k ON k.machine_id = t.machine_id
ORDER BY t.not_before, t.machine_id;

-- name: start_work
-- Take one named machine for a process that no loop schedules, due or not. No machine in the row: somebody works on it,
-- or has just begun (revision). Fails with a unique violation when the machine already has such work.
WITH seen AS (
    SELECT revision FROM machine_due WHERE machine_id = :machine_id
),
due AS (
    SELECT revision FROM machine_due WHERE machine_id = :machine_id FOR UPDATE
),
session AS (
    SELECT session_id, deadline
    FROM sessions
    WHERE (SELECT count(*) FROM due) >= 0
        AND session_id = :session_id
        AND fence = :fence
        AND deadline > clock_timestamp()
    FOR UPDATE
),
admitted AS (
    SELECT session_id, deadline
    FROM session
    WHERE (SELECT revision FROM due) IS NOT DISTINCT FROM (SELECT revision FROM seen)
        AND NOT EXISTS (
            SELECT 1
            FROM work
            WHERE machine_id = :machine_id
                AND process <> :process
                AND process IN ('ShepherdAccess', 'ShepherdAgentStart', 'ShepherdRecovery')
                AND :process IN ('ShepherdAccess', 'ShepherdAgentStart', 'ShepherdRecovery')
        )
),
moved AS (
    UPDATE machine_due
    SET not_before = (SELECT deadline FROM admitted), revision = revision + 1
    WHERE machine_id = :machine_id AND EXISTS (SELECT 1 FROM admitted)
),
locked AS (
    INSERT INTO work (machine_id, process, session_id)
    SELECT :machine_id::uuid, :process, session_id FROM admitted
    RETURNING machine_id
),
noted AS (
    INSERT INTO work_history (machine_id, process, event, session_id)
    SELECT l.machine_id, :process, 'Started', s.session_id FROM locked l CROSS JOIN session s
)
SELECT
    (SELECT count(*) FROM session) AS sessions,
    1 AS examined,
    l.machine_id,
    p.provider_id,
    k.host_key,
    b.last_interval_seconds,
    clock_timestamp() AS not_before
FROM (SELECT 1) AS always
LEFT JOIN locked l ON true
LEFT JOIN machine_provided p ON p.machine_id = l.machine_id
LEFT JOIN machine_host_key k ON k.machine_id = l.machine_id
LEFT JOIN work_backoff b ON b.machine_id = l.machine_id AND b.process = :process;

-- name: find_unacknowledged_claims
-- The work of this session that its owner does not know of, because the connection broke before the answer of a
-- claim arrived. Same columns as claim; since when the machine was due is lost, so it is due since now.
SELECT
    1 AS sessions,
    0 AS examined,
    w.machine_id,
    p.provider_id,
    k.host_key,
    b.last_interval_seconds,
    clock_timestamp() AS not_before
FROM work w
JOIN machine_provided p ON p.machine_id = w.machine_id
LEFT JOIN machine_host_key k ON k.machine_id = w.machine_id
LEFT JOIN work_backoff b ON b.machine_id = w.machine_id AND b.process = w.process
WHERE w.session_id = :session_id
    AND w.process = :process
    AND NOT w.machine_id = ANY(:known::uuid[]);

-- name: find_unacknowledged_ends
-- Which of the machines this session ended already, because the connection broke before the answer arrived: those
-- where that is the last that it did. It may have ended work on the same machine before.
SELECT h.machine_id
FROM work_history h
WHERE h.machine_id = ANY(:machine_ids::uuid[])
    AND h.session_id = :session_id
    AND h.process = :process
    AND h.event = :event
    AND NOT EXISTS (
        SELECT 1
        FROM work_history l
        WHERE l.machine_id = h.machine_id
            AND l.session_id = h.session_id
            AND l.process = h.process
            AND l.timestamp > h.timestamp
    );

-- name: finish_agent_start
-- The agent runs: record its key (and the host key of a first contact), forget the backoff, and let the Recoverer
-- look at the machine from now on.
WITH given AS (
    SELECT g.machine_id, decode(g.public_key, 'hex') AS public_key, g.host_key
    FROM unnest(:machine_ids::uuid[], :public_keys::text[], :host_keys::text[]) AS g (machine_id, public_key, host_key)
),
due AS (
    SELECT d.machine_id
    FROM machine_due d
    JOIN given g ON g.machine_id = d.machine_id
    ORDER BY d.machine_id
    FOR UPDATE OF d
),
session AS (
    SELECT session_id
    FROM sessions
    WHERE (SELECT count(*) FROM due) >= 0 AND session_id = :session_id AND fence = :fence AND deadline > clock_timestamp()
    FOR UPDATE
),
ended AS (
    DELETE FROM work
    WHERE process = 'ShepherdAgentStart'
        AND session_id IN (SELECT session_id FROM session)
        AND machine_id IN (SELECT machine_id FROM due)
    RETURNING machine_id
),
started AS (
    INSERT INTO machine_agent_started (machine_id, agent_started_at, agent_public_key)
    SELECT g.machine_id, clock_timestamp(), g.public_key
    FROM given g JOIN ended e ON e.machine_id = g.machine_id
    ON CONFLICT (machine_id) DO UPDATE
    SET agent_started_at = excluded.agent_started_at, agent_public_key = excluded.agent_public_key
),
-- What an earlier agent signed says nothing of this one, whose clock may be behind.
silenced AS (
    DELETE FROM machine_agent_heartbeat WHERE machine_id IN (SELECT machine_id FROM ended)
),
pinned AS (
    INSERT INTO machine_host_key (machine_id, host_key, pinned_at)
    SELECT g.machine_id, g.host_key, clock_timestamp()
    FROM given g JOIN ended e ON e.machine_id = g.machine_id
    WHERE g.host_key IS NOT NULL
    ON CONFLICT (machine_id) DO NOTHING
),
back AS (
    DELETE FROM machine_grace WHERE machine_id IN (SELECT machine_id FROM ended)
),
forgiven AS (
    DELETE FROM work_backoff
    WHERE process = 'ShepherdAgentStart' AND machine_id IN (SELECT machine_id FROM ended)
),
noted AS (
    INSERT INTO work_history (machine_id, process, event, session_id)
    SELECT machine_id, 'ShepherdAgentStart', 'Finished', :session_id::uuid FROM ended
),
moved AS (
    UPDATE machine_due
    SET process = 'ShepherdRecovery', not_before = clock_timestamp(), recovery_not_before = NULL, revision = revision + 1
    WHERE machine_id IN (SELECT machine_id FROM ended)
)
SELECT machine_id FROM ended;

-- name: finish_recovery
-- A step was taken: the machine's agent is gone and with it what we knew of it. The next agent start waits until the
-- machine should have come up, and not for what went wrong before. Where it is to come back within :grace_seconds, and
-- does not, it needs recovery again; for :cooldown_seconds it needs none, should it come back or not. :rebooted: it lost
-- its system, and not only its agent.
WITH due AS (
    SELECT d.machine_id FROM machine_due d WHERE d.machine_id = ANY(:machine_ids::uuid[]) ORDER BY d.machine_id FOR UPDATE
),
session AS (
    SELECT session_id
    FROM sessions
    WHERE (SELECT count(*) FROM due) >= 0 AND session_id = :session_id AND fence = :fence AND deadline > clock_timestamp()
    FOR UPDATE
),
ended AS (
    DELETE FROM work
    WHERE process = 'ShepherdRecovery'
        AND session_id IN (SELECT session_id FROM session)
        AND machine_id IN (SELECT machine_id FROM due)
    RETURNING machine_id
),
stopped AS (
    DELETE FROM machine_agent_started WHERE machine_id IN (SELECT machine_id FROM ended)
),
silenced AS (
    DELETE FROM machine_agent_heartbeat WHERE machine_id IN (SELECT machine_id FROM ended)
),
rebooted AS (
    INSERT INTO machine_rebooted (machine_id, rebooted_at, boot_wait_until, had_reported)
    SELECT
        e.machine_id,
        clock_timestamp(),
        clock_timestamp() + :boot_wait_seconds::float8 * interval '1 second',
        coalesce(
            (SELECT n.reported FROM machine_need n WHERE n.machine_id = e.machine_id AND n.last_heartbeat_at IS NOT NULL),
            (SELECT r.had_reported FROM machine_rebooted r WHERE r.machine_id = e.machine_id),
            false
        )
    FROM ended e
    WHERE :rebooted::boolean
    ON CONFLICT (machine_id) DO UPDATE
    SET rebooted_at = excluded.rebooted_at, boot_wait_until = excluded.boot_wait_until, had_reported = excluded.had_reported
),
awaited AS (
    INSERT INTO machine_grace (machine_id, grace_began_at, grace_until)
    SELECT machine_id, clock_timestamp(), clock_timestamp() + :grace_seconds::float8 * interval '1 second'
    FROM ended
    WHERE :grace_seconds::float8 IS NOT NULL
    ON CONFLICT (machine_id) DO UPDATE SET grace_began_at = excluded.grace_began_at, grace_until = excluded.grace_until
),
forgiven AS (
    UPDATE work_backoff
    SET
        until = clock_timestamp() + CASE
            WHEN process = 'ShepherdRecovery' THEN :cooldown_seconds::float8 * interval '1 second'
            ELSE interval '0 seconds'
        END,
        cause = CASE WHEN process = 'ShepherdRecovery' THEN 'no other step so soon after the last' ELSE cause END,
        last_interval_seconds = NULL
    WHERE machine_id IN (SELECT machine_id FROM ended)
),
noted AS (
    INSERT INTO work_history (machine_id, process, event, session_id)
    SELECT machine_id, 'ShepherdRecovery', 'Finished', :session_id::uuid FROM ended
),
moved AS (
    UPDATE machine_due
    SET
        process = 'ShepherdAgentStart',
        not_before = clock_timestamp() + :boot_wait_seconds::float8 * interval '1 second',
        recovery_not_before = clock_timestamp() + :grace_seconds::float8 * interval '1 second',
        revision = revision + 1
    WHERE machine_id IN (SELECT machine_id FROM ended)
)
SELECT machine_id FROM ended;

-- name: finish
-- The work is done and changed no tag.
WITH due AS (
    SELECT d.machine_id FROM machine_due d WHERE d.machine_id = ANY(:machine_ids::uuid[]) ORDER BY d.machine_id FOR UPDATE
),
session AS (
    SELECT session_id
    FROM sessions
    WHERE (SELECT count(*) FROM due) >= 0 AND session_id = :session_id AND fence = :fence AND deadline > clock_timestamp()
    FOR UPDATE
),
ended AS (
    DELETE FROM work
    WHERE process = :process
        AND session_id IN (SELECT session_id FROM session)
        AND machine_id = ANY(:machine_ids::uuid[])
    RETURNING machine_id
),
forgiven AS (
    DELETE FROM work_backoff WHERE process = :process AND machine_id IN (SELECT machine_id FROM ended)
),
noted AS (
    INSERT INTO work_history (machine_id, process, event, session_id)
    SELECT machine_id, :process, 'Finished', :session_id::uuid FROM ended
),
moved AS (
    UPDATE machine_due
    SET
        not_before = clock_timestamp(),
        recovery_not_before = CASE WHEN recovery_not_before IS NOT NULL THEN clock_timestamp() END,
        revision = revision + 1
    WHERE machine_id IN (SELECT machine_id FROM ended)
)
SELECT machine_id FROM ended;

-- name: fail
-- The work failed: leave each machine alone for its interval, and keep the cause, and whose fault it is. The host key of
-- a first contact stays pinned although the rest went wrong. Where the step of recovery (step) that is on record was
-- certainly not taken, that is put on record too.
WITH given AS (
    SELECT g.machine_id, g.cause, g.seconds, g.host_key, g.fault, g.step
    FROM unnest(
        :machine_ids::uuid[],
        :causes::text[],
        :intervals::bigint[],
        :host_keys::text[],
        :faults::text[],
        :steps::text[]
    ) AS g (machine_id, cause, seconds, host_key, fault, step)
),
due AS (
    SELECT d.machine_id
    FROM machine_due d
    JOIN given g ON g.machine_id = d.machine_id
    ORDER BY d.machine_id
    FOR UPDATE OF d
),
session AS (
    SELECT session_id
    FROM sessions
    WHERE (SELECT count(*) FROM due) >= 0 AND session_id = :session_id AND fence = :fence AND deadline > clock_timestamp()
    FOR UPDATE
),
ended AS (
    DELETE FROM work
    WHERE process = :process
        AND session_id IN (SELECT session_id FROM session)
        AND machine_id IN (SELECT machine_id FROM given)
    RETURNING machine_id
),
backed_off AS (
    INSERT INTO work_backoff (machine_id, process, until, cause, last_interval_seconds, fault)
    SELECT g.machine_id, :process, clock_timestamp() + g.seconds * interval '1 second', g.cause, g.seconds, g.fault
    FROM given g JOIN ended e ON e.machine_id = g.machine_id
    ON CONFLICT (machine_id, process) DO UPDATE
    SET
        until = excluded.until,
        cause = excluded.cause,
        last_interval_seconds = excluded.last_interval_seconds,
        fault = excluded.fault
),
pinned AS (
    INSERT INTO machine_host_key (machine_id, host_key, pinned_at)
    SELECT g.machine_id, g.host_key, clock_timestamp()
    FROM given g JOIN ended e ON e.machine_id = g.machine_id
    WHERE g.host_key IS NOT NULL
    ON CONFLICT (machine_id) DO NOTHING
),
noted AS (
    INSERT INTO work_history (machine_id, process, event, step, failed_cause, session_id)
    SELECT g.machine_id, :process, 'NotTaken', g.step, g.cause, :session_id::uuid
    FROM given g JOIN ended e ON e.machine_id = g.machine_id
    WHERE g.step IS NOT NULL
    UNION ALL
    SELECT g.machine_id, :process, 'Failed', NULL, g.cause, :session_id::uuid
    FROM given g JOIN ended e ON e.machine_id = g.machine_id
),
moved AS (
    UPDATE machine_due d
    SET
        not_before = clock_timestamp()
            + CASE WHEN d.process = :process THEN g.seconds ELSE 0 END * interval '1 second',
        recovery_not_before = CASE
            WHEN d.recovery_not_before IS NOT NULL
                THEN clock_timestamp()
                    + CASE WHEN :process = 'ShepherdRecovery' THEN g.seconds ELSE 0 END * interval '1 second'
        END,
        revision = d.revision + 1
    FROM given g
    JOIN ended e ON e.machine_id = g.machine_id
    WHERE d.machine_id = g.machine_id
)
SELECT machine_id FROM ended;

-- name: cancel
-- The work was not done and nothing is held against the machine: it is as due as it was before.
WITH given AS (
    SELECT g.machine_id, g.not_before
    FROM unnest(:machine_ids::uuid[], :not_befores::timestamptz[]) AS g (machine_id, not_before)
),
due AS (
    SELECT d.machine_id
    FROM machine_due d
    JOIN given g ON g.machine_id = d.machine_id
    ORDER BY d.machine_id
    FOR UPDATE OF d
),
session AS (
    SELECT session_id
    FROM sessions
    WHERE (SELECT count(*) FROM due) >= 0 AND session_id = :session_id AND fence = :fence AND deadline > clock_timestamp()
    FOR UPDATE
),
ended AS (
    DELETE FROM work
    WHERE process = :process
        AND session_id IN (SELECT session_id FROM session)
        AND machine_id IN (SELECT machine_id FROM given)
    RETURNING machine_id
),
noted AS (
    INSERT INTO work_history (machine_id, process, event, session_id)
    SELECT machine_id, :process, 'Canceled', :session_id::uuid FROM ended
),
moved AS (
    UPDATE machine_due d
    SET
        not_before = g.not_before,
        recovery_not_before = CASE WHEN d.recovery_not_before IS NOT NULL THEN g.not_before END,
        revision = d.revision + 1
    FROM given g
    JOIN ended e ON e.machine_id = g.machine_id
    WHERE d.machine_id = g.machine_id
)
SELECT machine_id FROM ended;
