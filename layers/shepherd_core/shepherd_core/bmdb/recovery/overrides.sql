-- Overrides, by which an operator lets the Recoverer work although recovery is suspended. The claim lets their machines
-- through.

-- name: override_recovery
-- Let :machines machines be recovered at one location, or ('') at any location of the provider. No row: there is such
-- an override already.
INSERT INTO recovery_overrides AS o (provider, location, machines, owner, reason, created_at, expires_at)
VALUES (
    :provider, :location, :machines, :owner, :reason,
    clock_timestamp(), clock_timestamp() + :seconds::float8 * interval '1 second'
)
ON CONFLICT (provider, location) DO UPDATE
SET
    override_id = excluded.override_id,
    machines = excluded.machines,
    used = 0,
    owner = excluded.owner,
    reason = excluded.reason,
    created_at = excluded.created_at,
    expires_at = excluded.expires_at
WHERE o.expires_at <= excluded.created_at
RETURNING override_id, created_at, expires_at;

-- name: delete_override_machines
-- Delete the machines of overrides that were replaced.
DELETE FROM recovery_override_machines
WHERE override_id NOT IN (SELECT override_id FROM recovery_overrides);

-- name: recheck_unreached_machines
-- Make machines that did not come back due for a check now. During an SSH outage their due time is infinity.
UPDATE machine_due
SET not_before = clock_timestamp(), revision = revision + 1
WHERE process = 'ShepherdRecovery' AND machine_id IN (
    SELECT machine_id
    FROM machine_due
    WHERE process = 'ShepherdRecovery' AND provider = :provider AND not_before = 'infinity'
    ORDER BY machine_id
    FOR UPDATE
);

-- name: recheck_all_machines
-- Let the next snapshots make all machines due for a check (bring_due_rows_forward). If a suspension is over, timeouts
-- start at its end, and no longer do if it begins again: due rows are later then than the facts say.
UPDATE recovery_policy SET forward_from = '00000000-0000-0000-0000-000000000000' WHERE provider = :provider;

-- name: withdraw_override
-- End an override now. No row: there is none in force.
UPDATE recovery_overrides
SET expires_at = clock_timestamp()
WHERE provider = :provider AND location = :location AND expires_at > clock_timestamp()
RETURNING machines, used, owner, reason, created_at;

-- name: recovery_overrides
-- The overrides in force.
SELECT provider, location, machines, used, owner, reason, created_at, expires_at
FROM recovery_overrides
WHERE expires_at > clock_timestamp()
ORDER BY provider, location;

-- name: apply_overrides
-- Let machines through that are due for recovery where it is suspended, or where an SSH outage suspends it, as many as
-- the overrides allow: overrides of a location before those of the whole provider, the longest unhealthy machines
-- first. The claim takes these machines.
--
-- The rows of the overrides are locked, in the order of location, so that concurrent runs take turns and each sees how
-- many machines the other let through. A machine is let through only once.
--
-- A row for each override that has due machines, with their number and how many of them are new; and one row in any
-- case.
WITH {session},
overrides_in_force AS (
    SELECT override_id, location, machines, used, owner, reason
    FROM recovery_overrides
    WHERE provider = :provider AND expires_at > clock_timestamp() AND EXISTS (SELECT 1 FROM session)
    ORDER BY location
    FOR UPDATE
),
candidates AS (
    SELECT d.machine_id
    FROM machine_due d
    WHERE d.process = 'ShepherdRecovery'
        AND d.provider = :provider
        AND d.not_before >= {recovery_floor}
        AND d.not_before <= statement_timestamp()
        AND EXISTS (SELECT 1 FROM overrides_in_force)
    ORDER BY d.not_before, d.machine_id
    LIMIT 1000
),
due AS (
    SELECT n.machine_id, n.location, n.since
    FROM candidates w
    CROSS JOIN LATERAL (
        SELECT * FROM machine_eligibility WHERE machine_id = w.machine_id AND process = 'ShepherdRecovery' LIMIT 1
    ) AS n
    WHERE n.otherwise_ready
        AND (
            n.in_outage AND EXISTS (
                SELECT 1 FROM outages_in_force o WHERE o.provider = :provider AND o.location IN ('', n.location)
            )
            OR n.ready AND EXISTS (
                SELECT 1 FROM suspensions_in_force o WHERE o.provider = :provider AND o.location IN ('', n.location)
            )
        )
),
already_admitted AS (
    SELECT d.machine_id, m.override_id
    FROM due d
    JOIN recovery_override_machines m ON m.machine_id = d.machine_id
    WHERE m.override_id IN (SELECT override_id FROM overrides_in_force)
),
ranked AS (
    SELECT
        d.machine_id,
        o.override_id,
        o.machines - o.used AS free,
        row_number() OVER (ORDER BY o.override_id, d.since, d.machine_id) AS place
    FROM due d
    CROSS JOIN LATERAL (
        SELECT override_id, machines, used
        FROM overrides_in_force
        WHERE location IN ('', d.location) AND used < machines
        ORDER BY location DESC
        LIMIT 1
    ) AS o
    WHERE d.machine_id <> ALL (ARRAY(SELECT machine_id FROM already_admitted))
),
newly_admitted AS (
    INSERT INTO recovery_override_machines (override_id, machine_id)
    SELECT r.override_id, r.machine_id
    FROM ranked r
    JOIN (SELECT override_id, min(place) AS first FROM ranked GROUP BY override_id) AS f ON f.override_id = r.override_id
    WHERE r.place < f.first + r.free
    ON CONFLICT (override_id, machine_id) DO NOTHING
    RETURNING override_id, machine_id
),
use_counted AS (
    UPDATE recovery_overrides o
    SET used = o.used + n.number
    FROM (SELECT override_id, count(*) AS number FROM newly_admitted GROUP BY override_id) AS n
    WHERE o.override_id = n.override_id
)
SELECT
    (SELECT count(*) FROM session) AS sessions,
    o.location,
    o.owner,
    o.reason,
    o.machines - o.used - u.new AS left_over,
    u.new,
    u.due
FROM (SELECT 1) AS one_row
LEFT JOIN (
    SELECT override_id, count(*) AS due, count(*) FILTER (WHERE fresh) AS new
    FROM (
        SELECT override_id, true AS fresh FROM newly_admitted
        UNION ALL
        SELECT override_id, false FROM already_admitted
    ) AS admitted
    GROUP BY override_id
) AS u ON true
LEFT JOIN overrides_in_force o ON o.override_id = u.override_id
ORDER BY o.location;
