from uuid import UUID

from shepherd_core.bmdb.connection import Connection

_NAME = "record_heartbeat"
_STATEMENT = """
WITH agent AS (
    UPDATE machine_agent_started SET agent_started_at = agent_started_at
    WHERE machine_id = :machine_id
    RETURNING machine_id
)
INSERT INTO machine_agent_heartbeat (machine_id, agent_heartbeat_at)
SELECT machine_id, clock_timestamp() FROM agent
ON CONFLICT (machine_id) DO UPDATE SET agent_heartbeat_at = excluded.agent_heartbeat_at
RETURNING machine_id
"""


def record_heartbeat(connection: Connection, machine_id: UUID) -> bool:
    """Record a heartbeat now; False: the machine has no started agent. The *connection* must work."""
    driver = connection._connected()
    if _NAME not in connection._prepared:
        connection._prepared[_NAME] = driver.prepare(_STATEMENT)
    return bool(connection.run(_NAME, machine_id=machine_id))
