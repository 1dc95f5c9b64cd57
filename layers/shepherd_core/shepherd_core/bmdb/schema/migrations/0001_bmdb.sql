-- The BMDB: what Shepherd knows about its machines, and who is working on them.
--
-- One narrow table for each fact about a machine: if a row exists, the fact holds. What a machine needs follows from
-- its facts (the views at the end), and nothing of it is stored. Each comment says what a row means, who writes it, and
-- when it goes.

-- Failures -----------------------------------------------------------------------------------------------------------

-- What failed, and who is to blame; see FailureKind and Fault in domain/errors. Both are written from the error's class.
CREATE DOMAIN failure_kind AS text
    CONSTRAINT failure_kind_registered CHECK (VALUE IN
        ('config-error', 'event-invalid', 'time-limit-exceeded', 'answer-undelivered', 'bmdb-unavailable',
         'bmdb-untrusted', 'clock-differs', 'serialization-conflict', 'commit-unknown', 'statement-failed',
         'schema-mismatch',
         'migration-refused', 'roles-refused', 'session-expired', 'no-longer-due', 'held-back', 'machine-unknown',
         'work-conflict', 'provider-unavailable', 'provider-not-asked', 'provider-refused', 'provider-unusable',
         'provider-forbidden', 'machine-not-found', 'capacity-taken', 'not-supported', 'listing-invalid',
         'drift-limit-exceeded', 'no-address', 'ssh-refused', 'ssh-timed-out', 'ssh-authentication-failed',
         'host-key-unknown', 'ssh-host-key-changed', 'ssh-connection-lost', 'ssh-failed', 'ssh-misbehaved',
         'ssh-out-of-resources', 'ssh-fork-server-lost', 'ssh-upload-failed', 'agent-exited',
         'malformed-answer', 'wrong-key-length', 'wrong-init-message', 'agent-refused', 'secret-missing',
         'secret-unavailable', 'agent-mismatch', 'source-invalid', 'source-missing', 'source-unavailable',
         'function-died', 'steps-used-up', 'recovered-often', 'reports-again', 'provisioning-failed', 'unexpected'));
CREATE DOMAIN failure_fault AS text
    CONSTRAINT failure_fault_registered CHECK (VALUE IN ('machine', 'unreached', 'access', 'provider', 'ours'));

-- Machines -----------------------------------------------------------------------------------------------------------

