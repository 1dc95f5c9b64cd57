-- The due index, machine_due, and the one order in which it and the facts behind it are written.
--
-- A machine's due row is the lock on the facts that decide what the machine needs. In READ COMMITTED a statement that
-- waits for a row lock judges everything else by how it was before it waited. So whoever changes such a fact runs three
-- statements in one transaction: lock_due_rows, then the change, then reschedule, which judges by what is there now (due.change does
-- that). Locks are taken in this order: due rows by machine id, the provider's row, the session, then all other rows.
--
--   what is written                                           by                                     lock on the due row
--   provided, due row (new machine)                           provide                                its own new row
--   provided: address, location, status                       write_facts                            none (1)
--   agent, heartbeat, awaited, rebooted, backoff, host key     finish_agent_start, finish_recovery    first CTE (2)
--   backoff, work                                             finish, fail, cancel, close_session    first CTE (2)
--   quarantine                                                quarantine                             first CTE (2)
--   quarantine, agent, heartbeat, awaited, backoff             unquarantine                           due.change
--   backoff                                                   retry                                  due.change
--   installation request                                      request_installation                   due.change
--   installation report                                       write_installation_report               due.change
--   pause that ends                                           resume, take_back, cancel_release    due.change
--   pause that begins                                         pause, set_aside, request_release          none (3)
--   everything that goes with a machine                       depart                                 due.change
--   work, due row                                             claim, start_work                      that row, and its revision (4)
--   due row alone                                             take_health_snapshot                        that row, and its revision (4)
--   work of dead sessions                                     open_session                           none (3)
--   recovery holds                                            set_suspensions                          none (5)
--   backoff of a step that was begun                          record_attempts                       none (3)
--   heartbeat                                                 accept_heartbeat, record_heartbeat       none (6)
--   due row that disagrees with the facts                     due.repair                             lock_due_rows, judged again
--
-- (1) What is needed does not depend on them. The location decides which hold counts, as (5).
-- (2) One statement, to save a round trip. It waits for the due row and goes on by its older view of the rest; but it needs
-- no view: it writes what its work leaves behind, for the machines whose work row it deleted itself. What another may have
-- changed while it waited makes the machine need nothing at all; then the row comes too early, and the claim sees that.
-- (3) Holds the machine up, or ends what did at a date that the due row already has: the row may only come too early.
-- (4) A row that is locked is passed over. One whose revision is not the one that was seen was changed in between.
-- (5) While a hold is in force nobody claims; when it ends, silence is counted from its end, later than any row says.
-- (6) The one write that every machine causes all the time. It makes the row come too early, never too late, because the
-- machine is silent later than was thought; the claim compares. That it is not lost beside whoever ends the agent is seen
-- to in agent.sql.

-- name: lock_due_rows
-- First statement of every transaction that changes tags which decide what a machine needs.
SELECT machine_id FROM machine_due WHERE machine_id = ANY(:machine_ids::uuid[]) ORDER BY machine_id FOR UPDATE;

-- name: reschedule
-- Bring due rows up to date after the tags of these machines changed. Run it in the transaction that changed them,
-- after lock_due_rows and as a statement of its own, so that it sees the change.
INSERT INTO machine_due (machine_id, provider, process, not_before, recovery_not_before)
SELECT
    machine_id,
    provider,
    process,
    least(since, clock_timestamp()),
    (SELECT clock_timestamp() FROM machine_process_needs w WHERE w.machine_id = machine_need.machine_id AND w.overdue)
FROM machine_need
WHERE machine_id = ANY(:machine_ids::uuid[])
ON CONFLICT (machine_id) DO UPDATE
SET
    provider = excluded.provider,
    process = excluded.process,
    not_before = excluded.not_before,
    recovery_not_before = excluded.recovery_not_before,
    revision = machine_due.revision + 1;

