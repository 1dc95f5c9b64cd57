-- Notices: what operators are told. The statements that record a fact write its notice.

-- name: claim_notices
-- Claim the unsent notices of the provider, at most 50 of all kinds. A kind of which one was claimed in the last ten
-- minutes is left for later. So there is at most one message of a kind in ten minutes, and what an invocation claimed
-- before it died is claimed again after that time. May run concurrently: the condition on the row itself is checked again
-- when the row is locked.
WITH candidates AS (
    SELECT n.notice_id
    FROM notices n
    WHERE n.provider = :provider
        AND n.noticed_at > statement_timestamp() - interval '1 day'
        AND n.sent_at IS NULL
        AND coalesce(n.claimed_at, '-infinity') < statement_timestamp() - interval '10 minutes'
        AND NOT EXISTS (
            SELECT 1
            FROM notices c
            WHERE c.provider = n.provider
                AND c.kind = n.kind
                AND c.claimed_at >= statement_timestamp() - interval '10 minutes'
        )
    ORDER BY n.noticed_at
    LIMIT 50
    FOR UPDATE SKIP LOCKED
),
claimed AS (
    UPDATE notices
    SET claimed_at = clock_timestamp()
    WHERE notice_id IN (SELECT notice_id FROM candidates)
    RETURNING notice_id, kind, provider, location, machine_id, provider_id, noticed_at, began_at, ended_at, detail
)
SELECT * FROM claimed ORDER BY kind, noticed_at;

-- name: notices_sent
-- Record that these notices were published. May run twice.
UPDATE notices SET sent_at = clock_timestamp() WHERE notice_id = ANY(:notice_ids::uuid[]);
