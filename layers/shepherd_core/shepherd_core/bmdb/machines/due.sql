-- The due index (machine_due), and the order in which it and the facts behind it are written.
--
-- A machine's due rows, one for each process, are the lock on the facts that decide what it needs. In READ COMMITTED, a
-- statement that waits for a row lock still sees all other rows as they were before it waited. So a change of such a
-- fact takes three statements in one transaction: lock_due_rows, then the change, then reschedule, which evaluates the
-- facts as they are now. due.change does that. Locks are taken in this order: due rows by machine id and process, the
-- provider's row, the session's row, then all other rows.
--
-- Whatever takes work, ends it with a result, or changes these facts, also changes the revisions of the machine's due
-- rows, except of those that are null and stay so: a claim compares the revisions with those of its snapshot (work.sql).
--
--   what is written                                           by                                     lock on the due row
--   provided, due rows (new machine)                          provide                                its own new rows
--   provided: address, location, status                       write_facts                            first CTE, if the location changes (1)
--   agent, heartbeat, grace, rebooted, backoff, host key      finish_agent_start, finish_recovery    first CTE (2)
--   backoff, work                                             finish, fail, cancel, close_session,   first CTE (2)
--                                                             end_unneeded_recovery
--   quarantine                                                quarantine                             first CTE (2)
--   quarantine, agent, grace, backoff                         unquarantine                           due.change
--   backoff                                                   retry                                  due.change
--   installation request                                      request_installation                   due.change
--   installation report                                       write_installation_report              due.change
--   pause that ends                                           resume, take_back, cancel_release      due.change
--   pause that begins                                         pause, set_aside, request_release      none (3)
--   everything that goes with a machine                       decommission                           due.change
--   work, due row                                             claim, start_work                      both rows, and their revisions (4)
--   due row only                                              take_health_snapshot                   that row, and its revision (4)
--   due row only                                              recheck_unreached_machines             that row
--   due row only                                              bring_due_rows_forward                 that row, or none (4)
--   work of expired sessions, backoff                         open_session                           none (3)
--   suspensions of recovery                                   set_suspensions                        none (5)
--   backoff of a step that was begun                          record_attempts                        none (3)
--   heartbeat                                                 accept_heartbeat                       none (6)
--   due row that contradicts the facts                        due.repair                             lock_due_rows, evaluated again
--   floor of the due rows                                     close_session, cancel                  none (7)
--
-- (1) What a machine needs does not depend on them. The location decides which suspension and which SSH outage applies.
--
-- (2) One statement, to save a round trip. It waits for the due rows and continues with its older snapshot. That is
-- safe because it needs no other facts: it writes what its own work results in, for the machines whose work row it
-- deleted. A concurrent change can at most mean that the machine needs nothing any more. Then the due row is too early,
-- and the claim notices.
--
-- (3) It delays the machine, or ends a delay at a time that the due row already has. So the row can only be too early.
--
-- (4) A locked row is skipped. A row whose revision differs from the one in the snapshot was changed in between, and is
-- left alone.
--
-- (5) While recovery is suspended, no machine there is claimed. When the suspension ends, the timeouts start at its
-- end, which is later than any due row says.
--
-- (6) The most frequent write. It makes the due row too early, never too late, because the
-- machine becomes unhealthy later than expected; the claim compares. reports.sql says why no heartbeat is lost beside a
-- statement that deletes the agent.
--
-- (7) No due row is ever below the floor, where claims would not find it:
-- - close_session raises the floor to the oldest due row of its snapshot at most, and no later than two minutes ago.
-- - Every statement but cancel writes due times that are not earlier than its own beginning, or leaves the row at an
--   earlier time than it had and not below the floor. So a row that close_session cannot see yet could only be below the
--   floor if its transaction lasted two minutes after writing it. The server ends ours after 65 s (connection.py) with
--   the default settings; settings with which it could last two minutes are refused (settings/checks/timing.py).
-- - cancel restores earlier times, and lowers the floor to them with a new revision, in the same statement. A concurrent
--   close_session, whose snapshot does not contain that, waits for the floor's row and finds another revision than in its
--   snapshot; then it does not raise the floor.
-- - If the clock of the server is set back, the next close_session lowers the floor to two minutes before the new time.
-- Whatever breaks this (a transaction that lasts longer, a statement typed by hand) is found by find_due_inconsistencies
-- like every other due row that is wrong.
-- While a machine stays due, as during a suspension, the floor stays with it.

-- name: lock_due_rows
-- Lock the due rows, by machine id and process. First statement of every transaction that changes facts which decide
-- what a machine needs.
SELECT machine_id FROM machine_due WHERE machine_id = ANY(:machine_ids::uuid[]) ORDER BY machine_id, process FOR UPDATE;

-- name: reschedule
-- Bring due rows up to date after facts of these machines changed. Runs in the transaction that changed them, after
-- lock_due_rows, and as a statement of its own so that its snapshot contains the change. A process that is needed is due
-- now, not since when it is needed: that would be below the floor.
INSERT INTO machine_due (machine_id, process, provider, not_before)
SELECT
    p.machine_id,
    x.process,
    p.provider,
    (
        SELECT clock_timestamp()
        FROM machine_process_needs n
        WHERE n.machine_id = p.machine_id AND n.process = x.process
    )