-- A machine. Its id is also the idempotency token of its creation. Written by the Provisioner, with the intent to
-- create it; stays for good, unless the creation is abandoned.
CREATE TABLE machines (
    machine_id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    machine_created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Operators list the newest machines.
CREATE INDEX machines_by_time ON machines (machine_created_at, machine_id);

-- A creation that was decided, and whose outcome is not known yet. Written by the Provisioner before it calls the
-- provider; goes when the machine is provided, or certainly never will be.
CREATE TABLE machine_creation_intent (
    machine_id uuid PRIMARY KEY CONSTRAINT machine_creation_intent_machine REFERENCES machines,
    provider text NOT NULL,
    capacity_id varchar(128),
    intended_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX machine_creation_intent_by_provider ON machine_creation_intent (provider);

-- The provider has the machine; what it lists about it; provider_failure is its word for a failure for good,
-- provider_hardware what names the hardware whatever its id and address are, provider_labels the labels there. Written by
-- the Provisioner, kept up to date by the Updater; goes when the machine is forgotten or released. The index of the primary
-- key has what the view machine_need reads: the health snapshot looks up 1,000 machines by random ids, each in a page of
-- its own.
CREATE TABLE machine_provided (
    machine_id uuid CONSTRAINT machine_provided_machine REFERENCES machines,
    provider text NOT NULL CONSTRAINT machine_provided_provider CHECK (length(provider) BETWEEN 1 AND 64),
    provider_id varchar(128) NOT NULL,
    provider_reservation_id varchar(128),
    provider_ip_address varchar(128),
    provider_location varchar(128),
    provider_status text CONSTRAINT machine_provided_status CHECK (provider_status IN
        ('Missing', 'Provisioning', 'ProvisioningFailedPermanent', 'Running', 'Stopped', 'Unknown')),
    provider_failure text,
    provider_hardware text,
    provider_labels jsonb NOT NULL DEFAULT '{}'
        CONSTRAINT machine_provided_labels CHECK (jsonb_typeof(provider_labels) = 'object'),
    PRIMARY KEY (machine_id) INCLUDE (provider, provider_location, provider_status),
    CONSTRAINT machine_provided_once UNIQUE (provider, provider_id)
);

-- Machines that the Updater may ask the provider about in each run; the condition contains the fragment not_ready. Also those
-- that failed for good, which the Recoverer reads in each run.
CREATE INDEX machine_provided_not_ready ON machine_provided (provider)
    WHERE provider_status IS NULL
        OR provider_status IN ('Provisioning', 'Stopped', 'Unknown', 'ProvisioningFailedPermanent')
        OR (provider_status = 'Running' AND provider_ip_address IS NULL);

-- The SSH host key of the machine, and where it is from. Written when its first takeover succeeds, or before it by the
-- Provisioner if the provider reports the key, or by an operator; goes with a reinstallation, or when an operator
-- forgets it.
CREATE TABLE machine_host_key (
    machine_id uuid PRIMARY KEY CONSTRAINT machine_host_key_machine REFERENCES machines,
    host_key text NOT NULL,
    pinned_at timestamptz NOT NULL,
    origin text NOT NULL DEFAULT 'FirstContact' CONSTRAINT machine_host_key_origin CHECK (origin IN
        ('FirstContact', 'Provider', 'Operator'))
);

-- The labels that operators gave the machine, as an object of texts; of the same key, theirs wins over the provider's.
-- Written by `machine label`; stays.
CREATE TABLE machine_operator_labels (
    machine_id uuid PRIMARY KEY CONSTRAINT machine_operator_labels_machine REFERENCES machines,
    labels jsonb NOT NULL CONSTRAINT machine_operator_labels_object CHECK (jsonb_typeof(labels) = 'object')
);

-- The release of the machine was requested; accepted_at is when the provider agreed. Written by an operator before the
-- provider is called, by the Recoverer for a machine that failed for good, when the provider has agreed; goes when the
-- provider no longer has the machine, or when the release is canceled before the provider accepts it; until then the machine
-- stays provided and counts towards the limit.
CREATE TABLE machine_release (
    machine_id uuid PRIMARY KEY CONSTRAINT machine_release_machine REFERENCES machines,
    asked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    asked_by text NOT NULL,
    reason text NOT NULL,
    accepted_at timestamptz
);

-- The tombstone of a decommissioned machine: released to its provider, or forgotten because the provider no longer has
-- it. Written by `machine forget` and by the Provisioner; stays for good.
CREATE TABLE machine_tombstone (
    machine_id uuid PRIMARY KEY CONSTRAINT machine_tombstone_machine REFERENCES machines,
    how text NOT NULL CONSTRAINT machine_tombstone_how CHECK (how IN ('Forgotten', 'Released')),
    provider text NOT NULL,
    provider_id varchar(128) NOT NULL,
    decommissioned_by text NOT NULL,
    reason text NOT NULL,
    decommissioned_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX machine_tombstone_by_provider ON machine_tombstone (provider);

-- Agents -------------------------------------------------------------------------------------------------------------

-- An agent was started on the machine, with this Ed25519 key; its file has this SHA-256. Written by the Initializer; goes
-- when the Recoverer takes a step, when a quarantine ends, and when the machine is decommissioned. For the index of the
-- primary key, see machine_provided.
CREATE TABLE machine_agent_started (
    machine_id uuid CONSTRAINT machine_agent_started_machine REFERENCES machines,
    agent_started_at timestamptz NOT NULL,
    agent_public_key bytea NOT NULL CONSTRAINT machine_agent_started_key CHECK (octet_length(agent_public_key) = 32),
    agent_sha256 text,
    PRIMARY KEY (machine_id) INCLUDE (agent_started_at)
);

-- Recently started agents show whether SSH works.
CREATE INDEX machine_agent_started_by_time ON machine_agent_started (agent_started_at);

-- The last heartbeat of the agent. agent_signed_at is the time that the agent signed, in milliseconds of its own clock:
-- a heartbeat that is not later than the last one is a replay. first_heartbeat_at is written with the first one and
-- never again. report_interval_seconds: unless requests are lost, the agent sends the next one within this time, give
-- or take a tenth. It is the longer of two intervals: the one that the agent was told and the one that it follows,
-- because the answer with the new one may be lost. 0: the agent follows none. failed_attempts: how many requests before
-- this one got no answer, 5xx, or 429 from AWS. Written by the agent API; goes with the agent, so that the next agent
-- has a first one of its own. This is the most frequent write: there is no index besides the primary key, and free
-- space in every page keeps updates on their page (HOT), so that no index entry is written. padding: only the first
-- version of a row has it. PostgreSQL prunes a page that has less free space than the fill factor leaves at first. With
-- padding that happens once in dozens of heartbeats; without it, after each, which would then write half as much WAL
-- again.
CREATE TABLE machine_agent_heartbeat (
    machine_id uuid PRIMARY KEY CONSTRAINT machine_agent_heartbeat_machine REFERENCES machines,
    agent_heartbeat_at timestamptz NOT NULL,
    agent_signed_at bigint NOT NULL DEFAULT 0,
    first_heartbeat_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    report_interval_seconds integer NOT NULL DEFAULT 0
        CONSTRAINT machine_agent_heartbeat_interval CHECK (report_interval_seconds BETWEEN 0 AND 3600),
    failed_attempts integer NOT NULL DEFAULT 0,
    padding text DEFAULT repeat('.', 140)
) WITH (fillfactor = 50);

-- The last hardware report of an agent, and its sums for the inventory of the fleet. Written by the agent API; stays.
CREATE TABLE machine_hardware_report (
    machine_id uuid PRIMARY KEY CONSTRAINT machine_hardware_report_machine REFERENCES machines,
    hardware_report_raw bytea NOT NULL,
    reported_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    hardware_threads bigint NOT NULL DEFAULT 0,
    memory_bytes bigint NOT NULL DEFAULT 0,
    disks bigint NOT NULL DEFAULT 0,
    disk_bytes bigint NOT NULL DEFAULT 0
);

-- The operating system that the agent is to install; each request has the next generation. Written by an operator;
-- goes when the machine is decommissioned, because it may contain secrets.
CREATE TABLE machine_os_installation_request (
    machine_id uuid PRIMARY KEY CONSTRAINT machine_os_installation_request_machine REFERENCES machines,
    generation bigint NOT NULL,
    os_installation_request_raw bytea NOT NULL,
    requested_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- The outcome of the last installation. Written by the agent API; stays. After a success of the requested generation,
-- no loop works on the machine.
CREATE TABLE machine_os_installation_report (
    machine_id uuid PRIMARY KEY CONSTRAINT machine_os_installation_report_machine REFERENCES machines,
    generation bigint NOT NULL,
    os_installation_result text NOT NULL CONSTRAINT machine_os_installation_report_result
        CHECK (os_installation_result IN ('Success', 'Error')),
    os_installation_report_raw bytea NOT NULL,
    reported_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Sessions and work --------------------------------------------------------------------------------------------------

-- A worker: an invocation of a loop, or a command of an operator. Alive until its deadline, which it moves ahead. Every
-- statement that writes for the session names its fence; a session that lost an answer raises it, so that earlier
-- statements can no longer commit. A tick has its loop and provider, the hash of its settings and the version of its
-- code; they are null for a command. Written by the worker; goes when it closes the session, or after the deadline,
-- when another session is closed.
CREATE TABLE sessions (
    session_id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    component_name text NOT NULL,
    runtime_info text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    interval_seconds double precision NOT NULL CONSTRAINT sessions_interval CHECK (interval_seconds > 0),
    deadline timestamptz NOT NULL,
    fence bigint NOT NULL DEFAULT 0,
    loop text,
    provider text,
    settings_hash text,
    code_version text
);

CREATE INDEX sessions_by_deadline ON sessions (deadline);

-- What a tick (one invocation of a loop) did; its session is gone. Succeeded; Failed, with the cause and its kind; or
-- Expired: it was killed or lost the database, its counts are unknown, and ended_at is the deadline of its session. counts
-- has the invocation's metrics by name. Written by the statement that deletes the session; goes after 14 days, when another
-- session is opened.
CREATE TABLE ticks (
    session_id uuid PRIMARY KEY,
    loop text NOT NULL,
    provider text NOT NULL,
    runtime_info text NOT NULL,
    began_at timestamptz NOT NULL,
    ended_at timestamptz NOT NULL,
    outcome text NOT NULL CONSTRAINT ticks_outcome CHECK (outcome IN ('Succeeded', 'Failed', 'Expired')),
    cause text CONSTRAINT ticks_cause CHECK (length(cause) <= 1000),
    counts jsonb NOT NULL CONSTRAINT ticks_counts CHECK (length(counts::text) <= 4000),
    settings_hash text,
    code_version text,
    kind failure_kind
);

CREATE INDEX ticks_by_loop ON ticks (loop, provider, began_at);
CREATE INDEX ticks_by_time ON ticks (began_at);

-- A session has locked the machine: one at a time, whatever the process. began_at is null until the session has looked
-- at the machine's facts and begun the work, which leaves an event in work_history; a lock that goes before leaves none.
-- Written by a claim; goes when the work ends, with an event in work_history.
CREATE TABLE work (
    machine_id uuid PRIMARY KEY CONSTRAINT work_machine REFERENCES machines,
    process text NOT NULL,
    session_id uuid NOT NULL CONSTRAINT work_session REFERENCES sessions,
    began_at timestamptz
);

CREATE INDEX work_by_session ON work (session_id);

-- The process leaves the machine alone until then; kind and fault say what is wrong, and cause says it to people. Written
-- when work fails (with the interval, from which the next one follows), when it expires, and as a plain delay (both
-- without an interval, and a delay without a kind); goes when the process succeeds, or by `machine retry`. deaths: how
-- often in a row the work has expired because its function died or was cut off. A machine with deaths is a suspect: it is
-- worked on alone. agent_sha256: of the agent's file, if what failed is the answer of the agent.
CREATE TABLE work_backoff (
    machine_id uuid NOT NULL CONSTRAINT work_backoff_machine REFERENCES machines,
    process text NOT NULL,
    until timestamptz NOT NULL,
    cause text NOT NULL,
    last_interval_seconds bigint,
    fault failure_fault NOT NULL DEFAULT 'machine',
    deaths bigint NOT NULL DEFAULT 0,
    kind failure_kind,
    agent_sha256 text,
    PRIMARY KEY (machine_id, process)
);

CREATE INDEX work_backoff_for_access ON work_backoff (machine_id) WHERE fault = 'access';
CREATE INDEX work_backoff_of_agents ON work_backoff (agent_sha256, kind) WHERE agent_sha256 IS NOT NULL;
CREATE INDEX work_backoff_held_back ON work_backoff (machine_id) WHERE kind = 'held-back';

-- The audit trail: work that started, how it ended, and the steps of remediation (see WorkEvent in domain/machine.py).
-- failed_cause is for people; kind and fault say what failed, and seen what a look saw of the agent. A line 'Finished'
-- with a step, but without a kind, says that the provider took that step. Written by the statements that begin and end
-- work; goes after SHEPHERD_HISTORY_DAYS, by Initializer and Recoverer. No foreign keys, because it outlives machines and
-- sessions.
CREATE TABLE work_history (
    machine_id uuid NOT NULL,
    process text NOT NULL,
    event text NOT NULL CONSTRAINT work_history_event CHECK (event IN
        ('Started', 'Finished', 'Failed', 'Canceled', 'Expired', 'Recovered',
         'Looked', 'Attempted', 'NotTaken', 'Healthy', 'Quarantined', 'Unquarantined', 'Retried',
         'Resumed', 'Adopted', 'Rebound', 'ReleaseCanceled', 'HostKeyPinned', 'HostKeyForgotten',
         'Labeled')),
    timestamp timestamptz NOT NULL DEFAULT clock_timestamp(),
    failed_cause text,
    session_id uuid,
    step text,
    kind failure_kind,
    fault failure_fault,
    seen text CONSTRAINT work_history_seen CHECK (seen IN ('runs', 'installs', 'ended'))
);

CREATE INDEX work_history_by_machine ON work_history (machine_id, timestamp);
CREATE INDEX work_history_of_recovery ON work_history (machine_id, timestamp) WHERE process = 'ShepherdRecovery';
CREATE INDEX work_history_by_time ON work_history (timestamp);
CREATE INDEX work_history_of_steps_taken ON work_history (timestamp)
    WHERE event = 'Finished' AND step IS NOT NULL AND kind IS NULL;
-- The condition of the view machine_recoveries.
CREATE INDEX work_history_of_recoveries ON work_history (timestamp, machine_id)
    WHERE event = 'Finished' AND step IS NOT NULL OR event IN ('Looked', 'Attempted') AND step = 'restart-agent';

-- Loops leave a machine, a process, a provider, the machines at a location or with all of some labels (KEY=VALUE, or KEY for
-- any value), or a combination of them alone; a null column stands for all. In force until expires_at. Written by operators, and for one machine by its release or by the Provisioner (while the provider
-- does not list it); goes when it is resumed.
CREATE TABLE pauses (
    pause_id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    machine_id uuid CONSTRAINT pauses_machine REFERENCES machines,
    process text,
    provider text,
    location text,
    with_labels text[],
    owner text NOT NULL,
    reason text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz
);

-- The same pause twice is one.
CREATE UNIQUE INDEX pauses_once
    ON pauses (machine_id, process, provider, location, with_labels, owner, hashtextextended(reason, 0)) NULLS NOT DISTINCT;
CREATE INDEX pauses_by_facts ON pauses (pause_id) WHERE location IS NOT NULL OR with_labels IS NOT NULL;

-- Recovery -----------------------------------------------------------------------------------------------------------

-- The last step that made the machine boot, by the Recoverer or an operator: when it was permitted, and until when the
-- machine may be booting. If the step was certainly not taken, the one before it is the last again (previous_at); -infinity
-- is no step. Written just before the step; stays.
CREATE TABLE machine_rebooted (
    machine_id uuid PRIMARY KEY CONSTRAINT machine_rebooted_machine REFERENCES machines,
    rebooted_at timestamptz NOT NULL,
    boot_wait_until timestamptz NOT NULL,
    previous_at timestamptz NOT NULL DEFAULT '-infinity'
);

CREATE INDEX machine_rebooted_by_time ON machine_rebooted (rebooted_at);

-- The machine has no agent and is expected to come back: since when, and until when it has time. Written by a recovery
-- step and by the end of a quarantine; goes when an agent was started.
CREATE TABLE machine_grace (
    machine_id uuid PRIMARY KEY CONSTRAINT machine_grace_machine REFERENCES machines,
    grace_began_at timestamptz NOT NULL,
    grace_until timestamptz NOT NULL
);

-- No loop works on the machine, because no recovery step is left, or because functions died while they worked on it.
-- Written by the Recoverer, in the second case also by the Initializer; goes when an operator ends the quarantine, or when
-- the machine is decommissioned.
CREATE TABLE machine_quarantine (
    machine_id uuid PRIMARY KEY CONSTRAINT machine_quarantine_machine REFERENCES machines,
    quarantined_at timestamptz NOT NULL,
    cause text NOT NULL,
    kind failure_kind NOT NULL
);

-- When an agent of the provider's machines counts as unhealthy: this long after its last heartbeat, or after its start if it
-- never reported. grace_seconds: how long a machine has to come back. failed_steps: steps are taken on machines that failed
-- for good at the provider. Written by the Recoverer when it opens its session, from its settings; stays. permitted_at: when
-- it last permitted a step. Permissions write it first, so that two of them never count the same steps.
CREATE TABLE recovery_policy (
    provider text PRIMARY KEY,
    heartbeat_timeout_seconds double precision NOT NULL
        CONSTRAINT recovery_policy_heartbeat CHECK (heartbeat_timeout_seconds > 0),
    startup_timeout_seconds double precision NOT NULL
        CONSTRAINT recovery_policy_startup CHECK (startup_timeout_seconds > 0),
    grace_seconds double precision NOT NULL CONSTRAINT recovery_policy_grace CHECK (grace_seconds >= 0),
    failed_steps boolean NOT NULL DEFAULT false,
    permitted_at timestamptz
);

-- The budget of recovery at a location of a provider ('': all of it), where it is smaller than usual: how many machines
-- may be interrupted in an hour, and why. For people: the Recoverer judges the fleet by its facts in each tick; only that
-- a provider was silent a moment ago (seen_at) is read again. Written by the Recoverer; goes when the budget is as usual.
CREATE TABLE recovery_budgets (
    provider text NOT NULL,
    location text NOT NULL,
    per_hour bigint NOT NULL,
    brake text NOT NULL CONSTRAINT recovery_budgets_brake CHECK (brake IN ('silent', 'losing', 'share', 'number', 'ssh')),
    reason text NOT NULL,
    began_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (provider, location)
);

-- Providers ----------------------------------------------------------------------------------------------------------

-- Capacity that failed, and is not used until then. Written by the Provisioner; goes when a machine is created there.
CREATE TABLE capacity_penalties (
    provider text NOT NULL,
    capacity_id varchar(128) NOT NULL,
    until timestamptz NOT NULL,
    cause text NOT NULL,
    kind failure_kind NOT NULL,
    PRIMARY KEY (provider, capacity_id)
);

-- One Provisioner at a time for each provider: the live session that is named here. For the next invocation and for
-- operators: the last creation, how many places the limit of machines keeps empty, that limit, and when that was seen.
-- Written by the Provisioner; stays.
CREATE TABLE provisioner_lock (
    provider text PRIMARY KEY,
    session_id uuid CONSTRAINT provisioner_lock_session REFERENCES sessions ON DELETE SET NULL,
    last_creation_at timestamptz,
    waiting bigint NOT NULL DEFAULT 0,
    max_machines bigint,
    waiting_seen_at timestamptz
);

-- One Updater at a time for each provider: the live session that is named here, which began its listing at began_at.
-- listed_at is when the last complete listing began. No foreign key to the session, so that closing a session never
-- has to look here. Written by the Updater; stays.
CREATE TABLE provider_listings (
    provider text PRIMARY KEY,
    session_id uuid NOT NULL,
    began_at timestamptz NOT NULL,
    listed_at timestamptz
);

-- Views --------------------------------------------------------------------------------------------------------------

-- The labels of each machine that a provider has. texts: each as KEY and as KEY=VALUE.
CREATE VIEW machine_labels AS
SELECT
    p.machine_id, l.labels,
    ARRAY(SELECT unnest(ARRAY[t.key, t.key || '=' || t.value]) FROM jsonb_each_text(l.labels) t) AS texts
FROM machine_provided p
LEFT JOIN machine_operator_labels o ON o.machine_id = p.machine_id
CROSS JOIN LATERAL (SELECT p.provider_labels || coalesce(o.labels, '{}') AS labels) AS l;

-- The pauses in force now.
CREATE VIEW pauses_in_force AS
SELECT * FROM pauses WHERE expires_at IS NULL OR expires_at > clock_timestamp();

-- What they cover now: one by location or labels has a row for each machine. process and provider are '' where a pause applies
-- to every one.
CREATE VIEW pause_scopes AS
SELECT
    pause_id, machine_id, coalesce(process, '') AS process, coalesce(provider, '') AS provider,
    owner, reason, created_at, expires_at
FROM pauses_in_force
WHERE location IS NULL AND with_labels IS NULL
UNION ALL
SELECT
    x.pause_id, p.machine_id, coalesce(x.process, ''), coalesce(x.provider, ''), x.owner, x.reason, x.created_at, x.expires_at
FROM pauses_in_force x
JOIN machine_provided p ON x.location IS NULL OR x.location = p.provider_location
WHERE (x.location IS NOT NULL OR x.with_labels IS NOT NULL)
    AND (x.with_labels IS NULL OR x.with_labels <@ (SELECT l.texts FROM machine_labels l WHERE l.machine_id = p.machine_id));

-- The process that each provided machine needs, and since when; none (null) in quarantine, if it is installed (the
-- requested generation was installed successfully), or if it has no agent and the provider says that it failed for good.
-- A heartbeat from before the agent was started says nothing about this agent.
--
-- state: its state, as in domain/states.py. timeout: of an agent that never reported, the startup timeout; of one that did,
-- the heartbeat timeout of the policy, but at least two and a half of the intervals at which it reports, so that one lost
-- heartbeat makes no machine unhealthy. Without a policy, no agent is unhealthy. back_by: until when a machine without an
-- agent has time to get one: its grace; without one, six hours after it was created, from then on (some providers take
-- hours). One that failed for good at its provider gets none: if the policy has steps for it, it has time until it should
-- have booted.
--
-- All joins are LEFT joins by a primary key, which PostgreSQL omits if their columns are not read. Facts that matter
-- only without an agent are subqueries, since few machines have none.
CREATE VIEW machine_need AS
SELECT
    p.machine_id, p.provider,
    CASE
        WHEN z.machine_id IS NOT NULL OR t.installed OR t.failed THEN NULL
        WHEN a.machine_id IS NULL THEN 'ShepherdAgentStart'
        ELSE 'ShepherdRecovery'
    END AS process,
    CASE
        WHEN a.machine_id IS NULL THEN coalesce(
            (SELECT b.boot_wait_until FROM machine_rebooted b WHERE b.machine_id = p.machine_id),
            (SELECT m.machine_created_at FROM machines m WHERE m.machine_id = p.machine_id)
        )
        ELSE coalesce(h.agent_heartbeat_at, a.agent_started_at)
    END AS since,
    CASE
        WHEN t.failed THEN CASE
            WHEN y.failed_steps AND z.machine_id IS NULL AND NOT t.installed THEN coalesce(
                (SELECT b.boot_wait_until FROM machine_rebooted b WHERE b.machine_id = p.machine_id),
                (SELECT m.machine_created_at FROM machines m WHERE m.machine_id = p.machine_id)
            )
        END
        WHEN a.machine_id IS NULL AND z.machine_id IS NULL AND NOT t.installed THEN coalesce(
            (SELECT w.grace_until FROM machine_grace w WHERE w.machine_id = p.machine_id),
            (
                SELECT m.machine_created_at + interval '6 hours'
                FROM machines m
                WHERE m.machine_id = p.machine_id AND m.machine_created_at <= statement_timestamp() - interval '6 hours'
            )
        )
    END AS back_by,
    h.machine_id IS NOT NULL AS reported,
    coalesce(h.agent_heartbeat_at, a.agent_started_at) AS last_heartbeat_at,
    nullif(p.provider_location, '') AS location,
    h.report_interval_seconds, h.failed_attempts, t.timeout,
    CASE
        WHEN z.machine_id IS NOT NULL THEN 'quarantined'
        WHEN t.installed THEN 'installed'
        WHEN t.failed THEN 'failed'
        WHEN a.machine_id IS NULL THEN 'needs_agent'
        WHEN coalesce(h.agent_heartbeat_at, a.agent_started_at) + t.timeout <= statement_timestamp() THEN 'unhealthy'
        WHEN h.machine_id IS NULL THEN 'starting'
        ELSE 'running'
    END AS state
FROM machine_provided p
LEFT JOIN machine_agent_started a ON a.machine_id = p.machine_id
LEFT JOIN machine_agent_heartbeat h
    ON h.machine_id = p.machine_id AND h.agent_heartbeat_at >= a.agent_started_at
LEFT JOIN (
    machine_os_installation_request q
    JOIN machine_os_installation_report r
        ON r.machine_id = q.machine_id AND r.generation = q.generation AND r.os_installation_result = 'Success'
) ON q.machine_id = p.machine_id
LEFT JOIN machine_quarantine z ON z.machine_id = p.machine_id
LEFT JOIN recovery_policy y ON y.provider = p.provider
CROSS JOIN LATERAL (
    SELECT
        q.machine_id IS NOT NULL AS installed,
        (a.machine_id IS NULL AND p.provider_status = 'ProvisioningFailedPermanent') IS TRUE AS failed,
        interval '1 second' * CASE
            WHEN report_interval_seconds IS NULL THEN startup_timeout_seconds
            -- Null without a policy, which greatest alone would ignore.
            ELSE heartbeat_timeout_seconds + greatest(0, 2.5::float8 * report_interval_seconds - heartbeat_timeout_seconds)
        END AS timeout
) AS t;

-- The state of every machine that there is or was, as in domain/states.py, and since when it has been in it. Lists,
-- searches and everything that shows one machine read it here. A machine that needs an agent, or failed, has been in its
-- state since it was last rebooted or given time to come back; a running one since the first heartbeat of its agent.
CREATE VIEW machine_states AS
SELECT
    m.machine_id, s.state,
    CASE s.state
        WHEN 'creating' THEN m.machine_created_at
        WHEN 'starting' THEN n.last_heartbeat_at
        WHEN 'running' THEN (SELECT h.first_heartbeat_at FROM machine_agent_heartbeat h WHERE h.machine_id = m.machine_id)
        WHEN 'unhealthy' THEN n.last_heartbeat_at + n.timeout
        WHEN 'installed' THEN (SELECT r.reported_at FROM machine_os_installation_report r WHERE r.machine_id = m.machine_id)
        WHEN 'quarantined' THEN (SELECT z.quarantined_at FROM machine_quarantine z WHERE z.machine_id = m.machine_id)
        ELSE coalesce(
            (SELECT d.decommissioned_at FROM machine_tombstone d WHERE d.machine_id = m.machine_id),
            greatest(
                m.machine_created_at,
                (SELECT b.rebooted_at FROM machine_rebooted b WHERE b.machine_id = m.machine_id),
                (SELECT w.grace_began_at FROM machine_grace w WHERE w.machine_id = m.machine_id)
            )
        )
    END AS state_since
FROM machines m
LEFT JOIN machine_need n ON n.machine_id = m.machine_id
CROSS JOIN LATERAL (
    SELECT coalesce(
        n.state,
        (SELECT lower(d.how) FROM machine_tombstone d WHERE d.machine_id = m.machine_id),
        'creating'
    ) AS state
) AS s;

-- The recoveries of the last day: the provider was asked for a step, or the agent was started anew, which is a step of the
-- policy, or what a look at a living machine decided.
CREATE VIEW machine_recoveries AS
SELECT machine_id, timestamp
FROM work_history
WHERE (event = 'Finished' AND step IS NOT NULL OR event IN ('Looked', 'Attempted') AND step = 'restart-agent')
    AND process = 'ShepherdRecovery'
    AND timestamp > statement_timestamp() - interval '1 day';

-- Whether each machine may be worked on now, by which process, and what keeps it from that. Claims and operators read it.
-- A row for the process of machine_need (none: null); with overdue, one more for the recovery of a machine that did not
-- come back, or failed for good at its provider.
--
-- due_at: when what it needs is due. ready: neither a backoff nor a pause keeps the process from it. A lock does not matter
-- here: a claim looks after it has locked.
CREATE VIEW machine_eligibility AS
SELECT
    n.machine_id, n.provider, x.process, n.reported, x.overdue, x.due_at,
    b.until AS backoff_until, b.last_interval_seconds, u.paused_until,
    coalesce(greatest(x.due_at, b.until) <= statement_timestamp(), false)
        AND u.paused_until IS NULL
        AND NOT EXISTS (
            SELECT 1
            FROM pause_scopes y
            WHERE y.machine_id IS NULL AND y.process IN ('', x.process) AND y.provider IN ('', n.provider)
        ) AS ready
FROM machine_need n
CROSS JOIN LATERAL (
    -- What it needs by its facts.
    SELECT
        n.process, false AS overdue,
        CASE n.process
            WHEN 'ShepherdAgentStart' THEN n.since
            WHEN 'ShepherdRecovery' THEN coalesce(n.since + n.timeout, 'infinity')
        END AS due_at
    UNION ALL
    -- Its recovery, if it is not back in time and an agent start has failed since, by the machine's own fault; or if its
    -- provider says that it failed.
    SELECT
        'ShepherdRecovery', true,
        CASE WHEN n.state = 'failed' OR f.fault IN ('machine', 'unreached') THEN n.back_by ELSE 'infinity' END
    FROM (SELECT 1) AS one_row
    LEFT JOIN work_backoff f
        ON f.machine_id = n.machine_id AND f.process = 'ShepherdAgentStart' AND f.last_interval_seconds IS NOT NULL
    WHERE n.back_by IS NOT NULL
) AS x
LEFT JOIN work_backoff b ON b.machine_id = n.machine_id AND b.process = x.process
-- Pauses of this machine.
LEFT JOIN LATERAL (
    SELECT max(coalesce(y.expires_at, 'infinity')) AS paused_until
    FROM pause_scopes y
    WHERE y.machine_id = n.machine_id AND y.process IN ('', x.process) AND y.provider IN ('', n.provider)
) AS u ON true;

-- A row for each pause that keeps a loop away from a machine: of the machine, the process, the provider, or
-- everything. Read for single machines: both kinds are found by the index of the machines.
CREATE VIEW machine_pauses AS
WITH pausable AS NOT MATERIALIZED (
    SELECT machine_id, provider, process, false AS overdue FROM machine_need
    UNION ALL
    SELECT machine_id, provider, 'ShepherdRecovery', true FROM machine_need WHERE back_by IS NOT NULL
    UNION ALL
    SELECT machine_id, provider, NULL, false FROM machine_creation_intent
)
SELECT w.machine_id, w.process, w.overdue, x.pause_id, x.owner, x.reason, x.created_at, x.expires_at
FROM pausable w
CROSS JOIN LATERAL (
    SELECT * FROM pause_scopes WHERE machine_id = w.machine_id
    UNION ALL
    SELECT * FROM pause_scopes WHERE machine_id IS NULL
) AS x
WHERE x.process IN ('', w.process) AND x.provider IN ('', w.provider);
