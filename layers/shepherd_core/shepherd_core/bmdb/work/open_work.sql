-- The work under way: sessions with their machines, creations, penalties and releases. For operators.

-- name: open_sessions
-- All sessions, those alive first, with the number of machines that they hold and the ids of at most ten of them. :limit
-- at most: there are as many as invocations run at once.
SELECT
    s.session_id, s.component_name, s.runtime_info, s.created_at, s.deadline,
    s.deadline > clock_timestamp() AS alive,
    (SELECT count(*) FROM work w WHERE w.session_id = s.session_id) AS machines,
    ARRAY(SELECT w.machine_id FROM work w WHERE w.session_id = s.session_id ORDER BY w.machine_id LIMIT 10) AS machine_ids,
    ARRAY(
        SELECT l.provider FROM provisioner_lock l WHERE l.session_id = s.session_id ORDER BY l.provider
    ) AS provider_locks
FROM (SELECT * FROM sessions ORDER BY deadline DESC LIMIT :limit) AS s
ORDER BY s.deadline DESC, s.session_id;

-- name: open_creations
-- Creations that were decided and whose outcome is not recorded, oldest first.
SELECT machine_id, provider, capacity_id, intended_at FROM machine_creation_intent ORDER BY intended_at, machine_id LIMIT :limit;

-- name: penalties
-- Capacity that is under a penalty now, and why.
SELECT provider, capacity_id, until, kind, cause
FROM capacity_penalties
WHERE until > clock_timestamp()
ORDER BY until, provider, capacity_id
LIMIT :limit;

-- name: open_releases
-- Machines that are being given back to the provider, oldest request first.
SELECT r.machine_id, p.provider, p.provider_id, r.asked_at, r.asked_by, r.reason, r.accepted_at
FROM (SELECT * FROM machine_release ORDER BY asked_at, machine_id LIMIT :limit) AS r
LEFT JOIN LATERAL (SELECT provider, provider_id FROM machine_provided WHERE machine_id = r.machine_id LIMIT 1) AS p ON true
ORDER BY r.asked_at, r.machine_id;
