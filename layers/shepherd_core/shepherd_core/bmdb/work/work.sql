-- Work: claim, and the ways to end it.
--
-- A claim takes two statements, each a transaction of its own. lock_machines inserts a row for each machine: by the
-- primary key of work, one session has it, whatever the process. begin_work then looks at the facts of exactly these
-- machines. Its snapshot is younger than the lock, so it contains everything that an earlier holder committed before its
-- lock went. What is not ready is let go. If the function dies in between, the locks go with its session and leave no
-- event. That holds in READ COMMITTED and under snapshot isolation: no statement relies on waiting for a row.
--
-- Every statement that ends work locks the session's row first, whose deadline and fence it checks (see session.sql).
-- Then it deletes the work rows of this session, and does everything else only for the machines whose work row it
-- deleted. It returns those machines; the work of a machine that is missing in the result was lost.

-- name: find_candidates
-- The machines of the provider that need the process (not recovery: read_fleet) and that nothing is seen to keep from it, the
-- longest waiting first: at most :limit of them, and their total. A suspect is a machine whose work for this process expired
-- last time: it may have killed its function. Reads the facts of the whole fleet once; a claim looks at each machine again.
WITH candidates AS (
    SELECT n.machine_id, greatest(n.since, b.until) AS due_at, coalesce(b.deaths > 0, false) AS suspect
    FROM machine_need n
    LEFT JOIN work w ON w.machine_id = n.machine_id
    LEFT JOIN work_backoff b ON b.machine_id = n.machine_id AND b.process = :process
    WHERE n.provider = :provider
        AND n.process = :process
        AND w.machine_id IS NULL
        AND NOT EXISTS ({wide_pauses})
        AND n.machine_id NOT IN (
            SELECT x.machine_id
            FROM pause_scopes x
            WHERE x.machine_id IS NOT NULL AND x.process IN ('', :process) AND x.provider IN ('', :provider)
        )
)
SELECT
    machine_id,
    extract(epoch FROM statement_timestamp() - due_at)::float8 AS due_seconds,
    suspect,
    count(*) OVER () AS total
FROM candidates
WHERE due_at <= statement_timestamp()
ORDER BY due_at, machine_id
LIMIT :limit;

-- name: lock_machines
-- Lock those of the machines that nobody has locked. One row in any case, unless the session has expired. Rows are inserted
-- in the order of their ids, so that two claims never wait for each other.
WITH {locked_session},
-- A machine that another session has is left out.
work_rows AS (
    INSERT INTO work (machine_id, process, session_id)
    SELECT g.machine_id, :process, s.session_id
    FROM locked_session s
    CROSS JOIN unnest(:machine_ids::uuid[]) AS g (machine_id)
    JOIN machines m ON m.machine_id = g.machine_id
    ORDER BY g.machine_id
    ON CONFLICT (machine_id) DO NOTHING
    RETURNING machine_id
)
SELECT w.machine_id FROM locked_session LEFT JOIN work_rows w ON true;

-- name: begin_work
-- Look at the facts of the machines that this session has locked for the process and not begun: begin the work on those
-- that are ready; let_go lets the others go. With a :remark, which goes to the history, an operator wants them: all are
-- begun. Returns the work that was begun; if :known is given, also what this session began before and that is not in it.
WITH {locked_session},
-- The facts of each locked machine, by a snapshot that is younger than its lock.
looked_at AS (
    SELECT w.machine_id, :remark::text IS NOT NULL OR e.ready IS TRUE AS ready, greatest(e.due_at, e.backoff_until) AS due_at
    FROM work w JOIN locked_session s ON s.session_id = w.session_id
    LEFT JOIN LATERAL (
        SELECT ready, due_at, backoff_until FROM machine_eligibility
        WHERE machine_id = w.machine_id AND process = :process AND ready
        LIMIT 1
    ) AS e ON true
    WHERE w.process = :process AND w.began_at IS NULL
),
-- From here on the machine is this session's to work on.
begun AS (
    UPDATE work SET began_at = clock_timestamp()
    WHERE machine_id IN (SELECT machine_id FROM looked_at WHERE ready)
    RETURNING machine_id
),
history_rows AS (
    INSERT INTO work_history (machine_id, process, event, failed_cause, session_id)
    SELECT machine_id, :process, 'Started', :remark::text, :session_id::uuid FROM begun
)
SELECT
    w.machine_id,
    :process::text AS process,
    p.provider_id, k.host_key, b.last_interval_seconds, k.origin AS host_key_origin,
    coalesce(b.deaths, 0) AS deaths
