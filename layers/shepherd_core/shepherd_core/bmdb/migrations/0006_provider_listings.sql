-- What the Updater remembers between passes.

-- When the listing began from which all machines of a provider were last brought up to date.
CREATE TABLE provider_listings (
    provider text PRIMARY KEY,
    listed_at timestamptz NOT NULL
);

-- Machines that are not simply up: those about which the next listing may say something new.
CREATE INDEX machine_provided_unsettled ON machine_provided (provider)
    WHERE provider_ip_address IS NULL OR provider_status IS NULL OR provider_status NOT IN ('Running', 'Missing');
