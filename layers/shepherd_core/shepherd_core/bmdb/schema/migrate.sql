-- Statements of the migration runner.

-- name: create_schema_migrations
-- The migrations that were applied. oldest_code is the version of the oldest code that can use the schema since then.
CREATE TABLE IF NOT EXISTS schema_migrations (
    version integer PRIMARY KEY,
    name text NOT NULL,
    checksum text NOT NULL,
    oldest_code integer NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- name: create_schema_lock
-- One row to lock while migrating, so that concurrent runners take turns.
CREATE TABLE IF NOT EXISTS schema_lock (id integer PRIMARY KEY CHECK (id = 1));

-- name: fill_schema_lock
-- Insert that row.
INSERT INTO schema_lock (id) VALUES (1) ON CONFLICT (id) DO NOTHING;

-- name: take_schema_lock
-- Wait until no other runner is migrating.
SELECT id FROM schema_lock FOR UPDATE;

-- name: schema_exists
-- Whether this database was ever migrated.
SELECT 1 FROM information_schema.tables WHERE table_schema = current_schema() AND table_name = 'schema_migrations' LIMIT 1;

-- name: applied_migrations
-- The applied migrations, oldest first.
SELECT version, name, checksum, oldest_code FROM schema_migrations ORDER BY version;

-- name: record_migration
-- Record that a migration was applied, its checksum, and which code can use the schema from now on.
INSERT INTO schema_migrations (version, name, checksum, oldest_code) VALUES (:version, :name, :checksum, :oldest_code);
