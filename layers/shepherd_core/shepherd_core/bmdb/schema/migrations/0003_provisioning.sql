-- What the Provisioner remembers between runs.

-- A creation that was decided. Written before the provider is called, deleted when the machine is provided or certainly
-- never will be. The machine id is the idempotency token at the provider.
CREATE TABLE machine_creation_intent (
    machine_id uuid PRIMARY KEY REFERENCES machines,
    provider text NOT NULL,
    capacity_id varchar(128),
    intended_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX machine_creation_intent_by_provider ON machine_creation_intent (provider);

-- Capacity that failed and is not used for a while.
CREATE TABLE capacity_penalties (
    provider text NOT NULL,
    capacity_id varchar(128) NOT NULL,
    until timestamptz NOT NULL,
    cause text NOT NULL,
    PRIMARY KEY (provider, capacity_id)
);

-- One Provisioner at a time for each provider: the live session that is named here.
CREATE TABLE provisioner_lock (
    provider text PRIMARY KEY,
    session_id uuid REFERENCES sessions ON DELETE SET NULL,
    last_creation_at timestamptz
);
