-- Work: claim, and the ways to end it.
--
-- Every statement that ends work takes its locks in the same order: first the due rows, by machine id, then the
-- session's row, whose deadline and fence it checks (see session.sql). Then it deletes the work rows of this session,
-- and does everything else only for the machines whose work row it deleted. It returns those machines; the work of a
-- machine that is missing in the result was lost.

-- name: claim
-- Claim up to :limit due machines, the longest due first. Locks as many due rows as are wanted (10 if :limit is 0) and
-- evaluates their machines by the facts (machine_eligibility). Those that are ready are claimed; their rows move to the
-- session's deadline, so that the machines become due if the session expires. The other rows move to the time from
-- which they may be ready. Where recovery is suspended, machines are skipped and stay due.
--
-- Suspects are machines whose work for this process expired last time: one of them may have killed its function. They
-- are claimed only by a claim that asks for :suspects, and that takes no other machines; until their backoff is over, any
-- claim may examine them, and none takes them. :alone is recorded: the function works on nothing else meanwhile.
--
-- Two claims never take the same machine:
-- - Every claim locks the due row of the agent start and raises its revision. A claim for recovery also locks its own
--   row. In candidates, d is the claim's row and a that of the agent start. A machine of which another statement has
--   locked one of these rows is skipped, never waited for (SKIP LOCKED). Of two claims for different processes, the one
--   that gets the row of the agent start goes on.
-- - Whatever ends work with a result, or changes a fact that decides what a machine needs, also changes the revisions
--   of its rows, and has them locked until it commits.
-- - Rows are locked in their newest version. If that is newer than this statement's snapshot, PostgreSQL evaluates the
--   inner query of candidates again, with the newest version of the locked rows and with seen, which has no lock, as it
--   was (OFFSET 0 keeps it apart): the revisions differ, and the machine is left alone. So a machine is evaluated by a
--   snapshot that contains every claim before this one, or not at all. As a condition, the comparison would make the
--   planner expect no row, and read all that are due.
-- - The primary key of work (machine_id, process) would refuse a second claim for the same process.
--
-- Lock order: due rows, then the session's row. Only a claim that takes a machine locks the session's row; a claim that
-- finds nothing writes nothing.
--
-- Plan: the inner limit is a constant and the evaluation is LATERAL, so the planner expects few rows in a fleet of any
-- size and never scans it.
WITH session AS (
    SELECT session_id FROM sessions WHERE {live_session}
),
skipped_locations AS (
    SELECT location FROM suspensions_in_force WHERE :process = 'ShepherdRecovery' AND provider = :provider
),
candidates AS (
    SELECT machine_id, not_before, unchanged
    FROM (
        SELECT d.machine_id, d.not_before, seen.revisions = d.revision + a.revision AS unchanged
        FROM machine_due d
        JOIN machine_due a ON a.machine_id = d.machine_id AND a.process = 'ShepherdAgentStart'
        CROSS JOIN LATERAL (SELECT d.revision + a.revision AS revisions OFFSET 0) AS seen
        WHERE d.process = :process
            AND d.provider = :provider
            AND d.not_before >= {due_floor}
            AND d.not_before <= statement_timestamp()
            AND EXISTS (SELECT 1 FROM session)
            AND NOT EXISTS ({wide_pauses})
            AND {outside_skipped_locations}
            AND d.machine_id IN ({suspects}) = :suspects
        ORDER BY d.not_before, d.machine_id
        LIMIT 100
        FOR UPDATE OF d, a SKIP LOCKED
    ) AS first_due
    LIMIT CASE WHEN :limit > 0 THEN :limit ELSE 10 END
),
evaluated AS (
    SELECT c.machine_id, c.not_before, n.ready IS TRUE AS ready, n.recheck_at, n.last_interval_seconds
    FROM candidates c
    LEFT JOIN LATERAL (
        SELECT ready, recheck_at, last_interval_seconds
        FROM machine_eligibility
        WHERE machine_id = c.machine_id AND process = :process
        LIMIT 1
    ) AS n ON true
    WHERE c.unchanged
),
work_rows AS (
    INSERT INTO work (machine_id, process, session_id, alone)
    SELECT e.machine_id, :process, s.session_id, :alone
    FROM (
        SELECT session_id FROM sessions WHERE {live_session} AND EXISTS (SELECT 1 FROM evaluated WHERE ready) FOR UPDATE
    ) AS s
    -- LATERAL, so that the session is locked once and not for each machine.
    CROSS JOIN LATERAL (
        SELECT machine_id FROM evaluated WHERE ready AND s.session_id IS NOT NULL ORDER BY not_before, machine_id LIMIT :limit
    ) AS e
    RETURNING machine_id, session_id
),
rescheduled AS (
    UPDATE machine_due d
    SET
        not_before = CASE
            WHEN d.process <> :process THEN d.not_before
            WHEN e.machine_id IN (SELECT machine_id FROM work_rows)
                THEN (SELECT deadline FROM sessions WHERE session_id = :session_id)
            ELSE e.recheck_at
        END,
        revision = d.revision + 1
    FROM evaluated e
    WHERE d.machine_id = e.machine_id
        -- So each row is found by the whole primary key.
        AND d.process IN (:process, 'ShepherdAgentStart')
        AND (e.machine_id IN (SELECT machine_id FROM work_rows) OR (d.process = :process AND NOT e.ready))
    RETURNING d.process
),
history_rows AS (
    INSERT INTO work_history (machine_id, process, event, session_id)
    SELECT machine_id, :process, 'Started', session_id FROM work_rows
)
SELECT
    (SELECT count(*) FROM session) AS sessions,
    (SELECT count(*) FROM rescheduled WHERE process = :process) AS examined,
    ({due_suspects}) AS suspects,
    w.machine_id,
    p.provider_id,
    k.host_key,
    k.origin AS host_key_origin,
    e.last_interval_seconds,
    e.not_before
