-- Sessions: open, keep alive, close. A session is alive while its deadline lies ahead of clock_timestamp();
-- now() would be the start of the transaction, which may lie before the deadline long after it has passed. That it is
-- dead is judged by statement_timestamp(), which is never later, and which an index can be searched by.
--
-- Every statement that writes for a session locks the session's row until it commits, and finds :fence in it. When an
-- answer was lost, fence_session waits for that lock and changes the fence: what was sent has committed by then, or
-- never will.

-- name: open_session
-- Open a session, and end the work of sessions that died: whoever comes next sweeps up. A dead session's row is
-- locked first, so that one which is just being kept alive, or is just committing, is left alone. At most 20 dead
-- sessions at a time, so that opening stays short after a bad hour. No row: the schema has another version.
WITH dead AS (
    SELECT s.session_id
    FROM sessions s
    WHERE s.deadline <= statement_timestamp()
        AND EXISTS (SELECT 1 FROM work w WHERE w.session_id = s.session_id)
    ORDER BY s.deadline
    LIMIT 20
    FOR UPDATE OF s SKIP LOCKED
),
expired AS (
    DELETE FROM work
    WHERE session_id IN (SELECT session_id FROM dead)
    RETURNING machine_id, process, session_id
),
noted AS (
    INSERT INTO work_history (machine_id, process, event, session_id)
    SELECT machine_id, process, 'Expired', session_id FROM expired
)
INSERT INTO sessions (component_name, runtime_info, interval_seconds, deadline)
SELECT
    :component_name, :runtime_info, :seconds::float8,
    clock_timestamp() + :seconds::float8 * interval '1 second'
WHERE (SELECT max(version) FROM schema_migrations) = :schema_version
RETURNING session_id;

-- name: fence_session
-- Wait until no statement of the session is about to commit (FOR UPDATE: the work of a claim refers to the row), and let
-- none that was sent with a lower fence write any more. May run twice, and late: the fence only grows.
WITH held AS (
    SELECT session_id FROM sessions WHERE session_id = :session_id AND fence < :fence FOR UPDATE
)
UPDATE sessions SET fence = :fence WHERE session_id IN (SELECT session_id FROM held);

-- name: renew_session
-- Move the deadline ahead. No row: the session is dead and stays dead.
UPDATE sessions
SET deadline = clock_timestamp() + interval_seconds * interval '1 second'
WHERE session_id = :session_id AND fence = :fence AND deadline > clock_timestamp()
RETURNING session_id;

-- name: close_session
-- End the session, cancel what it left, drop at most 100 dead sessions that hold nothing more (a minute after their
-- death, and not while a statement of theirs is about to commit), and tell how much is still due (counted to 1,000 at
-- most, so that looking costs the same in any fleet) and for how many seconds. Fails with a foreign key violation when
-- work was committed while this waited, which it cannot see: then it is run again.
WITH due AS (
    SELECT d.machine_id
    FROM machine_due d
    WHERE d.machine_id = ANY(ARRAY(SELECT w.machine_id FROM work w WHERE w.session_id = :session_id))
    ORDER BY d.machine_id
    FOR UPDATE
),
canceled AS (
    DELETE FROM work
    WHERE session_id = :session_id AND (SELECT count(*) FROM due) >= 0
    RETURNING machine_id, process
),
noted AS (
    INSERT INTO work_history (machine_id, process, event, session_id)
    SELECT machine_id, process, 'Canceled', :session_id::uuid FROM canceled
),
moved AS (
    UPDATE machine_due
    SET
        not_before = clock_timestamp(),
        recovery_not_before = CASE WHEN recovery_not_before IS NOT NULL THEN clock_timestamp() END,
        revision = revision + 1
    WHERE machine_id = ANY(ARRAY(SELECT machine_id FROM canceled))
),
closed AS (
    DELETE FROM sessions
    WHERE session_id = :session_id
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
SELECT
    (
        SELECT count(*)
        FROM (
            SELECT 1
            FROM machine_due
            WHERE process = :process AND provider = :provider AND not_before <= statement_timestamp()
            ORDER BY not_before -- or else, where many seem to be due, the fleet is scanned for the first 1,000
            LIMIT 1000
        ) AS counted
    ) AS backlog,
    (
        SELECT extract(epoch FROM statement_timestamp() - not_before)::float8
        FROM machine_due
        WHERE process = :process AND provider = :provider AND not_before <= statement_timestamp()
        ORDER BY not_before
        LIMIT 1
    ) AS oldest_due_age_seconds;
