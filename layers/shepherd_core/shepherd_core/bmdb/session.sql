-- Sessions: open, renew the lease, fence, close.
--
-- A session is alive while its deadline is later than clock_timestamp(). now() is not used: it is the start of the
-- transaction, which may lie before the deadline although the deadline has passed since. That a session has expired is
-- decided by statement_timestamp(), which is never later than clock_timestamp() and by which an index can be searched.
--
-- A statement that writes for a session locks the session's row until it commits, and requires :fence to equal the
-- row's fence. When the answer to a statement was lost, fence_session waits for that lock and raises the fence. After
-- that, the lost statement has either committed or can never commit. A few statements do without the fence, because
-- they may run twice and commit late (such as close_session); tests/unit/test_statements.py has the reason for each.

-- name: open_session
-- Open a session, and end the work of expired sessions with history 'Expired'. So no separate reaper is needed: every
-- new session reaps.
--
-- One of the machines of an expired session may have killed its function, or none. So each gets a cause that says this,
-- and a backoff that grows with the number of deaths in a row. From now on they are suspects (see loops/claims.py). The
-- backoff has no interval, because it says nothing about the machine.
--
-- The row of an expired session is locked first (SKIP LOCKED): a session that is renewing its lease or committing at this
-- moment is left alone. A lock with which no work was begun leaves no event and no backoff. At most 20 expired sessions are
-- reaped at a time, so that opening a session stays fast after an outage.
--
-- For the Recoverer of :provider (null: for others), also record its timeouts, if they have changed (else nothing is
-- locked). Also delete at most 20 ticks that began more than 14 days ago.
--
-- No row: this code cannot use the schema, or the clocks differ; then nothing else happens either.
WITH expired_sessions AS (
    SELECT s.session_id, s.component_name
    FROM sessions s
    WHERE s.deadline <= statement_timestamp()
        AND {clock_agrees}
        AND EXISTS (SELECT 1 FROM work w WHERE w.session_id = s.session_id)
    ORDER BY s.deadline
    LIMIT 20
    FOR UPDATE OF s SKIP LOCKED
),
-- Begun or only locked.
work_deleted AS (
    DELETE FROM work
    WHERE session_id IN (SELECT session_id FROM expired_sessions)
    RETURNING machine_id, process, session_id, began_at
),
-- Of the work that was begun: how often in a row, and the cause for people.
deaths AS (
    SELECT
        w.machine_id, w.process, w.session_id,
        coalesce(b.deaths, 0) + 1 AS deaths,
        s.component_name || ' died or was cut off while it worked on this machine'
            || CASE WHEN c.machines > 1 THEN ' and ' || c.machines - 1 || ' more' ELSE '' END
            || ', ' || coalesce(b.deaths, 0) + 1 || ' times in a row' AS cause
    FROM work_deleted w
    JOIN expired_sessions s ON s.session_id = w.session_id
    JOIN (SELECT session_id, count(began_at) AS machines FROM work_deleted GROUP BY session_id) AS c
        ON c.session_id = w.session_id
    LEFT JOIN work_backoff b ON b.machine_id = w.machine_id AND b.process = w.process
    WHERE w.began_at IS NOT NULL
),
history_rows AS (
    INSERT INTO work_history (machine_id, process, event, kind, fault, failed_cause, session_id)
    SELECT machine_id, process, 'Expired', 'function-died', 'machine', cause, session_id FROM deaths
),
backoff_rows AS (
    INSERT INTO work_backoff (machine_id, process, until, kind, cause, deaths)
    SELECT
        b.machine_id, b.process,
        clock_timestamp() + {death_seconds} * interval '1 second',
        'function-died',
        b.cause, b.deaths
    FROM deaths b
    ORDER BY b.machine_id, b.process
    ON CONFLICT (machine_id, process) DO UPDATE
    SET (until, kind, cause, last_interval_seconds, fault, deaths) =
        (excluded.until, excluded.kind, excluded.cause, NULL, excluded.fault, excluded.deaths)
),
-- Not even a lock if nothing changed: the loops of all functions open sessions at the same time.
policy_row AS (
    INSERT INTO recovery_policy (provider, heartbeat_timeout_seconds, startup_timeout_seconds, grace_seconds, failed_steps)
    SELECT w.provider, w.heartbeat, w.startup, w.grace, w.failed_steps
    FROM (
        SELECT
            :provider::text AS provider,
            :heartbeat_timeout_seconds::float8 AS heartbeat,
            :startup_timeout_seconds::float8 AS startup,
            :grace_seconds::float8 AS grace,
            :failed_steps::boolean AS failed_steps
    ) AS w
    LEFT JOIN recovery_policy y ON y.provider = w.provider
    WHERE w.provider IS NOT NULL
        AND (y.heartbeat_timeout_seconds, y.startup_timeout_seconds, y.grace_seconds, y.failed_steps)
            IS DISTINCT FROM (w.heartbeat, w.startup, w.grace, w.failed_steps)
        AND {clock_agrees}
        AND {schema_fits}
    ON CONFLICT (provider) DO UPDATE
    SET (heartbeat_timeout_seconds, startup_timeout_seconds, grace_seconds, failed_steps) =
        (excluded.heartbeat_timeout_seconds, excluded.startup_timeout_seconds, excluded.grace_seconds, excluded.failed_steps)
),
-- A few old ones at each session, instead of many at once.
ticks_deleted AS (
    DELETE FROM ticks
    WHERE session_id = ANY (
        ARRAY(
            SELECT session_id
            FROM ticks
            WHERE began_at < statement_timestamp() - interval '14 days' AND {clock_agrees}
            ORDER BY began_at
            LIMIT 20 -- in an array it is evaluated once; in a join the planner may evaluate it for each row
            FOR UPDATE SKIP LOCKED
        )
    )
)
INSERT INTO sessions
    (component_name, runtime_info, interval_seconds, deadline, loop, provider, settings_hash, code_version)
