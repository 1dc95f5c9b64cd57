-- What the Updater remembers between passes.

-- One Updater at a time for each provider: the one whose session is named here and alive. The session is not referenced,
-- so that no session of any loop has to look here when it is closed.
CREATE TABLE provider_listings (
    provider text PRIMARY KEY,
    session_id uuid NOT NULL,
    began_at timestamptz NOT NULL, -- before it asked for its listing
    listed_at timestamptz -- when the listing began from which all machines were last brought up to date; null: never
);

-- What the BMDB holds of what providers say. Unsettled: the next listing may well say something new. Missing, and failed
-- for good, are not: they may stay so for years, and would have the provider asked every minute.
CREATE VIEW machine_facts AS
SELECT
    p.machine_id,
    p.provider,
    p.provider_id,
    p.provider_reservation_id,
    p.provider_ip_address,
    p.provider_location,
    p.provider_status,
    -- Not a join, for which the planner, who takes far too many for not_ready, would read all machines.
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
