-- The Updater's reading and writing: the facts that providers list about their machines. It writes only while the
-- provider's row in provider_listings names its session. An Updater that takes the row over reads the machines after it
-- did, so that an older listing never overwrites a newer one.

-- name: check_listing
-- The number of machines that are not ready, whether all machines are due for a comparison, and which session last
-- updated the provider's machines or is doing so. Reads only the machines that are not ready, so that a run with
-- nothing to do costs almost nothing in a fleet of any size.
SELECT
    (SELECT count(*) {updated_machines} AND {not_ready}) AS not_ready,
    l.listed_at IS NULL OR l.listed_at <= clock_timestamp() - :seconds::float8 * interval '1 second' AS due,
    l.session_id AS holder,
    s.session_id IS NOT NULL AS holder_alive
FROM (SELECT :provider::text AS provider) AS one
LEFT JOIN provider_listings l ON l.provider = one.provider
LEFT JOIN sessions s ON s.session_id = l.session_id AND s.deadline > clock_timestamp();

-- name: begin_listing
-- Become the one Updater of the provider, in place of the expired session that was seen (null: there was none). No row:
-- another Updater was faster. If the other session renewed its lease just before, it cannot write anything more.
INSERT INTO provider_listings (provider, session_id, began_at)
VALUES (:provider, :session_id, clock_timestamp())
ON CONFLICT (provider) DO UPDATE
SET session_id = excluded.session_id, began_at = excluded.began_at
WHERE provider_listings.session_id = :holder::uuid
RETURNING provider;

-- name: all_facts
-- The facts on record for every machine of the provider. Read before the provider is asked for the listing, so that
-- each machine is older than the listing.
{recorded_facts};

-- name: facts_not_ready
-- The same for the machines that are not ready.
{recorded_facts} AND {not_ready};

-- name: write_facts
-- Record what the provider lists about some machines, and renew the session's lease. No row: the session has expired, or
-- another took its place.
WITH provider_lock AS (
    SELECT provider FROM provider_listings WHERE provider = :provider AND session_id = :session_id FOR UPDATE
),
-- A long listing must not outlive its session.
session_renewed AS (
    UPDATE sessions
    SET deadline = clock_timestamp() + interval_seconds * interval '1 second'
    WHERE {live_session} AND EXISTS (SELECT 1 FROM provider_lock)
    RETURNING session_id
),
-- The facts of this page of the listing.
updated_machines AS (
    UPDATE machine_provided p
    SET
        provider_reservation_id = g.reservation_id,
        provider_ip_address = g.address,
        provider_location = g.location,
        provider_status = g.status,
        provider_failure = g.failure,
        provider_hardware = g.hardware,
        provider_labels = g.labels
    FROM jsonb_to_recordset(:rows::jsonb) AS g (
        machine_id uuid, reservation_id text, address text, location text, status text, failure text, hardware text,
        labels jsonb
    )
    WHERE p.machine_id = g.machine_id AND EXISTS (SELECT 1 FROM session_renewed)
    RETURNING p.machine_id
)
SELECT w.machine_id FROM session_renewed f LEFT JOIN updated_machines w ON true;

-- name: end_listing
-- Record that all machines were compared with the listing. No row: another session took the place; then the facts that
-- this one wrote may be older.
UPDATE provider_listings
SET listed_at = began_at
WHERE provider = :provider AND session_id = :session_id
RETURNING provider;
