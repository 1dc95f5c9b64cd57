-- Machines by filters, page by page in the order of their ids, at a cost that does not depend on the size of the fleet.

-- name: search_machines
-- The first :limit machines that match all filters, among the :examine machines after :after; a filter that is null
-- matches all. Decommissioned machines are left out. Everything besides the ids is looked up machine by machine, and
-- only until :limit is reached; the state and the pauses are evaluated only where the cheaper filters match (OFFSET 0
-- keeps the planner from mixing the two, and subqueries with a value from hashing whole tables, as it would for EXISTS).
--
-- :text is the beginning of a machine id or of an address, or a part of a provider id or of the hardware report, where
-- the serial numbers are.
SELECT
    c.*,
    s.state,
    (SELECT agent_started_at FROM machine_agent_started WHERE machine_id = c.machine_id) AS agent_started_at,
    (SELECT agent_heartbeat_at FROM machine_agent_heartbeat WHERE machine_id = c.machine_id) AS agent_heartbeat_at,
    n.process,
    n.unhealthy_at,
    n.backoff_until > clock_timestamp() AS backing_off,
    n.backoff_until,
    n.locked_until IS NOT NULL AS being_worked_on,
    ARRAY(
        SELECT x.pause_id
        FROM machine_pauses x
        WHERE x.machine_id = c.machine_id AND NOT x.overdue
        ORDER BY x.created_at, x.pause_id
    ) AS pause_ids,
    (SELECT quarantined_at FROM machine_quarantine WHERE machine_id = c.machine_id) AS quarantined_at
FROM (
    SELECT
        e.machine_id,
        e.machine_created_at,
        p.provider,
        i.provider AS intended_provider,
        p.provider_id,
        p.provider_ip_address,
        p.provider_location,
        p.provider_status
    FROM (
        SELECT machine_id, machine_created_at
        FROM machines
        WHERE machine_id > coalesce(:after::uuid, '00000000-0000-0000-0000-000000000000')
        ORDER BY machine_id
        LIMIT :examine
    ) AS e
    LEFT JOIN LATERAL (SELECT * FROM machine_provided WHERE machine_id = e.machine_id LIMIT 1) AS p ON true
    LEFT JOIN LATERAL (SELECT * FROM machine_creation_intent WHERE machine_id = e.machine_id LIMIT 1) AS i ON true
    WHERE coalesce(p.provider, i.provider) = coalesce(:provider, p.provider, i.provider)
        AND (:location::text IS NULL OR p.provider_location = :location)
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
        AND CASE :state::text
            WHEN 'quarantined' THEN
                (SELECT z.machine_id FROM machine_quarantine z WHERE z.machine_id = e.machine_id) IS NOT NULL
            WHEN 'creating' THEN p.machine_id IS NULL
            WHEN 'needs_agent' THEN
                (SELECT a.machine_id FROM machine_agent_started a WHERE a.machine_id = e.machine_id) IS NULL
            WHEN 'unhealthy' THEN coalesce(
                (SELECT h.agent_heartbeat_at FROM machine_agent_heartbeat h WHERE h.machine_id = e.machine_id)
                    <= statement_timestamp()
                    - (SELECT min(y.heartbeat_timeout_seconds) FROM recovery_policy y) * interval '1 second',
                true
            )
            ELSE true
        END
    ORDER BY e.machine_id
    OFFSET 0
) AS c
LEFT JOIN LATERAL (SELECT * FROM machine_eligibility WHERE machine_id = c.machine_id AND NOT overdue LIMIT 1) AS n ON true
CROSS JOIN LATERAL (
    SELECT CASE
        WHEN n.machine_id IS NULL THEN 'creating'
        WHEN n.quarantined THEN 'quarantined'
        WHEN n.process IS NULL THEN 'installed'
        WHEN n.process = 'ShepherdAgentStart' THEN 'needs_agent'
        WHEN n.unhealthy_at <= statement_timestamp() THEN 'unhealthy'
        WHEN n.reported THEN 'running'
        ELSE 'starting'
    END AS state
) AS s
WHERE (:state IS NULL OR s.state = :state)
    AND (
        :paused::boolean IS NULL
        OR :paused = EXISTS (SELECT 1 FROM machine_pauses x WHERE x.machine_id = c.machine_id AND NOT x.overdue)
    )
ORDER BY c.machine_id
LIMIT :limit;

-- name: last_examined
-- The last machine that search_machines examines if fewer than :limit match. No row: it reaches the end.
SELECT machine_id
FROM machines
WHERE machine_id > coalesce(:after::uuid, '00000000-0000-0000-0000-000000000000')
ORDER BY machine_id
OFFSET :examine::bigint - 1
LIMIT 1;
