-- What the Provisioner remembers between passes.

-- A creation that was decided. Written before the provider is asked, gone when the machine is provided or when it
-- is known that it will never exist. The machine id is the idempotency token at the provider.
CREATE TABLE machine_creation_intent (
    machine_id uuid PRIMARY KEY REFERENCES machines,
    provider text NOT NULL,
    capacity_id varchar(128),
    intended_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX machine_creation_intent_by_provider ON machine_creation_intent (provider);

-- Capacity that failed and is left alone for a while.
CREATE TABLE capacity_penalties (
    provider text NOT NULL,
    capacity_id varchar(128) NOT NULL,
    until timestamptz NOT NULL,
    cause text NOT NULL,
    PRIMARY KEY (provider, capacity_id)
);

-- One Provisioner at a time for each provider: the one whose session is named here and alive.
CREATE TABLE provisioner_lock (
    provider text PRIMARY KEY,
    session_id uuid REFERENCES sessions ON DELETE SET NULL,
    last_creation_at timestamptz
);
