-- Machines by filters, page by page in the order of their ids or the newest first. What a page costs does not depend on
-- the size of the fleet, unless few machines are in the states that are wanted.

-- name: search_machines
-- The first :limit machines that match all filters, among the :examine machines after :after, or of :machine_ids; a
-- filter that is null matches all. Decommissioned machines are left out. Everything besides the ids is looked up machine
-- by machine, and only until :limit is reached; the state and the pauses are evaluated only where the cheaper filters
-- match. OFFSET 0 keeps the planner from mixing the two. Subqueries that return a value stand in place of EXISTS, for
-- which the planner would hash whole tables.
--
-- :text is the beginning of a machine id or of an address, or a part of a provider id or of the hardware report, where
-- the serial numbers are. :kinds are those of a quarantine, or of a failure that the statement failures counts.
SELECT c.*, {found_facts}
FROM (
    SELECT
        e.machine_id, e.machine_created_at, p.provider, i.provider AS intended_provider, p.provider_id,
        p.provider_ip_address, p.provider_location, p.provider_status
    FROM (
        (
            SELECT machine_id, machine_created_at
            FROM machines
            WHERE :machine_ids::uuid[] IS NULL
                AND machine_id > coalesce(:after::uuid, '00000000-0000-0000-0000-000000000000')
            ORDER BY machine_id
            LIMIT :examine
        )
        UNION ALL
        (
            SELECT machine_id, machine_created_at
            FROM machines
            WHERE machine_id = ANY(:machine_ids::uuid[])
                AND machine_id > coalesce(:after::uuid, '00000000-0000-0000-0000-000000000000')
            ORDER BY machine_id
            LIMIT :examine
        )
    ) AS e
    LEFT JOIN LATERAL (SELECT * FROM machine_provided WHERE machine_id = e.machine_id LIMIT 1) AS p ON true
    LEFT JOIN LATERAL (SELECT * FROM machine_creation_intent WHERE machine_id = e.machine_id LIMIT 1) AS i ON true
    WHERE (:providers::text[] IS NULL OR coalesce(p.provider, i.provider) = ANY(:providers))
        AND (:locations::text[] IS NULL OR p.provider_location = ANY(:locations))
        AND CASE
            WHEN coalesce(p.provider, i.provider) IS NULL THEN
                (SELECT d.machine_id FROM machine_tombstone d WHERE d.machine_id = e.machine_id) IS NULL
            ELSE true
        END
        AND (
            :text::text IS NULL
            OR starts_with(e.machine_id::text, lower(:text))
            OR position(lower(:text) IN lower(p.provider_id)) > 0
            OR starts_with(p.provider_ip_address, :text)
            OR position(
                convert_to(:text, 'UTF8')
                IN (SELECT r.hardware_report_raw FROM machine_hardware_report r WHERE r.machine_id = e.machine_id)
            ) > 0
        )
        AND (
            :labels::text[] IS NULL
            OR :labels <@ (SELECT l.texts FROM machine_labels l WHERE l.machine_id = e.machine_id)
        )
        AND (
            (:heartbeat_older::float8 IS NULL AND :heartbeat_younger::float8 IS NULL)
            OR (SELECT h.agent_heartbeat_at FROM machine_agent_heartbeat h WHERE h.machine_id = e.machine_id)
                BETWEEN coalesce(statement_timestamp() - :heartbeat_younger * interval '1 second', '-infinity')
                AND coalesce(statement_timestamp() - :heartbeat_older * interval '1 second', 'infinity')
        )
        AND (
            :kinds::text[] IS NULL
            OR (
                SELECT {quarantine_kind}
                FROM machine_quarantine z
                LEFT JOIN machine_agent_heartbeat h ON h.machine_id = z.machine_id
                WHERE z.machine_id = e.machine_id
            ) = ANY(:kinds)
            OR 'provisioning-failed' = ANY(:kinds)
                AND (SELECT n.state FROM machine_need n WHERE n.machine_id = e.machine_id) = 'failed'
            OR (
                SELECT count(*)
                FROM work_backoff b
                LEFT JOIN machine_agent_heartbeat h ON h.machine_id = b.machine_id
                WHERE b.machine_id = e.machine_id AND b.kind = ANY(:kinds) AND {fails}
            ) > 0
            OR (SELECT x.kind FROM ({last_look}) AS x) = ANY(:kinds)
            OR 'recovered-often' = ANY(:kinds)
            AND (SELECT {often} FROM machine_recoveries r WHERE r.machine_id = e.machine_id)
        )
    ORDER BY e.machine_id
    OFFSET 0
) AS c
{found_joins}
WHERE (:states::text[] IS NULL OR s.state = ANY(:states))
    AND (:state_older::float8 IS NULL OR s.state_since <= statement_timestamp() - :state_older * interval '1 second')
    AND (:state_younger::float8 IS NULL OR s.state_since >= statement_timestamp() - :state_younger * interval '1 second')
    AND (:paused::boolean IS NULL OR :paused = (cardinality(u.pause_ids) > 0))
ORDER BY c.machine_id
LIMIT :limit;

-- name: machines_in_states
-- How many of the machines after :after are in each state, and the first :limit in each of :states. Reads the facts of the
-- whole fleet once, which costs less than to look at some thousand machines one by one.
SELECT s.state, s.machines, x.machine_id
FROM (
    SELECT state, count(*) AS machines, array_agg(machine_id) FILTER (WHERE state = ANY(:states::text[])) AS ids
    FROM (
        SELECT machine_id, provider, location, state FROM machine_need
        UNION ALL
        SELECT machine_id, provider, NULL, 'creating' FROM machine_creation_intent
    ) AS known
    WHERE (:providers::text[] IS NULL OR provider = ANY(:providers))
        AND (:locations::text[] IS NULL OR location = ANY(:locations))
        AND machine_id > coalesce(:after::uuid, '00000000-0000-0000-0000-000000000000')
    GROUP BY state
) AS s
LEFT JOIN LATERAL (SELECT unnest(s.ids) AS machine_id ORDER BY 1 LIMIT :limit) AS x ON true
ORDER BY x.machine_id;

-- name: last_examined
-- The last machine that search_machines examines if fewer than :limit match. No row: it reaches the end.
SELECT machine_id
FROM machines
WHERE machine_id > coalesce(:after::uuid, '00000000-0000-0000-0000-000000000000')
ORDER BY machine_id
OFFSET :examine::bigint - 1
LIMIT 1;

-- name: newest_machines
-- The ids of the first :examine machines that are older than :after, which search_machines then examines. No row if
-- there is no machine :after.
SELECT machine_id
FROM machines
WHERE (machine_created_at, machine_id) < (
    CASE
        WHEN :after::uuid IS NULL THEN 'infinity'
        ELSE coalesce((SELECT machine_created_at FROM machines WHERE machine_id = :after), '-infinity')
    END,
    coalesce(:after, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
)
ORDER BY machine_created_at DESC, machine_id DESC
LIMIT :examine;
