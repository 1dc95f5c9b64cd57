-- Machines and the facts about them: one narrow table for each fact. If a row exists, the fact holds.

CREATE TABLE machines (
    machine_id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    machine_created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE machine_provided (
    machine_id uuid PRIMARY KEY REFERENCES machines,
    provider text NOT NULL CHECK (length(provider) BETWEEN 1 AND 64),
    provider_id varchar(128) NOT NULL,
    provider_reservation_id varchar(128),
    provider_ip_address varchar(128),
    provider_location varchar(128),
    provider_status text CHECK (provider_status IN
        ('Missing', 'Provisioning', 'ProvisioningFailedPermanent', 'Running', 'Stopped', 'Unknown')),
    UNIQUE (provider, provider_id)
);

CREATE TABLE machine_agent_started (
    machine_id uuid PRIMARY KEY REFERENCES machines,
    agent_started_at timestamptz NOT NULL,
    agent_public_key bytea NOT NULL CHECK (octet_length(agent_public_key) = 32)
);

-- No index besides the primary key: a heartbeat is the write that every machine causes all the time.
CREATE TABLE machine_agent_heartbeat (
    machine_id uuid PRIMARY KEY REFERENCES machines,
    agent_heartbeat_at timestamptz NOT NULL
);

CREATE TABLE machine_hardware_report (
    machine_id uuid PRIMARY KEY REFERENCES machines,
    hardware_report_raw bytea NOT NULL
);

CREATE TABLE machine_os_installation_request (
    machine_id uuid PRIMARY KEY REFERENCES machines,
    generation bigint NOT NULL,
    os_installation_request_raw bytea NOT NULL
);

CREATE TABLE machine_os_installation_report (
    machine_id uuid PRIMARY KEY REFERENCES machines,
    generation bigint NOT NULL,
    os_installation_result text NOT NULL CHECK (os_installation_result IN ('Success', 'Error')),
    os_installation_report_raw bytea NOT NULL
);

-- The SSH host key that answered at first contact.
CREATE TABLE machine_host_key (
    machine_id uuid PRIMARY KEY REFERENCES machines,
    host_key text NOT NULL,
    pinned_at timestamptz NOT NULL
);

-- The last reboot by the Recoverer, and until when the machine may be booting.
CREATE TABLE machine_rebooted (
    machine_id uuid PRIMARY KEY REFERENCES machines,
    rebooted_at timestamptz NOT NULL,
    boot_wait_until timestamptz NOT NULL
);
