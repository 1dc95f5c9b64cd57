"""A large fleet in a database, created with SQL, part of which can be made due any number of times."""

import time
from typing import Any

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
INSERT INTO machine_agent_heartbeat SELECT machine_id, clock_timestamp() FROM machines;
INSERT INTO machine_host_key SELECT machine_id, 'key', machine_created_at FROM machines;
INSERT INTO machine_due
    SELECT n.machine_id, x.process, n.provider,
        CASE WHEN x.process = n.process THEN now() + interval '1 hour' + random() * interval '1 day' END
    FROM machine_need n CROSS JOIN unnest(ARRAY['ShepherdAgentStart', 'ShepherdRecovery']) AS x (process);
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
UPDATE machine_due
    SET not_before = CASE process WHEN 'ShepherdAgentStart' THEN now() - random() * interval '1 minute' END
    WHERE machine_id IN (SELECT machine_id FROM wanted);
"""
SPARE = 16
"""Additional machines that can be made due, for the warm-up of workers."""
_OTHERS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""
_CHANGING = ("machine_agent_started", "machine_agent_heartbeat", "machine_due", "work", "sessions")


class BenchFleet:
    """A fleet in its own database."""

    def __init__(self, postgres: Postgres, machines: int, due: int | None = None) -> None:
        """*due*: how many machines can be made due; None: one in a hundred."""
        self.machines = machines
        self.due = max(1, machines // 100) if due is None else due
        self.settings: BmdbSettings = postgres.new_database()
        self.admin = administrator(self.settings)
        self.admin.run(_PLANT.format(machines=machines, due=self.due + SPARE))
        self.admin.run("VACUUM")  # as a fleet that exists for more than some minutes
        self.admin.run("CHECKPOINT")

    def make_due(self, spare: int = 0) -> None:
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

    def conflicts(self) -> int:
        """Return the number of transactions that were rolled back so far; waits until all connections are closed."""
        end = time.monotonic() + 10
        while self.admin.run(_OTHERS)[0][0]:
            if time.monotonic() > end:
                raise RuntimeError("a client is still connected after 10 s")
            time.sleep(0.01)
        rows = self.admin.run("SELECT xact_rollback FROM pg_stat_database WHERE datname = current_database()")
        return int(rows[0][0])

    def connect(self) -> Connection:
        """Return a connection like that of the functions."""
        return Connection(self.settings, None, SystemClock())

    def session(self, connection: Connection | None = None) -> Session:
        """Open a session of an hour."""
        return Session.open(
            connection or self.connect(), SystemClock(), "bench", "bench", 3600, ("static", defaults.HEALTH)
        )


class RoundTripCounter:
    """Replaces the stream of a connection, and counts round trips: requests that were sent and waited for."""

    def __init__(self, connection: Connection) -> None:
        """Count the round trips of *connection* from now on."""
        found = connection._connected()  # noqa: SLF001 - the stream is private
        stream = found._sock  # noqa: SLF001
        self._stream: Any = stream._stream if isinstance(stream, RoundTripCounter) else stream  # noqa: SLF001
        self._asked = False
        self.count = 0
        found._sock = self  # noqa: SLF001

    def write(self, data: bytes) -> int:
        """See the stream."""
        self._asked = True
        return int(self._stream.write(data))

    def flush(self) -> None:
        """See the stream."""
        self._stream.flush()

    def read(self, size: int) -> bytes:
        """Read from the stream, and count the first read after a write."""
        if self._asked:
            self._asked = False
            self.count += 1
        return bytes(self._stream.read(size))

    def close(self) -> None:
        """See the stream."""
        self._stream.close()
