import json
import re
from typing import Any
from uuid import UUID

import pg8000.native
from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.schema.migrate import this_code
from shepherd_core.bmdb.statements import statements
from shepherd_core.wiring import agent_endpoint

from tests.support.bmdb.fleet import HOUR, Fleet

KEY = "5e" * 32


def explained(fleet: Fleet, machine_id: UUID, connection: Connection | None = None) -> dict[str, Any]:
    """Return the plan of a heartbeat that ran, over *connection* or that of the administrator."""
    run = connection._connected().run if connection else fleet.sql
    text, in_order = pg8000.native.to_statement(statements()["accept_heartbeat"])
    (signed_at,) = fleet.sql("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")[0]
    values = {
        "machine_id": machine_id,
        "public_key": KEY,
        "signed_at": signed_at,
        "report_interval": 120,
        "failed_attempts": 0,
        **fleet.connection.clock,
        **this_code()._asdict(),
    }
    arguments = ", ".join(pg8000.native.literal(value) for value in in_order(values))
    run(f"PREPARE heartbeat AS {text}")
    try:
        (plan,) = run(f"EXPLAIN (ANALYZE, WAL, FORMAT JSON) EXECUTE heartbeat({arguments})")[0]
    finally:
        run("DEALLOCATE heartbeat")
    found: dict[str, Any] = plan[0]["Plan"]
    return found


def written(fleet: Fleet, machine_id: UUID) -> dict[str, Any]:
    found = explained(fleet, machine_id)
    assert found["Actual Rows"] == 1
    return found


def test_a_heartbeat_planned_on_empty_tables_scans_none(fleet: Fleet) -> None:
    """A warm function keeps its plans for minutes, in which thousands of machines may get an agent."""
    fleet.sql("ANALYZE")
    plan = json.dumps(explained(fleet, UUID(int=1), fleet.connect(limits=agent_endpoint.LIMITS)), sort_keys=True)
    assert re.findall(r'"Node Type": "Seq Scan"[^{}]*"Relation Name": "(machine_agent_\w+)"', plan) == []


def test_a_heartbeat_writes_120_bytes_of_wal_at_most(fleet: Fleet) -> None:
    """A lock on the agent's row would be a record of its own, and so would pruning the page each time."""
    machines = [fleet.started_machine(HOUR) for _ in range(60)]  # more than a page has
    for machine_id in machines * 2:
        written(fleet, machine_id)  # the first one inserts, the next one may write whole pages
    plans = [written(fleet, machine_id) for machine_id in machines * 5]
    after_checkpoints = [plan for plan in plans if plan.get("WAL FPI")]  # these write whole pages
    counted = [plan["WAL Bytes"] + 34 for plan in plans if plan not in after_checkpoints]  # with that of the commit
    assert len(counted) > len(plans) / 2
    assert sum(counted) / len(counted) <= 120
