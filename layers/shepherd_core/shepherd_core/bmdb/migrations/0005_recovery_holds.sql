-- When the Recoverer holds back, because too much of a fleet is silent at once: then the fault is hardly the machines'.

-- One row for each location of a provider that was ever held back, '' for the provider as a whole. In force while
-- ended_at is null; afterwards silence there is counted from ended_at.
CREATE TABLE recovery_holds (
    provider text NOT NULL,
    location text NOT NULL,
    held_at timestamptz NOT NULL,
    ended_at timestamptz,
    reason text NOT NULL,
    PRIMARY KEY (provider, location)
);