FROM (SELECT 1) AS one_row
LEFT JOIN work_rows w ON true
LEFT JOIN evaluated e ON e.machine_id = w.machine_id
LEFT JOIN machine_provided p ON p.machine_id = w.machine_id
LEFT JOIN machine_host_key k ON k.machine_id = w.machine_id
ORDER BY e.not_before, w.machine_id;

-- name: start_work
-- Lock one machine that was named for recovery, whether it is due or not; :remark goes to the history. Locks the due row,
-- then the session's row.
--
-- No machine in the row: it is being worked on, or was claimed after this statement began (the revision changed). Fails
-- with a unique violation if another session took a machine without a due row meanwhile.
WITH revisions_before AS (
    SELECT sum(revision) AS revisions FROM machine_due WHERE machine_id = :machine_id
),
due_rows AS (
    SELECT revision FROM machine_due WHERE machine_id = :machine_id ORDER BY process FOR UPDATE
),
session AS (
    SELECT session_id, deadline
    FROM sessions
    WHERE (SELECT count(*) FROM due_rows) >= 0
        AND {live_session}
    FOR UPDATE
),
allowed AS (
    SELECT session_id, deadline
    FROM session
    WHERE (SELECT sum(revision) FROM due_rows) IS NOT DISTINCT FROM (SELECT revisions FROM revisions_before)
        AND NOT EXISTS (SELECT 1 FROM work WHERE machine_id = :machine_id)
),
rescheduled AS (
    UPDATE machine_due
    SET not_before = (SELECT deadline FROM allowed), revision = revision + 1
    WHERE machine_id = :machine_id AND not_before IS NOT NULL AND EXISTS (SELECT 1 FROM allowed)
),
work_row AS (
    INSERT INTO work (machine_id, process, session_id)
    SELECT :machine_id::uuid, 'ShepherdRecovery', session_id FROM allowed
    RETURNING machine_id
),
history_rows AS (
    INSERT INTO work_history (machine_id, process, event, failed_cause, session_id)
    SELECT l.machine_id, 'ShepherdRecovery', 'Started', :remark, s.session_id FROM work_row l CROSS JOIN session s
)
SELECT
    (SELECT count(*) FROM session) AS sessions,
    1 AS examined,
    0 AS suspects,
    l.machine_id,
    p.provider_id,
    k.host_key,
    k.origin AS host_key_origin,
    b.last_interval_seconds,
    clock_timestamp() AS not_before
