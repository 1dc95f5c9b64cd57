-- The hardware of machines, by their agents' reports.

-- name: hardware_report
-- The last hardware report of one machine.
SELECT hardware_report_raw AS raw, reported_at FROM machine_hardware_report WHERE machine_id = :machine_id;

-- name: inventory
-- The hardware at each provider and location, from sums that are stored beside the reports: reads two narrow tables
-- once. A machine without a report counts as a machine, and in unreported.
SELECT
    p.provider, p.provider_location AS location,
    count(*) AS machines,
    count(*) - count(h.machine_id) AS unreported,
    coalesce(sum(h.hardware_threads), 0) AS hardware_threads,
    coalesce(sum(h.memory_bytes), 0) AS memory_bytes,
    coalesce(sum(h.disks), 0) AS disks,
    coalesce(sum(h.disk_bytes), 0) AS disk_bytes
FROM machine_provided p
LEFT JOIN machine_hardware_report h ON h.machine_id = p.machine_id
WHERE (:provider::text IS NULL OR p.provider = :provider)
    AND (:location::text IS NULL OR p.provider_location = :location)
GROUP BY p.provider, p.provider_location
ORDER BY p.provider, coalesce(p.provider_location, '');
