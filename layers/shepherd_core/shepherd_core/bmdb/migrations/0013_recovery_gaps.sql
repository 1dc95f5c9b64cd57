-- How long nobody looked at the machines of a provider.

-- Times between two looks that were so long that silence in them says little; see recovery_looks. They are needed for some
-- minutes after their end.
CREATE TABLE recovery_gaps (
    gap_id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    provider text NOT NULL,
    began_at timestamptz NOT NULL,
    ended_at timestamptz NOT NULL
);

CREATE INDEX recovery_gaps_by_end ON recovery_gaps (provider, ended_at);

-- These, and the time from the last look to this moment.
CREATE VIEW recovery_unwatched AS
SELECT provider, began_at, ended_at FROM recovery_gaps
UNION ALL
SELECT provider, looked_at, statement_timestamp() FROM recovery_looks;