FROM (SELECT 1) AS one_row
LEFT JOIN work_row l ON true
LEFT JOIN machine_provided p ON p.machine_id = l.machine_id
LEFT JOIN machine_host_key k ON k.machine_id = l.machine_id
LEFT JOIN work_backoff b ON b.machine_id = l.machine_id AND b.process = 'ShepherdRecovery';

-- name: find_unacknowledged_claims
-- Work of this session that its owner does not know of, because the connection broke before the answer of a claim
-- arrived. Same columns as claim. When the machine became due is lost; the current time stands for it.
SELECT
    1 AS sessions,
    0 AS examined,
    0 AS suspects,
    w.machine_id,
    p.provider_id,
    k.host_key,
    k.origin AS host_key_origin,
    b.last_interval_seconds,
    clock_timestamp() AS not_before
FROM work w
JOIN machine_provided p ON p.machine_id = w.machine_id
LEFT JOIN machine_host_key k ON k.machine_id = w.machine_id
LEFT JOIN work_backoff b ON b.machine_id = w.machine_id AND b.process = w.process
WHERE w.session_id = :session_id
    AND w.process = :process
    AND NOT w.machine_id = ANY(:known::uuid[]);

-- name: find_unacknowledged_ends
-- The machines whose work this session has already ended although the answer was lost: those where :event is the
-- last event of this session. It may have ended work on the same machine earlier.
SELECT h.machine_id
FROM work_history h
WHERE h.machine_id = ANY(:machine_ids::uuid[])
    AND h.session_id = :session_id
    AND h.process = :process
    AND h.event = :event
    AND NOT EXISTS (
        SELECT 1
        FROM work_history l
        WHERE l.machine_id = h.machine_id
            AND l.session_id = h.session_id
            AND l.process = h.process
            AND l.timestamp > h.timestamp
    );

-- name: finish_agent_start
-- The agent was started: record its key and, at first contact, the host key; clear the backoff; make the machine due
-- for the Recoverer, which watches it from now on.
--
-- If another host key was pinned meanwhile, the agent runs on some other machine: the work is canceled, the next one
-- compares the keys, and this machine is missing in the result. The snapshot shows what was pinned before this statement
-- began; a key that was pinned since then makes the insertion do nothing.
WITH input_rows AS (
    SELECT g.machine_id, decode(g.public_key, 'hex') AS public_key, g.host_key, g.origin
    FROM unnest(:machine_ids::uuid[], :public_keys::text[], :host_keys::text[], :origins::text[])
        AS g (machine_id, public_key, host_key, origin)
),
{ended_work_on_due_machines},
{host_key_pinned},
started AS (
    SELECT g.machine_id, g.public_key
    FROM input_rows g
    JOIN work_deleted e ON e.machine_id = g.machine_id
    LEFT JOIN machine_host_key k ON k.machine_id = g.machine_id
    WHERE g.host_key IS NULL OR g.host_key = k.host_key OR g.machine_id IN (SELECT machine_id FROM host_key_pinned)
),
agent_rows AS (
    INSERT INTO machine_agent_started (machine_id, agent_started_at, agent_public_key)
    SELECT machine_id, clock_timestamp(), public_key FROM started
    ON CONFLICT (machine_id) DO UPDATE
    SET agent_started_at = excluded.agent_started_at, agent_public_key = excluded.agent_public_key
),
-- The heartbeat of an earlier agent does not count for this one, whose clock may be behind.
heartbeat_deleted AS (
    DELETE FROM machine_agent_heartbeat WHERE machine_id IN (SELECT machine_id FROM started)
),
grace_deleted AS (
    DELETE FROM machine_grace WHERE machine_id IN (SELECT machine_id FROM started)
),
backoff_cleared AS (
    DELETE FROM work_backoff
    WHERE process = 'ShepherdAgentStart' AND machine_id IN (SELECT machine_id FROM started)
),
history_rows AS (
    INSERT INTO work_history (machine_id, process, event, failed_cause, session_id)
    SELECT machine_id, 'ShepherdAgentStart', 'Finished', NULL, :session_id::uuid FROM started
    UNION ALL
    SELECT machine_id, 'ShepherdAgentStart', 'Canceled', 'another host key was pinned meanwhile', :session_id::uuid
    FROM work_deleted
    WHERE machine_id NOT IN (SELECT machine_id FROM started)
),
rescheduled AS (
    UPDATE machine_due d
    SET
        not_before = CASE
            WHEN s.machine_id IS NULL AND d.not_before IS NULL THEN NULL
            WHEN s.machine_id IS NULL OR d.process = 'ShepherdRecovery' THEN clock_timestamp()
        END,
        revision = d.revision + 1
    FROM work_deleted e LEFT JOIN started s ON s.machine_id = e.machine_id
    WHERE d.machine_id = e.machine_id
)
SELECT machine_id FROM started;

