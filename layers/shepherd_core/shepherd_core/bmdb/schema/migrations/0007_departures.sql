-- Machines that leave: given back to their provider, or forgotten because the provider has them no more.

-- A release that an operator asked for. Written before the provider is asked; accepted_at is when it agreed. The machine
-- stays provided, and counts, until the provider has it no more. The row goes with it.
CREATE TABLE machine_release (
    machine_id uuid PRIMARY KEY REFERENCES machines,
    asked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    asked_by text NOT NULL,
    reason text NOT NULL,
    accepted_at timestamptz
);

-- A machine that is out of our care, and what it was. Its row in machines and its history stay; it is provided, due and
-- heard no more.
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