FROM (
    SELECT machine_id FROM begun UNION ALL
    SELECT machine_id FROM work
    WHERE session_id = :session_id AND process = :process AND began_at IS NOT NULL AND machine_id <> ALL (:known::uuid[])
) AS w
LEFT JOIN looked_at l ON l.machine_id = w.machine_id
LEFT JOIN machine_provided p ON p.machine_id = w.machine_id
LEFT JOIN machine_host_key k ON k.machine_id = w.machine_id
LEFT JOIN work_backoff b ON b.machine_id = w.machine_id AND b.process = :process
ORDER BY l.due_at, w.machine_id;

-- name: own_locks
-- The locks of this session for the process with which no work was begun.
SELECT machine_id FROM work WHERE session_id = :session_id AND process = :process AND began_at IS NULL;

-- name: machine_exists
-- The machine, if the BMDB has it.
SELECT machine_id FROM machines WHERE machine_id = :machine_id;

-- name: let_go
-- Give up the locks of this session that it has not begun work with. May run twice. No row: the session has expired.
WITH {locked_session},
work_deleted AS (DELETE FROM work WHERE session_id IN (SELECT session_id FROM locked_session) AND began_at IS NULL)
SELECT 1 FROM locked_session;

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
-- The agent was started: record its key and, at first contact, the host key; clear the backoff.
--
-- If another host key was pinned meanwhile, the agent runs on some other machine: the work is canceled, the next one
-- compares the keys, and this machine is missing in the result. The snapshot shows what was pinned before this statement
-- began; a key that was pinned since then makes the insertion do nothing.
WITH {ended_work},
-- At first contact.
host_key_pinned AS (
    INSERT INTO machine_host_key (machine_id, host_key, pinned_at, origin)
    SELECT machine_id, host_key, clock_timestamp(), origin FROM work_deleted WHERE host_key IS NOT NULL
    ON CONFLICT (machine_id) DO NOTHING
    RETURNING machine_id
),
-- Where the agent runs on the machine that was meant.
started AS (
    SELECT e.machine_id, e.public_key, e.agent_sha256
    FROM work_deleted e
    LEFT JOIN machine_host_key k ON k.machine_id = e.machine_id
    WHERE e.host_key IS NULL OR e.host_key = k.host_key OR e.machine_id IN (SELECT machine_id FROM host_key_pinned)
),
-- The key by which its reports are judged.
agent_rows AS (
    INSERT INTO machine_agent_started (machine_id, agent_started_at, agent_public_key, agent_sha256)
    SELECT machine_id, clock_timestamp(), decode(public_key, 'hex'), agent_sha256 FROM started
    ON CONFLICT (machine_id) DO UPDATE
    SET (agent_started_at, agent_public_key, agent_sha256) =
        (excluded.agent_started_at, excluded.agent_public_key, excluded.agent_sha256)
),
-- The heartbeat of an earlier agent does not count for this one, whose clock may be behind.
heartbeat_deleted AS (DELETE FROM machine_agent_heartbeat WHERE machine_id IN (SELECT machine_id FROM started)),
grace_deleted AS (DELETE FROM machine_grace WHERE machine_id IN (SELECT machine_id FROM started)),
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
)
SELECT machine_id FROM started;

