-- What the migration runner keeps.

-- name: create_schema_migrations
-- The record of what was applied.
CREATE TABLE IF NOT EXISTS schema_migrations (
    version integer PRIMARY KEY,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- name: create_schema_lock
-- One row to hold while migrating, so that two runners take turns.
CREATE TABLE IF NOT EXISTS schema_lock (id integer PRIMARY KEY CHECK (id = 1));

-- name: fill_schema_lock
-- The one row.
INSERT INTO schema_lock (id) VALUES (1) ON CONFLICT (id) DO NOTHING;

-- name: take_schema_lock
-- Wait for whoever is migrating.
SELECT id FROM schema_lock FOR UPDATE;

-- name: schema_exists
-- Whether a migration was ever run here.
SELECT 1 FROM information_schema.tables WHERE table_schema = current_schema() AND table_name = 'schema_migrations' LIMIT 1;

-- name: applied_migrations
-- What was applied, oldest first.
SELECT version, name, checksum FROM schema_migrations ORDER BY version;

-- name: record_migration
-- Remember that a file was applied, and as what.
INSERT INTO schema_migrations (version, name, checksum) VALUES (:version, :name, :checksum);
