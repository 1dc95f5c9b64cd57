-- Gaps between health snapshots, and overrides by which operators let recovery continue although it is suspended.

-- Times between two snapshots so long that missing heartbeats in them mean little; see recovery_snapshots. They matter
-- for some minutes after their end.
CREATE TABLE recovery_gaps (
    gap_id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    provider text NOT NULL,
    began_at timestamptz NOT NULL,
    ended_at timestamptz NOT NULL
);

CREATE INDEX recovery_gaps_by_end ON recovery_gaps (provider, ended_at);

-- These, and the time from the last snapshot until now.
CREATE VIEW recovery_gaps_until_now AS
SELECT provider, began_at, ended_at FROM recovery_gaps
UNION ALL
SELECT provider, taken_at, statement_timestamp() FROM recovery_snapshots;

-- An operator lets the Recoverer recover this many machines during a suspension, until expires_at. One row for each
-- location that ever had an override, '' for the whole provider; used: how many machines it has let through.
CREATE TABLE recovery_overrides (
    provider text NOT NULL,
    location text NOT NULL,
    override_id uuid NOT NULL DEFAULT gen_random_uuid(),
    machines bigint NOT NULL CHECK (machines BETWEEN 1 AND 1000),
    used bigint NOT NULL DEFAULT 0,
    owner text NOT NULL,
    reason text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (provider, location)
);

-- The machines that an override let through. They stay until it is replaced, so that a machine is not counted again if
-- the function that recovers it is killed.
CREATE TABLE recovery_override_machines (
    override_id uuid NOT NULL,
    machine_id uuid NOT NULL,
    admitted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (override_id, machine_id)
);

-- The machines to which suspensions do not apply now.
CREATE VIEW recovery_exempt_machines AS
SELECT m.machine_id, o.provider, o.owner, o.reason
FROM recovery_overrides o
JOIN recovery_override_machines m ON m.override_id = o.override_id
WHERE o.expires_at > clock_timestamp();