-- name: finish_recovery
-- A recovery step was taken, or may have been, where a kind says why that is unknown. If it :loses_agent, delete the
-- agent and its heartbeat; the next agent start waits until the machine should have booted, and ignores earlier failures.
-- Otherwise what the machine needs stays the same.
--
-- If the machine has no agent after :grace_seconds, it needs recovery again. For :cooldown_seconds it gets no other step,
-- whether it came back or not. :rebooted is false if only the agent was restarted. Of a machine that was :released, the
-- Provisioner removes the facts when the provider lists it no more; until then it is paused for every loop.
WITH {ended_work},
-- One time for all rows.
step AS (SELECT clock_timestamp() AS taken_at),
agent_deleted AS (
    DELETE FROM machine_agent_started WHERE :loses_agent::boolean AND machine_id IN (SELECT machine_id FROM work_deleted)
),
heartbeat_deleted AS (
    DELETE FROM machine_agent_heartbeat WHERE :loses_agent::boolean AND machine_id IN (SELECT machine_id FROM work_deleted)
),
-- The permission of the step wrote the row (record_attempts).
reboot_rows AS (
    UPDATE machine_rebooted r
    SET rebooted_at = s.taken_at, boot_wait_until = s.taken_at + :boot_wait_seconds::float8 * interval '1 second'
    FROM step s
    WHERE :rebooted::boolean AND r.machine_id IN (SELECT machine_id FROM work_deleted)
),
-- Until when the machine has to be back.
grace_rows AS (
    INSERT INTO machine_grace (machine_id, grace_began_at, grace_until)
    SELECT e.machine_id, s.taken_at, s.taken_at + :grace_seconds::float8 * interval '1 second'
    FROM work_deleted e
    CROSS JOIN step s
    ON CONFLICT (machine_id) DO UPDATE SET grace_began_at = excluded.grace_began_at, grace_until = excluded.grace_until
),
-- The cooldown; after a loss of the agent, earlier failures of its start no longer count.
backoff_reset AS (
    UPDATE work_backoff
    SET
        until = clock_timestamp() + CASE
            WHEN process = 'ShepherdRecovery' THEN :cooldown_seconds::float8 * interval '1 second'
            ELSE interval '0 seconds'
        END,
        kind = NULL,
        cause = CASE WHEN process = 'ShepherdRecovery' THEN 'no other step so soon after the last' ELSE cause END,
        last_interval_seconds = NULL,
        fault = 'machine',
        deaths = 0
    WHERE machine_id IN (SELECT machine_id FROM work_deleted) AND (:loses_agent::boolean OR process = 'ShepherdRecovery')
),
history_rows AS (
    INSERT INTO work_history (machine_id, process, event, step, kind, fault, failed_cause, session_id)
    SELECT machine_id, 'ShepherdRecovery', 'Finished', :asked_step::text, kind, fault, cause, :session_id::uuid FROM work_deleted
    RETURNING machine_id, kind
),
-- Only what the provider certainly accepted.
release_rows AS (
    INSERT INTO machine_release (machine_id, asked_by, reason, accepted_at)
    SELECT
        g.machine_id, 'recoverer', 'failed for good at its provider: ' || coalesce(nullif(p.provider_failure, ''), '?'), s.taken_at
    FROM history_rows g
    JOIN machine_provided p ON p.machine_id = g.machine_id
    CROSS JOIN step s
    WHERE :released::boolean AND g.kind IS NULL
    ON CONFLICT (machine_id) DO UPDATE SET accepted_at = coalesce(machine_release.accepted_at, excluded.accepted_at)
    RETURNING machine_id, reason
),
pause_rows AS (
    INSERT INTO pauses (machine_id, owner, reason) SELECT machine_id, 'release', reason FROM release_rows ON CONFLICT DO NOTHING
)
SELECT machine_id FROM work_deleted;

-- name: end_undone
-- The work failed, or was canceled, as :event says; with seconds to wait, the process backs off for so long.
WITH {ended_work},
backoff_rows AS (
    INSERT INTO work_backoff (machine_id, process, until, kind, fault, cause, last_interval_seconds, agent_sha256)
    SELECT machine_id, :process, clock_timestamp() + seconds * interval '1 second', kind, fault, cause, seconds, agent_sha256
    FROM work_deleted
    WHERE seconds IS NOT NULL
    ON CONFLICT (machine_id, process) DO UPDATE
    SET (until, kind, fault, cause, last_interval_seconds, deaths, agent_sha256) =
        (excluded.until, excluded.kind, excluded.fault, excluded.cause, excluded.last_interval_seconds, 0, excluded.agent_sha256)
),
history_rows AS (
    INSERT INTO work_history (machine_id, process, event, kind, fault, failed_cause, session_id)
    SELECT machine_id, :process, :event, kind, fault, cause, :session_id::uuid FROM work_deleted
)
SELECT machine_id FROM work_deleted;
