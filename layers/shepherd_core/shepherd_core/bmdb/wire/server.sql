-- The database server: its time, and the transactions that keep its dead rows.

-- name: now
-- The database's time, for output such as "5 minutes ago".
SELECT clock_timestamp();

-- name: checkpoint_ahead
-- By how many seconds the last checkpoint lies in the future: it was made by a clock that was ahead, and has been corrected
-- since. While the clocks differ the BMDB is not written, so that nothing else on record says so.
SELECT extract(epoch FROM checkpoint_time - clock_timestamp())::float8 FROM pg_control_checkpoint();

-- name: find_oldest_transaction
-- The oldest transaction that keeps the dead rows of this database, if it is older than :seconds: an open one or a prepared
-- one. PostgreSQL tells the age of open ones to their own user, and to members of pg_read_all_stats.
SELECT kind, pid, owner, application, state, seconds
FROM (
    SELECT
        'open' AS kind,
        pid,
        usename::text AS owner,
        application_name AS application, state,
        extract(epoch FROM clock_timestamp() - xact_start)::float8 AS seconds
    FROM pg_stat_activity
    WHERE datname = current_database()
        AND pid <> pg_backend_pid()
        AND backend_type = 'client backend'
        AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
    UNION ALL
    SELECT 'prepared', NULL, owner::text, gid, NULL, extract(epoch FROM clock_timestamp() - prepared)::float8
    FROM pg_prepared_xacts
    WHERE database = current_database()
) AS transactions
WHERE seconds > :seconds
ORDER BY seconds DESC
LIMIT 1;

-- name: read_only
-- Whether the database takes no writes.
SELECT pg_is_in_recovery() OR current_setting('default_transaction_read_only')::boolean;

-- name: sort_on_disk
-- Until the end of the transaction, a sort of more than this goes through a file on the server's disk.
SELECT set_config('work_mem', '64kB', true);

-- name: sort_much
-- Sorts as much as a segment of the server's log, which it extends when it has to write.
SELECT count(*) FROM (SELECT repeat(n::text, 2000) FROM generate_series(1, 2500) AS n ORDER BY 1 OFFSET 0) AS x;

-- name: limited_user
-- Who asks, if find_oldest_transaction does not show the transactions of other users to it.
SELECT current_user::text WHERE NOT pg_has_role('pg_read_all_stats', 'USAGE');
