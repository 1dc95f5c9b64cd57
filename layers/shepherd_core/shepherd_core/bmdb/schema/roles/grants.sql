-- The rights of each function and each person in the database: those that their statements need, and no others.
--
-- tests/integration/bmdb/schema/test_roles.py compares the two in both directions. A statement that touches a new table,
-- or updates another column, needs a line or a word here; where nothing needs a grant any more, it must go. Every run of
-- the Migrator takes all grants back and makes them again, in one transaction.
--
-- INSERT, SELECT and DELETE are granted on tables, UPDATE on columns. FOR UPDATE and FOR SHARE ask for UPDATE on any
-- column: where a statement only locks, it is granted on the column with which the least harm can be done, marked *lock*.
-- A view reads with the rights of its owner, so who reads one needs none of its tables.

REVOKE CREATE ON SCHEMA public FROM PUBLIC;
GRANT USAGE ON SCHEMA public TO {provisioner}, {initializer}, {recoverer}, {updater}, {agent_api}, {reader}, {operator};

-- Several

GRANT SELECT ON machine_eligibility, machine_need TO {initializer}, {recoverer}, {reader}, {operator};
GRANT SELECT ON machine_provided, machines TO {initializer}, {recoverer};
GRANT SELECT ON pause_scopes TO {provisioner}, {initializer}, {recoverer}, {updater}, {reader}, {operator};
GRANT SELECT ON schema_migrations TO {provisioner}, {initializer}, {recoverer}, {updater}, {agent_api}, {reader}, {operator};
GRANT SELECT, DELETE ON machine_agent_heartbeat TO {initializer}, {recoverer};
GRANT SELECT, UPDATE (agent_signed_at), DELETE ON machine_agent_heartbeat TO {provisioner}, {operator}; -- lock
GRANT SELECT, UPDATE (agent_started_at), DELETE ON machine_agent_started TO {provisioner}, {operator}; -- lock
GRANT SELECT, INSERT ON machine_quarantine TO {initializer}, {recoverer};
GRANT SELECT, INSERT, UPDATE (heartbeat_timeout_seconds, startup_timeout_seconds, grace_seconds, failed_steps) ON recovery_policy
    TO {provisioner}, {initializer}, {recoverer}, {updater}, {operator};
GRANT SELECT, INSERT, UPDATE (deadline, fence), DELETE ON sessions TO {provisioner}, {initializer}, {recoverer}, {updater}, {operator};
GRANT SELECT, INSERT, UPDATE (code_version), DELETE ON ticks TO {provisioner}, {initializer}, {recoverer}, {updater}, {operator}; -- lock
GRANT SELECT, INSERT, UPDATE (began_at), DELETE ON work TO {initializer}, {recoverer}, {operator};
GRANT SELECT, INSERT, UPDATE (until, cause, kind, last_interval_seconds, fault, deaths) ON work_backoff
    TO {provisioner}, {initializer}, {recoverer}, {updater}, {operator};
GRANT DELETE ON work_backoff TO {provisioner}, {initializer}, {recoverer}, {operator};
GRANT UPDATE (agent_sha256) ON work_backoff TO {initializer}, {recoverer}, {operator};
GRANT INSERT ON work_history TO {provisioner}, {updater};
GRANT SELECT, INSERT, UPDATE (step), DELETE ON work_history TO {initializer}, {recoverer}; -- lock

-- Provisioner

GRANT SELECT, DELETE ON machine_grace, machine_os_installation_request, machine_quarantine, machine_release TO {provisioner};
GRANT SELECT, INSERT ON machine_host_key, machine_tombstone TO {provisioner};
GRANT SELECT, INSERT, DELETE ON machine_creation_intent, machines, pauses, work TO {provisioner};
GRANT SELECT, INSERT, UPDATE (until, cause, kind), DELETE ON capacity_penalties TO {provisioner};
GRANT SELECT, INSERT, UPDATE (provider_status), DELETE ON machine_provided TO {provisioner}; -- lock
GRANT SELECT, INSERT, UPDATE (session_id, last_creation_at, waiting, max_machines, waiting_seen_at) ON provisioner_lock TO {provisioner};

-- Initializer

GRANT SELECT, INSERT, UPDATE (agent_public_key, agent_sha256, agent_started_at) ON machine_agent_started TO {initializer};
GRANT SELECT, DELETE ON machine_grace TO {initializer};
GRANT SELECT, INSERT ON machine_host_key TO {initializer};

