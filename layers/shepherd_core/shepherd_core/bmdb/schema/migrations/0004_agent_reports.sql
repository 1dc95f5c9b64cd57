-- Reports of agents.

-- The time that the agent signed, in milliseconds of its own clock: a heartbeat that is not later than the last one is
-- a replay. Free space in every page keeps updates on their page (HOT), so that no index entry is written.
ALTER TABLE machine_agent_heartbeat ADD COLUMN agent_signed_at bigint NOT NULL DEFAULT 0;
ALTER TABLE machine_agent_heartbeat SET (fillfactor = 50);

-- The sums of a report, for the inventory of the whole fleet.
ALTER TABLE machine_hardware_report ADD COLUMN reported_at timestamptz NOT NULL DEFAULT clock_timestamp();
ALTER TABLE machine_hardware_report ADD COLUMN hardware_threads bigint NOT NULL DEFAULT 0;
ALTER TABLE machine_hardware_report ADD COLUMN memory_bytes bigint NOT NULL DEFAULT 0;
ALTER TABLE machine_hardware_report ADD COLUMN disks bigint NOT NULL DEFAULT 0;
ALTER TABLE machine_hardware_report ADD COLUMN disk_bytes bigint NOT NULL DEFAULT 0;

ALTER TABLE machine_os_installation_request ADD COLUMN requested_at timestamptz NOT NULL DEFAULT clock_timestamp();
ALTER TABLE machine_os_installation_report ADD COLUMN reported_at timestamptz NOT NULL DEFAULT clock_timestamp();
