-- For operators: which pauses apply to which machine, and how many places wait for the limit of machines.

-- A row for each pause that keeps a loop away from a machine: a pause of the machine, the process, the provider, or
-- everything. A machine that is not created yet needs no process. Operators see pauses through this view; claims check
-- the same conditions at less cost, and a test compares the two. Pauses of one machine are found by an index, those of
-- many machines are few: the two are separate, so that neither needs a scan of the fleet.
CREATE VIEW machine_pauses AS
SELECT w.machine_id, w.process, w.overdue, x.pause_id, x.owner, x.reason, x.created_at, x.expires_at
FROM (
    SELECT machine_id, provider, process, overdue FROM machine_process_needs
    UNION ALL
    SELECT machine_id, provider, NULL, false FROM machine_creation_intent
) AS w
JOIN pauses x ON x.machine_id = w.machine_id
WHERE (x.process IS NULL OR x.process = w.process)
    AND (x.provider IS NULL OR x.provider = w.provider)
    AND (x.expires_at IS NULL OR x.expires_at > clock_timestamp())
UNION ALL
SELECT w.machine_id, w.process, w.overdue, x.pause_id, x.owner, x.reason, x.created_at, x.expires_at
FROM (
    SELECT machine_id, provider, process, overdue FROM machine_process_needs
    UNION ALL
    SELECT machine_id, provider, NULL, false FROM machine_creation_intent
) AS w
JOIN pauses x ON x.machine_id IS NULL
WHERE (x.process IS NULL OR x.process = w.process)
    AND (x.provider IS NULL OR x.provider = w.provider)
    AND (x.expires_at IS NULL OR x.expires_at > clock_timestamp());

-- How many places the limit of machines keeps empty, the limit, and when the Provisioner last saw that. 0: none, or
-- never seen.
ALTER TABLE provisioner_lock ADD COLUMN waiting bigint NOT NULL DEFAULT 0;
ALTER TABLE provisioner_lock ADD COLUMN max_machines bigint;
ALTER TABLE provisioner_lock ADD COLUMN waiting_seen_at timestamptz;