-- Recoverer

GRANT SELECT, DELETE ON machine_agent_started TO {recoverer};
GRANT SELECT, INSERT, UPDATE (grace_began_at, grace_until) ON machine_grace TO {recoverer};
GRANT SELECT, INSERT, DELETE ON machine_host_key TO {recoverer};
GRANT SELECT, INSERT, UPDATE (rebooted_at, boot_wait_until, previous_at) ON machine_rebooted TO {recoverer};
GRANT SELECT, INSERT, UPDATE (accepted_at) ON machine_release TO {recoverer};
GRANT SELECT ON machine_tombstone TO {recoverer};
GRANT INSERT ON pauses TO {recoverer};
GRANT SELECT, INSERT, UPDATE (per_hour, brake, reason, began_at, seen_at), DELETE ON recovery_budgets TO {recoverer};
GRANT UPDATE (permitted_at) ON recovery_policy TO {recoverer};

-- Updater

GRANT SELECT ON machine_quarantine, machines TO {updater};
GRANT SELECT, UPDATE (provider_reservation_id, provider_ip_address, provider_location, provider_status, provider_failure,
    provider_hardware, provider_labels) ON machine_provided TO {updater};
GRANT SELECT, INSERT, UPDATE (session_id, began_at, listed_at) ON provider_listings TO {updater};
GRANT SELECT, DELETE ON work TO {updater};

-- Agent API

GRANT SELECT ON machine_os_installation_request TO {agent_api};
GRANT SELECT, INSERT, UPDATE (agent_heartbeat_at, agent_signed_at, report_interval_seconds, failed_attempts, padding) ON machine_agent_heartbeat TO {agent_api};
GRANT SELECT, UPDATE (agent_started_at) ON machine_agent_started TO {agent_api}; -- lock
GRANT SELECT, INSERT, UPDATE (hardware_report_raw, reported_at, hardware_threads, memory_bytes, disks, disk_bytes) ON machine_hardware_report TO {agent_api};
GRANT SELECT, INSERT, UPDATE (generation, os_installation_result, os_installation_report_raw, reported_at) ON machine_os_installation_report TO {agent_api};

-- Readers (shepherdctl): nothing but SELECT

GRANT SELECT ON capacity_penalties, machine_agent_heartbeat, machine_agent_started, machine_creation_intent, machine_grace,
    machine_hardware_report, machine_host_key, machine_labels, machine_os_installation_report, machine_os_installation_request,
    machine_pauses, machine_provided, machine_quarantine, machine_rebooted, machine_recoveries, machine_release, machine_states,
    machine_tombstone, machines, pauses_in_force, provisioner_lock, recovery_budgets, sessions, ticks, work, work_backoff, work_history
    TO {reader};

-- Operators (shepherdctl)

GRANT SELECT ON machine_hardware_report, machine_labels, machine_os_installation_report, machine_pauses, machine_recoveries,
    machine_states, pauses_in_force TO {operator};
GRANT SELECT, DELETE ON capacity_penalties, machine_quarantine TO {operator};
GRANT SELECT, INSERT ON machine_tombstone, machines, work_history TO {operator};
GRANT SELECT, INSERT, DELETE ON machine_creation_intent TO {operator};
GRANT SELECT, INSERT, UPDATE (grace_began_at, grace_until), DELETE ON machine_grace TO {operator};
GRANT SELECT, INSERT, UPDATE (host_key, pinned_at, origin), DELETE ON machine_host_key TO {operator};
GRANT SELECT, INSERT, UPDATE (generation, os_installation_request_raw, requested_at), DELETE ON machine_os_installation_request TO {operator};
GRANT SELECT, INSERT, UPDATE (labels) ON machine_operator_labels TO {operator};
GRANT SELECT, INSERT, UPDATE (provider_id, provider_reservation_id, provider_ip_address, provider_location, provider_status,
    provider_failure, provider_hardware, provider_labels), DELETE ON machine_provided TO {operator};
GRANT SELECT, INSERT, UPDATE (rebooted_at, boot_wait_until, previous_at) ON machine_rebooted TO {operator};
GRANT SELECT, INSERT, UPDATE (accepted_at), DELETE ON machine_release TO {operator};
GRANT SELECT, INSERT, UPDATE, DELETE ON pauses TO {operator};
GRANT SELECT, INSERT, UPDATE (session_id, last_creation_at) ON provisioner_lock TO {operator};
