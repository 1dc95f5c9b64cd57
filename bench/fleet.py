"""A large fleet in a database, created with SQL, part of which can be made due any number of times."""

from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.session import Session
from shepherd_core.domain.clock import SystemClock
from shepherd_core.settings.functions.bmdb import BmdbSettings

from simulator.environment.postgres import Postgres
from tests.support import defaults
from tests.support.bmdb.fleet import administrator

PROVIDER = "static"

# All machines have an agent that sends heartbeats; ``make_due`` makes those in bench_due due for an agent start.
_PLANT = """
INSERT INTO machines (machine_created_at)
    SELECT now() - interval '2 days' - n * interval '1 second' FROM generate_series(1, {machines}) n;
INSERT INTO machine_provided
    SELECT machine_id, 'static', machine_id::text, NULL, '192.0.2.1', 'ams', 'Running' FROM machines;
INSERT INTO machine_agent_started
    SELECT machine_id, machine_created_at + interval '1 hour', decode(repeat('5e', 32), 'hex') FROM machines;
INSERT INTO machine_agent_heartbeat
    SELECT machine_id, clock_timestamp() - random() * interval '4 minutes' FROM machines;
INSERT INTO machine_host_key SELECT machine_id, 'key', machine_created_at FROM machines;
INSERT INTO work_history
    SELECT machine_id, 'ShepherdAgentStart', event, machine_created_at, NULL, gen_random_uuid()
    FROM machines, unnest(ARRAY['Started', 'Finished']) AS event;
CREATE TABLE bench_due AS SELECT machine_id, row_number() OVER () AS number FROM machines ORDER BY random() LIMIT {due};
CREATE TABLE bench_bare (machine_id uuid PRIMARY KEY, count integer NOT NULL);
INSERT INTO bench_bare SELECT machine_id, 0 FROM machines LIMIT 20000;
ANALYZE;
"""

_MAKE_DUE = """
CREATE TEMPORARY TABLE wanted ON COMMIT DROP AS SELECT machine_id FROM bench_due ORDER BY number LIMIT {due};
DELETE FROM machine_agent_started WHERE machine_id IN (SELECT machine_id FROM wanted);
DELETE FROM machine_agent_heartbeat WHERE machine_id IN (SELECT machine_id FROM wanted);
DELETE FROM work WHERE machine_id IN (SELECT machine_id FROM wanted);
"""
SPARE = 16
"""Additional machines that can be made due, for the warm-up of workers."""
_CHANGING = ("machine_agent_started", "machine_agent_heartbeat", "work", "sessions")


class BenchFleet:
    """A fleet in its own database."""

    def __init__(self, postgres: Postgres, machines: int) -> None:
        """One machine in a hundred can be made due."""
        self.due = max(1, machines // 100)
        self.settings: BmdbSettings = postgres.new_database()
        self.admin = administrator(self.settings)
        self.admin.run(_PLANT.format(machines=machines, due=self.due + SPARE))
        self.admin.run("VACUUM")  # as a fleet that exists for more than some minutes
        self.admin.run("CHECKPOINT")
        # So that the process that is measured does all the work.
        self.admin.run(f'ALTER DATABASE "{self.settings.bmdb_name}" SET max_parallel_workers_per_gather = 0')

    def make_due(self, spare: int) -> None:
        """Make the same machines due as always, and *spare* more, in freshly vacuumed tables."""
        if spare > SPARE:
            raise ValueError(spare)
        self.admin.run(_MAKE_DUE.format(due=self.due + spare))
        for table in _CHANGING:
            self.admin.run(f"VACUUM ANALYZE {table}")

    def left(self) -> int:
        """Return how many of the due machines have no agent yet, or are still locked by work."""
        rows = self.admin.run(
            "SELECT count(*) FROM bench_due d WHERE EXISTS (SELECT 1 FROM work w WHERE w.machine_id = d.machine_id) "
            "OR NOT EXISTS (SELECT 1 FROM machine_agent_started a WHERE a.machine_id = d.machine_id)"
        )
        return int(rows[0][0])

    def session(self, connection: Connection | None = None) -> Session:
        """Open a session of an hour, over a connection like that of the functions."""
        connection = connection or Connection(self.settings, None, SystemClock())
        return Session.open(connection, SystemClock(), "bench", "bench", 3600, (PROVIDER, defaults.HEALTH))
