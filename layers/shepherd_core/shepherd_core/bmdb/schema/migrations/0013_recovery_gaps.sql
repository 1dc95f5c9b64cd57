-- How long nobody looked at the machines of a provider, and what operators have done although recovery is suspended.

-- Times between two looks that were so long that silence in them says little; see recovery_snapshots. They are needed for some
-- minutes after their end.
CREATE TABLE recovery_gaps (
    gap_id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    provider text NOT NULL,
    began_at timestamptz NOT NULL,
    ended_at timestamptz NOT NULL
);

CREATE INDEX recovery_gaps_by_end ON recovery_gaps (provider, ended_at);

-- These, and the time from the last look to this moment.
CREATE VIEW recovery_gaps_until_now AS
SELECT provider, began_at, ended_at FROM recovery_gaps
UNION ALL
SELECT provider, taken_at, statement_timestamp() FROM recovery_snapshots;

-- What an operator lets the Recoverer do where it holds back: take so many machines, until then. One for each location that
-- ever had one, '' for the provider as a whole; taken: how many it has let through.
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

-- Which machines each let through. They stay so as long as it lasts, so that one whose function died is not counted again.
CREATE TABLE recovery_override_machines (
    override_id uuid NOT NULL,
    machine_id uuid NOT NULL,
    admitted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (override_id, machine_id)
);

-- The machines that holds do not hold back now.
CREATE VIEW recovery_exempt_machines AS
SELECT m.machine_id, o.provider, o.owner, o.reason
FROM recovery_overrides o
JOIN recovery_override_machines m ON m.override_id = o.override_id
WHERE o.expires_at > clock_timestamp();