-- name: finish_recovery
-- A recovery step was taken, or may have been, where :causes says why that is unknown. If it :loses_agent, delete the
-- agent and its heartbeat; the next agent start waits until the machine should have booted, and ignores earlier failures.
-- Otherwise what the machine needs stays the same.
--
-- If :grace_seconds is given and the machine has no agent after that time, it needs recovery again. For
-- :cooldown_seconds it gets no other step, whether it came back or not. :rebooted is false if only the agent was
-- restarted.
WITH {ended_work_on_due_machines},
-- One time for both rows: the health snapshot compares them.
step AS (
    SELECT clock_timestamp() AS taken_at
),
agent_deleted AS (
    DELETE FROM machine_agent_started WHERE :loses_agent::boolean AND machine_id IN (SELECT machine_id FROM work_deleted)
),
heartbeat_deleted AS (
    DELETE FROM machine_agent_heartbeat WHERE :loses_agent::boolean AND machine_id IN (SELECT machine_id FROM work_deleted)
),
reboot_rows AS (
    INSERT INTO machine_rebooted (machine_id, rebooted_at, boot_wait_until, had_reported)
    SELECT
        e.machine_id,
        s.taken_at,
        s.taken_at + :boot_wait_seconds::float8 * interval '1 second',
        coalesce(
            (SELECT n.reported FROM machine_need n WHERE n.machine_id = e.machine_id AND n.last_heartbeat_at IS NOT NULL),
            (SELECT r.had_reported FROM machine_rebooted r WHERE r.machine_id = e.machine_id),
            false
        )
    FROM work_deleted e
    CROSS JOIN step s
    WHERE :rebooted::boolean
    ON CONFLICT (machine_id) DO UPDATE
    SET rebooted_at = excluded.rebooted_at, boot_wait_until = excluded.boot_wait_until, had_reported = excluded.had_reported
),
grace_rows AS (
    INSERT INTO machine_grace (machine_id, grace_began_at, grace_until)
    SELECT e.machine_id, s.taken_at, s.taken_at + :grace_seconds::float8 * interval '1 second'
    FROM work_deleted e
    CROSS JOIN step s
    WHERE :grace_seconds::float8 IS NOT NULL
    ON CONFLICT (machine_id) DO UPDATE SET grace_began_at = excluded.grace_began_at, grace_until = excluded.grace_until
),
backoff_reset AS (
    UPDATE work_backoff
    SET
        until = clock_timestamp() + CASE
            WHEN process = 'ShepherdRecovery' THEN :cooldown_seconds::float8 * interval '1 second'
            ELSE interval '0 seconds'
        END,
        cause = CASE WHEN process = 'ShepherdRecovery' THEN 'no other step so soon after the last' ELSE cause END,
        last_interval_seconds = NULL,
        deaths = 0,
        deaths_alone = 0
    WHERE machine_id IN (SELECT machine_id FROM work_deleted) AND (:loses_agent::boolean OR process = 'ShepherdRecovery')
),
history_rows AS (
    INSERT INTO work_history (machine_id, process, event, failed_cause, session_id)
    SELECT e.machine_id, 'ShepherdRecovery', 'Finished', g.cause, :session_id::uuid
    FROM work_deleted e
    JOIN unnest(:machine_ids::uuid[], :causes::text[]) AS g (machine_id, cause) ON g.machine_id = e.machine_id
),
rescheduled AS (
    UPDATE machine_due
    SET
        not_before = clock_timestamp() + CASE
            WHEN process = 'ShepherdAgentStart' AND (:loses_agent::boolean OR not_before IS NOT NULL)
                THEN :boot_wait_seconds::float8
            WHEN process = 'ShepherdRecovery' AND :loses_agent::boolean THEN :grace_seconds::float8
            WHEN process = 'ShepherdRecovery' THEN :boot_wait_seconds::float8
        END * interval '1 second',
        revision = revision + 1
    WHERE machine_id IN (SELECT machine_id FROM work_deleted)
)
SELECT machine_id FROM work_deleted;

