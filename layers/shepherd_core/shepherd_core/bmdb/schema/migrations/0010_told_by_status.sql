-- What operators are told: which pauses cover which machine, and what waits for the limit of machines.

-- A row for each pause that keeps loops away from what a machine wants: a pause of the machine itself, of the process, of
-- the provider, or of everything. A machine that is yet to be created wants no process. What people are told about pauses
-- comes from here; claims ask the same at less cost, and a test holds the two together. The pauses of one machine, which
-- an index finds, and those of many, which are few, are apart so that neither is compared with the whole fleet in vain.
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

-- How many places at the provider the limit of machines kept out, which limit that was, and when the Provisioner saw it
-- last; 0: it keeps out none, or none was ever seen.
ALTER TABLE provisioner_lock ADD COLUMN waiting bigint NOT NULL DEFAULT 0;
ALTER TABLE provisioner_lock ADD COLUMN max_machines bigint;
ALTER TABLE provisioner_lock ADD COLUMN waiting_seen_at timestamptz;
