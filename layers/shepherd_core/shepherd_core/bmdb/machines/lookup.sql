-- One machine, for operators: which one a name stands for, and everything that is known about it.

-- name: find_machines
-- The machines that a name in lower case may stand for: the beginning of an id or of a provider id, or an address. exact: it
-- is the whole of it; these come first.
SELECT m.machine_id, p.provider_id, p.provider_location, x.exact
FROM machines m
LEFT JOIN machine_provided p ON p.machine_id = m.machine_id
CROSS JOIN LATERAL (
    SELECT coalesce(:name IN (m.machine_id::text, lower(p.provider_id), lower(p.provider_ip_address)), false) AS exact
) AS x
WHERE x.exact
    OR left(m.machine_id::text, length(:name::text)) = :name
    OR left(lower(p.provider_id), length(:name::text)) = :name
ORDER BY NOT x.exact, p.provider_id, m.machine_id
LIMIT :limit;

-- name: provider_ids
-- The provider's ids of some machines.
SELECT machine_id, provider_id FROM machine_provided WHERE machine_id = ANY(:machine_ids::uuid[]);

-- name: show_machine
-- Everything that the BMDB knows about one machine.
SELECT
    c.machine_id, c.machine_created_at, p.provider, i.provider AS intended_provider, p.provider_id, p.provider_reservation_id,
    p.provider_ip_address, p.provider_location, p.provider_status, p.provider_failure,
    {found_facts},
    encode(a.agent_public_key, 'hex') AS agent_public_key,
    k.host_key, k.origin AS host_key_origin, k.pinned_at AS host_key_pinned_at,
    nullif(b.rebooted_at, '-infinity') AS rebooted_at,
    b.boot_wait_until, i.intended_at,
    r.asked_at AS release_asked_at, r.asked_by AS release_asked_by, r.reason AS release_reason,
    r.accepted_at AS release_accepted_at,
    d.how AS decommissioned_how, d.decommissioned_at, d.decommissioned_by, d.reason AS decommissioned_reason,
    d.provider AS decommissioned_provider, d.provider_id AS decommissioned_provider_id,
    CASE WHEN n.process = 'ShepherdRecovery' THEN nullif(n.due_at, 'infinity') END AS unhealthy_at,
    w.grace_until,
    {quarantine_kind} AS quarantine_kind,
    -- Of its backoffs and, in quarantine, of the failures before.
    ARRAY(
        SELECT x.kind::text FROM work_backoff x WHERE x.machine_id = c.machine_id AND x.kind IS NOT NULL
        UNION
        SELECT x.kind::text
        FROM (SELECT * FROM work_history WHERE machine_id = z.machine_id ORDER BY timestamp DESC LIMIT 50) AS x
        WHERE x.kind IS NOT NULL
        ORDER BY 1
    ) AS failure_kinds,
    z.cause AS quarantine_cause
FROM machines c
{found_joins}
LEFT JOIN machine_provided p ON p.machine_id = c.machine_id
LEFT JOIN machine_agent_started a ON a.machine_id = c.machine_id
LEFT JOIN machine_agent_heartbeat h ON h.machine_id = c.machine_id
LEFT JOIN machine_host_key k ON k.machine_id = c.machine_id
LEFT JOIN machine_rebooted b ON b.machine_id = c.machine_id
LEFT JOIN machine_creation_intent i ON i.machine_id = c.machine_id
LEFT JOIN machine_grace w ON w.machine_id = c.machine_id
LEFT JOIN machine_quarantine z ON z.machine_id = c.machine_id
LEFT JOIN machine_release r ON r.machine_id = c.machine_id
LEFT JOIN machine_tombstone d ON d.machine_id = c.machine_id
WHERE c.machine_id = :machine_id;

-- name: backoffs
-- The backoffs of one machine, for each process: until when, the cause, and how often in a row its function died.
SELECT process, until, kind, cause, last_interval_seconds, deaths FROM work_backoff WHERE machine_id = :machine_id ORDER BY process;

-- name: work_on_machine
-- The work in progress on one machine, and until when its session is alive.
SELECT w.process, s.component_name, s.runtime_info, s.deadline
FROM work w
JOIN sessions s ON s.session_id = w.session_id
WHERE w.machine_id = :machine_id
ORDER BY w.process;
