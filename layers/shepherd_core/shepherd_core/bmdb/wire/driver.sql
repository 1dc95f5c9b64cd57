-- A new connection.

-- name: server_process
-- The server process that runs this connection's statements, and a setting of it.
SELECT pg_backend_pid(), current_setting('statement_timeout');

-- name: set_up_connection
-- Set what holds for a connection.
SELECT
    pg_backend_pid(),
    set_config('statement_timeout', :statement, false),
    set_config('lock_timeout', :lock, false),
    set_config('idle_in_transaction_session_timeout', :idle, false),
    -- Not a schema of the user's name, which comes first by default: the Migrator makes the tables here.
    set_config('search_path', 'public', false),
    -- The only style that the driver can read.
    set_config('DateStyle', 'ISO', false),
    -- Our statements read few rows for any parameters, so a new plan for each execution gains nothing.
    set_config('plan_cache_mode', 'force_generic_plan', false),
    set_config('enable_seqscan', :scans::text, false),
    -- A server compiles plans for statements that run for many seconds; ours do not.
    set_config('jit', 'off', false);
