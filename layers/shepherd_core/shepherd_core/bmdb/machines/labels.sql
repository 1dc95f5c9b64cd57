-- The labels that operators give to machines.

-- name: set_labels
-- Give a machine the labels :added and remove those of operators with the keys :removed; the machine's history says so,
-- unless that changes nothing. Returns all its labels then. No row: the machine is not provided.
WITH machine AS (
    SELECT
        p.machine_id, p.provider_labels,
        coalesce(o.labels, '{}') AS before,
        (coalesce(o.labels, '{}') || :added::jsonb) - :removed::text[] AS labels
    FROM machine_provided p
    LEFT JOIN machine_operator_labels o ON o.machine_id = p.machine_id
    WHERE p.machine_id = :machine_id
),
-- The labels that another operator has just written stay.
labels_written AS (
    INSERT INTO machine_operator_labels AS o (machine_id, labels)
    SELECT machine_id, labels FROM machine WHERE labels <> before
    ON CONFLICT (machine_id) DO UPDATE SET labels = (o.labels || :added::jsonb) - :removed::text[]
    RETURNING machine_id
),
history_rows AS (
    INSERT INTO work_history (machine_id, process, event, failed_cause)
    SELECT machine_id, 'operator', 'Labeled', :reason FROM labels_written
)
SELECT provider_labels || labels AS labels FROM machine;