FROM machine_provided p
CROSS JOIN unnest(ARRAY['ShepherdAgentStart', 'ShepherdRecovery']) AS x (process)
WHERE p.machine_id = ANY(:machine_ids::uuid[])
ON CONFLICT (machine_id, process) DO UPDATE
SET provider = excluded.provider, not_before = excluded.not_before, revision = machine_due.revision + 1;

-- name: find_due_inconsistencies
-- Machines of the provider whose due rows would make a loop find them too late or never, with the error as text. A row
-- that is too early is correct, because claims evaluate the facts.
--
-- Examined are :machine_ids and two samples: 500 provided machines and 1,000 due rows, in the order of their ids, from
-- the id :start on. Ids are random, so these are random samples, at the same cost in a fleet of any size; a fleet of up
-- to 500 is examined whole.
--
-- Delays that are not an error, from now and from since on:
-- - 10 minutes, by which a claim postpones a paused machine.
-- - The end of a backoff, and the deadline of the session that works on the machine.
-- - For a machine with an agent: 1 day, the longest timeout of an agent that can be configured.
-- - For a machine that is expected back: its grace. The boot wait is shorter, and a suspension that begins again makes
--   since earlier by up to a grace.
-- - For its recovery also: while an SSH outage suspends it; and 1 day after the last gap between snapshots, the longest
--   time for which a gap can be in doubt.
--
-- The lookups are LATERAL, as in claim.
WITH provided_sample AS (
    SELECT machine_id
    FROM (
        (SELECT machine_id FROM machine_provided WHERE machine_id >= :start::uuid ORDER BY machine_id LIMIT 500)
        UNION ALL
        (SELECT machine_id FROM machine_provided WHERE machine_id < :start::uuid ORDER BY machine_id LIMIT 500)
    ) AS around
    LIMIT 500
),
due_sample AS (
    SELECT machine_id
    FROM (
        (SELECT machine_id FROM machine_due WHERE machine_id >= :start::uuid ORDER BY machine_id LIMIT 1000)
        UNION ALL
        (SELECT machine_id FROM machine_due WHERE machine_id < :start::uuid ORDER BY machine_id LIMIT 1000)
    ) AS around
    LIMIT 1000
),
candidates AS (
    SELECT machine_id FROM provided_sample
    UNION
    SELECT machine_id FROM due_sample
    UNION
    SELECT g.machine_id FROM unnest(:machine_ids::uuid[]) AS g (machine_id)
),
evaluated AS (
    SELECT
        c.machine_id,
        x.process,
        coalesce(p.provider, d.provider) AS provider,
        CASE
            WHEN p.machine_id IS NULL AND d.machine_id IS NOT NULL THEN 'it has a due row, but is not provided'
            WHEN d.machine_id IS NULL THEN 'it has no due row'
            WHEN d.provider <> p.provider THEN 'its due row has provider ' || d.provider
            WHEN n.process IS NOT NULL AND d.not_before < f.floor THEN 'it is due for ' || x.process || ' below the floor'
            WHEN n.process IS NOT NULL AND d.not_before IS NULL THEN 'it needs ' || x.process || ', but is not due for it'
            WHEN n.process IS NOT NULL AND d.not_before > interval '10 minutes' + CASE
                WHEN n.overdue THEN greatest(
                    statement_timestamp() + w.grace,
                    n.due_at,
                    CASE WHEN n.in_outage THEN 'infinity'::timestamptz END,
                    n.backoff_until,
                    n.locked_until,
                    (SELECT max(ended_at) FROM recovery_gaps WHERE provider = :provider) + interval '1 day'
                )
                ELSE greatest(statement_timestamp(), n.since, n.backoff_until, n.locked_until) + CASE
                    WHEN n.process = 'ShepherdRecovery' THEN interval '1 day'
                    ELSE coalesce(w.grace, interval '0 days')
                END
            END
                THEN 'it is due for ' || x.process || ' too late'
        END AS wrong
    FROM candidates c
    CROSS JOIN unnest(ARRAY['ShepherdAgentStart', 'ShepherdRecovery']) AS x (process)
    LEFT JOIN LATERAL (SELECT * FROM machine_provided WHERE machine_id = c.machine_id LIMIT 1) AS p ON true
    LEFT JOIN LATERAL (
        SELECT * FROM machine_due WHERE machine_id = c.machine_id AND process = x.process LIMIT 1
    ) AS d ON true
    LEFT JOIN LATERAL (
        SELECT * FROM machine_eligibility WHERE machine_id = c.machine_id AND process = x.process LIMIT 1
    ) AS n ON true
    LEFT JOIN LATERAL (
        SELECT grace_until - grace_began_at AS grace FROM machine_grace WHERE machine_id = c.machine_id LIMIT 1
    ) AS w ON true
    LEFT JOIN due_floors f ON f.process = x.process AND f.provider = :provider
)
SELECT machine_id, wrong FROM evaluated WHERE provider = :provider AND wrong IS NOT NULL ORDER BY machine_id, process;

-- name: delete_orphaned_due_rows
-- Delete due rows of machines that are not provided. No claim takes such a machine.
DELETE FROM machine_due d
WHERE d.machine_id = ANY(:machine_ids::uuid[])
    AND NOT EXISTS (SELECT 1 FROM machine_provided p WHERE p.machine_id = d.machine_id);
