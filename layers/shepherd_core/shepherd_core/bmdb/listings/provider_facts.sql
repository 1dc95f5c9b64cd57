-- What the Updater reads and writes: what providers say of their machines. It writes only while the provider's row in
-- provider_listings names its session; whoever takes that row over reads the machines after it did, so that no older
-- listing ever overwrites a newer one.

-- name: check_listing
-- How many machines are not_ready, whether all are due to be compared, and which session updated the provider's
-- machines last, or does so now. Reads the not_ready ones alone, so that a minute with nothing to do costs next to
-- nothing in any fleet.
SELECT
    (SELECT count(*) FROM machine_facts f WHERE f.provider = :provider AND f.not_ready) AS not_ready,
    l.listed_at IS NULL OR l.listed_at <= clock_timestamp() - :seconds::float8 * interval '1 second' AS due,
    l.session_id AS holder,
    s.session_id IS NOT NULL AS held
FROM (SELECT :provider::text AS provider) AS one
LEFT JOIN provider_listings l ON l.provider = one.provider
LEFT JOIN sessions s ON s.session_id = l.session_id AND s.deadline > clock_timestamp();

-- name: begin_listing
-- Become the one Updater of the provider, in place of the dead session that was seen (null: there was none). No row:
-- another was faster. A session that was taken for dead just before it showed that it lives can write nothing more.
INSERT INTO provider_listings (provider, session_id, began_at)
VALUES (:provider, :session_id, clock_timestamp())
ON CONFLICT (provider) DO UPDATE
SET session_id = excluded.session_id, began_at = excluded.began_at
WHERE provider_listings.session_id = :holder::uuid
RETURNING provider;

-- name: all_facts
-- What is on record of every machine of the provider; for a listing that has not begun yet, so that each of them is
-- older than the listing.
SELECT
    machine_id,
    provider_id,
    extract(epoch FROM clock_timestamp() - machine_created_at)::float8 AS age_seconds,
    provider_reservation_id,
    provider_ip_address,
    provider_location,
    provider_status
FROM machine_facts
WHERE provider = :provider;

-- name: facts_not_ready
-- The same of the not_ready ones.
SELECT
    machine_id,
    provider_id,
    extract(epoch FROM clock_timestamp() - machine_created_at)::float8 AS age_seconds,
    provider_reservation_id,
    provider_ip_address,
    provider_location,
    provider_status
FROM machine_facts
WHERE provider = :provider AND not_ready;

-- name: write_facts
-- Record what the provider says now of some machines, which is a sign of life too. What a machine needs does not depend
-- on it. No row: the session is dead, or another took its place.
WITH lock AS (
    SELECT provider FROM provider_listings WHERE provider = :provider AND session_id = :session_id FOR UPDATE
),
fence AS (
    UPDATE sessions
    SET deadline = clock_timestamp() + interval_seconds * interval '1 second'
    WHERE session_id = :session_id AND fence = :fence AND deadline > clock_timestamp() AND EXISTS (SELECT 1 FROM lock)
    RETURNING session_id
),
written AS (
    UPDATE machine_provided p
    SET
        provider_reservation_id = g.reservation_id,
        provider_ip_address = g.address,
        provider_location = g.location,
        provider_status = g.status
    FROM unnest(
        :machine_ids::uuid[], :reservation_ids::text[], :addresses::text[], :locations::text[], :statuses::text[]
    ) AS g (machine_id, reservation_id, address, location, status)
    WHERE p.machine_id = g.machine_id AND EXISTS (SELECT 1 FROM fence)
    RETURNING p.machine_id
)
SELECT w.machine_id FROM fence f LEFT JOIN written w ON true;

-- name: end_listing
-- All machines are as the listing says. No row: another took the place; then what this one wrote may be older.
UPDATE provider_listings
SET listed_at = began_at
WHERE provider = :provider AND session_id = :session_id
RETURNING provider;
