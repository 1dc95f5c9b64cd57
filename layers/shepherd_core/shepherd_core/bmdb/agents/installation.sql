-- Installations of an operating system: the operators' requests, and what agents reported.

-- name: installation_request
-- The requested installation of one machine.
SELECT generation, os_installation_request_raw AS raw, requested_at
FROM machine_os_installation_request
WHERE machine_id = :machine_id;

-- name: installation_report
-- The last installation that its agent reported.
SELECT generation, os_installation_result AS result, os_installation_report_raw AS raw, reported_at
FROM machine_os_installation_report
WHERE machine_id = :machine_id;

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
SET (generation, os_installation_request_raw, requested_at) =
    (excluded.generation, excluded.os_installation_request_raw, excluded.requested_at)
WHERE x.generation = :requested::bigint -- also if it waited for another request
RETURNING machine_id;