-- name: find_due_inconsistencies
-- Machines of the provider whose due rows would have them found never, or too late, and what is wrong, in words. Of two
-- stretches of 500 machines, those that are provided and those that are due, in the order of their ids, which are random,
-- from the id :start on (so it is all of them in a fleet of up to 500, and costs the same in any); and of :machine_ids.
-- A row may come too early, because a claim judges by the facts. No fault is: ten minutes, by which a claim puts off what
-- is paused; the end of a backoff, and of the session that works on the machine; a day, which is as long as a setting may
-- have an agent be silent; and a week, which is as long as one may have a machine come back. Each look is LATERAL, as in
-- claim.
WITH provided AS (
    SELECT machine_id
    FROM (
        (SELECT machine_id FROM machine_provided WHERE machine_id >= :start::uuid ORDER BY machine_id LIMIT 500)
        UNION ALL
        (SELECT machine_id FROM machine_provided WHERE machine_id < :start::uuid ORDER BY machine_id LIMIT 500)
    ) AS around
    LIMIT 500
),
due AS (
    SELECT machine_id
    FROM (
        (SELECT machine_id FROM machine_due WHERE machine_id >= :start::uuid ORDER BY machine_id LIMIT 500)
        UNION ALL
        (SELECT machine_id FROM machine_due WHERE machine_id < :start::uuid ORDER BY machine_id LIMIT 500)
    ) AS around
    LIMIT 500
),
looked AS (
    SELECT machine_id FROM provided
    UNION
    SELECT machine_id FROM due
    UNION
    SELECT g.machine_id FROM unnest(:machine_ids::uuid[]) AS g (machine_id)
),
judged AS (
    SELECT
        l.machine_id,
        coalesce(p.provider, d.provider) AS provider,
        CASE
            WHEN p.machine_id IS NULL THEN 'it is due, and no provider has it'
            WHEN d.machine_id IS NULL THEN 'it has no due row'
            WHEN d.provider <> p.provider THEN 'it is due at provider ' || d.provider
            WHEN n.process IS NOT NULL AND d.process IS NULL THEN 'it is due for nothing, and needs ' || n.process
            WHEN d.process <> n.process THEN 'it is due for ' || d.process || ', and needs ' || n.process
            WHEN n.process IS NOT NULL AND d.not_before > interval '10 minutes'
                + greatest(statement_timestamp(), n.since, n.backoff_until, n.locked_until)
                + CASE
                    WHEN o.machine_id IS NOT NULL THEN interval '7 days'
                    WHEN n.process = 'ShepherdRecovery' THEN interval '1 day'
                    ELSE interval '0 days'
                END
                THEN 'it is due for ' || n.process || ' too late'
            WHEN o.machine_id IS NOT NULL AND d.recovery_not_before IS NULL
                THEN 'it was told to come back, and nobody is to look whether it did'
            WHEN d.recovery_not_before > interval '10 minutes'
                + greatest(statement_timestamp(), o.since, o.backoff_until, o.locked_until) + interval '7 days'
                THEN 'it was told to come back, and somebody is to look too late whether it did'
        END AS wrong
    FROM looked l
    LEFT JOIN LATERAL (SELECT * FROM machine_provided WHERE machine_id = l.machine_id LIMIT 1) AS p ON true
    LEFT JOIN LATERAL (SELECT * FROM machine_due WHERE machine_id = l.machine_id LIMIT 1) AS d ON true
    LEFT JOIN LATERAL (SELECT * FROM machine_eligibility WHERE machine_id = l.machine_id AND NOT overdue LIMIT 1) AS n ON true
    LEFT JOIN LATERAL (SELECT * FROM machine_eligibility WHERE machine_id = l.machine_id AND overdue LIMIT 1) AS o ON true
)
SELECT machine_id, wrong FROM judged WHERE provider = :provider AND wrong IS NOT NULL ORDER BY machine_id;

-- name: delete_orphaned_due_rows
-- Due rows of machines that no provider has: claims pass them over, and never move them.
DELETE FROM machine_due d
WHERE d.machine_id = ANY(:machine_ids::uuid[])
    AND NOT EXISTS (SELECT 1 FROM machine_provided p WHERE p.machine_id = d.machine_id);