SELECT
    :component_name, :runtime_info, :seconds::float8,
    clock_timestamp() + :seconds::float8 * interval '1 second',
    :loop::text, :loop_provider::text, :settings_hash::text, :code_version::text
WHERE {clock_agrees}
    AND {schema_fits}
RETURNING session_id;

-- name: fence_session
-- Wait until no statement of the session is about to commit, and refuse every statement that was sent with a lower
-- fence. FOR UPDATE conflicts with the key-share lock that a claim takes through the foreign key of its work rows. May
-- run twice, also late: the fence only grows.
WITH locked_session AS (SELECT session_id FROM sessions WHERE session_id = :session_id AND fence < :fence FOR UPDATE)
UPDATE sessions SET fence = :fence WHERE session_id IN (SELECT session_id FROM locked_session);

-- name: renew_session
-- Renew the lease: move the deadline to interval_seconds from now. No row: the session has expired, for good.
UPDATE sessions
SET deadline = clock_timestamp() + interval_seconds * interval '1 second'
WHERE {live_session}
RETURNING session_id;

-- name: close_session
-- End the session, and cancel the work that it still has. Also delete at most 100 expired sessions that have no work, a
-- minute after their deadline and only if no statement of theirs is about to commit (SKIP LOCKED). While the clocks differ,
-- nothing: the session expires by itself.
--
-- Each deleted session of a loop leaves a row in ticks. So a tick is recorded once, however often this statement runs and
-- whoever deletes the session.
--
-- Fails with a foreign key violation if work was committed while this statement waited for a lock: its snapshot cannot
-- contain that work. The caller runs it again.
WITH work_deleted AS (
    DELETE FROM work
    WHERE session_id = :session_id AND {clock_agrees}
    RETURNING machine_id, process, began_at
),
history_rows AS (
    INSERT INTO work_history (machine_id, process, event, session_id)
    SELECT machine_id, process, 'Canceled', :session_id::uuid FROM work_deleted WHERE began_at IS NOT NULL
),
sessions_deleted AS (
    DELETE FROM sessions
    WHERE (SELECT count(*) FROM work_deleted) >= 0
        AND {clock_agrees}
        AND (
            session_id = :session_id
            OR session_id IN (
                SELECT s.session_id
                FROM sessions s
                WHERE s.deadline <= statement_timestamp() - interval '1 minute'
                    AND NOT EXISTS (SELECT 1 FROM work w WHERE w.session_id = s.session_id)
                ORDER BY s.deadline
                LIMIT 100
                FOR UPDATE SKIP LOCKED
            )
        )
    RETURNING session_id, loop, provider, runtime_info, created_at, deadline, settings_hash, code_version
)
INSERT INTO ticks
    (session_id, loop, provider, runtime_info, began_at, ended_at, outcome, kind, cause, counts, settings_hash, code_version)
SELECT
    session_id, loop, provider, runtime_info, created_at,
    CASE WHEN session_id = :session_id THEN clock_timestamp() ELSE deadline END,
    CASE WHEN session_id = :session_id THEN :outcome::text ELSE 'Expired' END,
    CASE WHEN session_id = :session_id THEN :kind::text ELSE 'function-died' END,
    CASE WHEN session_id = :session_id THEN :cause::text END,
    CASE WHEN session_id = :session_id THEN :counts::jsonb ELSE '{}'::jsonb END,
    settings_hash, code_version
FROM sessions_deleted
WHERE loop IS NOT NULL;
