-- What the Updater remembers between runs.

-- One Updater at a time for each provider: the live session that is named here. No foreign key to the session, so that
-- closing a session never has to look here.
CREATE TABLE provider_listings (
    provider text PRIMARY KEY,
    session_id uuid NOT NULL,
    began_at timestamptz NOT NULL, -- before it called the provider
    listed_at timestamptz -- when the last complete listing began; null: never
);

-- The facts that providers list about machines. not_ready: the next listing may well say something new. Missing
-- machines, and those that failed permanently, are ready: they may stay so for years, and would make the Updater call
-- the provider every minute.
CREATE VIEW machine_facts AS
SELECT
    p.machine_id,
    p.provider,
    p.provider_id,
    p.provider_reservation_id,
    p.provider_ip_address,
    p.provider_location,
    p.provider_status,
    -- Not a join: the planner overestimates not_ready, and would read all machines.
    (SELECT m.machine_created_at FROM machines m WHERE m.machine_id = p.machine_id) AS machine_created_at,
    (
        p.provider_status IS NULL
        OR p.provider_status IN ('Provisioning', 'Stopped', 'Unknown')
        OR (p.provider_status = 'Running' AND p.provider_ip_address IS NULL)
    ) AS not_ready
FROM machine_provided p;

CREATE INDEX machine_provided_not_ready ON machine_provided (provider)
    WHERE provider_status IS NULL
        OR provider_status IN ('Provisioning', 'Stopped', 'Unknown')
        OR (provider_status = 'Running' AND provider_ip_address IS NULL);
