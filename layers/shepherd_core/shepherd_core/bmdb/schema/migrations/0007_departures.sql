-- Decommissioned machines: released to their provider, or forgotten because the provider no longer has them.

-- A release that an operator requested. Written before the provider is called; accepted_at is when the provider agreed.
-- The machine stays provided, and counts towards the limit, until the provider no longer has it; then this row is
-- deleted.
CREATE TABLE machine_release (
    machine_id uuid PRIMARY KEY REFERENCES machines,
    asked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    asked_by text NOT NULL,
    reason text NOT NULL,
    accepted_at timestamptz
);

-- The tombstone of a decommissioned machine. Its row in machines and its history stay; it has no provided, due or
-- heartbeat row any more.
CREATE TABLE machine_tombstone (
    machine_id uuid PRIMARY KEY REFERENCES machines,
    how text NOT NULL CHECK (how IN ('Forgotten', 'Released')),
    provider text NOT NULL,
    provider_id varchar(128) NOT NULL,
    provider_reservation_id varchar(128),
    agent_heartbeat_at timestamptz,
    decommissioned_by text NOT NULL,
    reason text NOT NULL,
    decommissioned_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX machine_tombstone_by_provider ON machine_tombstone (provider);