-- name: fail
-- The work failed: record the cause and the fault, and back off for each machine's interval. If the recovery step that
-- is on record was certainly not taken, record that too ('NotTaken'), and pin the host key again that it deleted.
WITH input_rows AS (
    SELECT g.machine_id, g.cause, g.seconds, g.host_key, g.origin, g.fault, g.step
    FROM unnest(
        :machine_ids::uuid[],
        :causes::text[],
        :intervals::bigint[],
        :host_keys::text[],
        :origins::text[],
        :faults::text[],
        :steps::text[]
    ) AS g (machine_id, cause, seconds, host_key, origin, fault, step)
),
{ended_work},
backoff_rows AS (
    INSERT INTO work_backoff (machine_id, process, until, cause, last_interval_seconds, fault)
    SELECT g.machine_id, :process, clock_timestamp() + g.seconds * interval '1 second', g.cause, g.seconds, g.fault
    FROM input_rows g JOIN work_deleted e ON e.machine_id = g.machine_id
    ON CONFLICT (machine_id, process) DO UPDATE
    SET
        until = excluded.until,
        cause = excluded.cause,
        last_interval_seconds = excluded.last_interval_seconds,
        fault = excluded.fault,
        deaths = 0,
        deaths_alone = 0
),
{host_key_pinned},
history_rows AS (
    INSERT INTO work_history (machine_id, process, event, step, failed_cause, session_id)
    SELECT g.machine_id, :process, 'NotTaken', g.step, g.cause, :session_id::uuid
    FROM input_rows g JOIN work_deleted e ON e.machine_id = g.machine_id
    WHERE g.step IS NOT NULL
    UNION ALL
    SELECT g.machine_id, :process, 'Failed', NULL, g.cause, :session_id::uuid
    FROM input_rows g JOIN work_deleted e ON e.machine_id = g.machine_id
),
rescheduled AS (
    UPDATE machine_due d
    SET
        not_before = clock_timestamp() + CASE WHEN d.process = :process THEN g.seconds ELSE 0 END * interval '1 second',
        revision = d.revision + 1
    FROM input_rows g
    JOIN work_deleted e ON e.machine_id = g.machine_id
    WHERE d.machine_id = g.machine_id AND d.not_before IS NOT NULL
)
SELECT machine_id FROM work_deleted;

-- name: cancel
-- Cancel work that was not done, through no fault of the machine, and restore its due time. The floor may have been
-- raised above that time meanwhile, so it is lowered. Its new revision tells a concurrent close_session not to raise it.
-- If there was no floor, one below all due rows is inserted for its revision: other machines may have been due for longer.
WITH input_rows AS (
    SELECT g.machine_id, g.not_before
    FROM unnest(:machine_ids::uuid[], :not_befores::timestamptz[]) AS g (machine_id, not_before)
),
{ended_work},
history_rows AS (
    INSERT INTO work_history (machine_id, process, event, session_id)
    SELECT machine_id, :process, 'Canceled', :session_id::uuid FROM work_deleted
),
rescheduled AS (
    UPDATE machine_due d
    SET not_before = g.not_before, revision = d.revision + 1
    FROM input_rows g
    JOIN work_deleted e ON e.machine_id = g.machine_id
    WHERE d.machine_id = g.machine_id AND d.not_before IS NOT NULL
    RETURNING d.process, d.provider, d.not_before
),
floors_lowered AS (
    INSERT INTO due_floors AS f (process, provider, floor, revision)
    SELECT process, provider, '-infinity', 1
    FROM rescheduled
    GROUP BY process, provider
    HAVING min(not_before) < clock_timestamp() - interval '30 seconds'
    ORDER BY process, provider
    ON CONFLICT (process, provider) DO UPDATE
    SET
        floor = least(
            f.floor,
            (SELECT min(r.not_before) FROM rescheduled r WHERE r.process = f.process AND r.provider = f.provider)
        ),
        revision = f.revision + 1
)
SELECT machine_id FROM work_deleted;
