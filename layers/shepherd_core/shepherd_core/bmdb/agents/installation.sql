-- Installations of an operating system: the operators' requests, and what agents reported.

-- name: installation
-- The requested installation of one machine, and the last one that its agent reported.
SELECT
    q.generation,
    q.os_installation_request_raw,
    q.requested_at,
    r.generation,
    r.os_installation_result,
    r.os_installation_report_raw,
    r.reported_at
FROM machines m
LEFT JOIN machine_os_installation_request q ON q.machine_id = m.machine_id
LEFT JOIN machine_os_installation_report r ON r.machine_id = m.machine_id
WHERE m.machine_id = :machine_id;

-- name: request_installation
-- Request an installation, in place of the previous request. No row: the request or the report has changed since the
-- caller read them, or the machine is not provided, for example because it was forgotten meanwhile: the update of its row
-- waits for that. It changes nothing; a lock would not do, because under snapshot isolation only two writes conflict.
WITH provided AS (
    UPDATE machine_provided SET provider_status = provider_status WHERE machine_id = :machine_id RETURNING machine_id
)
INSERT INTO machine_os_installation_request AS x (machine_id, generation, os_installation_request_raw, requested_at)
SELECT p.machine_id, :generation::bigint, decode(:request, 'hex'), clock_timestamp()
FROM provided p
LEFT JOIN machine_os_installation_request q ON q.machine_id = p.machine_id
LEFT JOIN machine_os_installation_report r ON r.machine_id = p.machine_id
WHERE q.generation IS NOT DISTINCT FROM :requested::bigint
    AND r.generation IS NOT DISTINCT FROM :reported::bigint
    AND r.os_installation_result IS NOT DISTINCT FROM :reported_result::text
ON CONFLICT (machine_id) DO UPDATE
SET
    generation = excluded.generation,
    os_installation_request_raw = excluded.os_installation_request_raw,
    requested_at = excluded.requested_at
WHERE x.generation = :requested::bigint -- also if it waited for another request
RETURNING machine_id;
