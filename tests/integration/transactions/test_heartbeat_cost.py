"""What a heartbeat writes: nothing is written more often, so each row, lock and byte counts."""

from typing import Any
from uuid import UUID

import pg8000.native
import pytest
from shepherd_core.bmdb.statements import statements

from tests.support.bmdb.fleet import HOUR, Fleet

KEY = "5e" * 32
COMMIT_BYTES = 34
"""The record of a commit in the WAL."""


def written(fleet: Fleet, machines: list[UUID]) -> dict[str, Any]:
    """Record a heartbeat of each machine in one statement, and return its plan with what it wrote."""
    text, in_order = pg8000.native.to_statement(statements()["accept_heartbeats"])
    (signed_at,) = fleet.sql("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")[0]
    values = {
        "machine_ids": machines,
        "public_keys": [KEY] * len(machines),
        "signed_at": [signed_at] * len(machines),
        "report_intervals": [120] * len(machines),
        "failed_attempts": [0] * len(machines),
        "stale_seconds": HOUR,
        "skip_locked": False,
        "schema_version": fleet.sql("SELECT max(version) FROM schema_migrations")[0][0],
    }
    arguments = ", ".join(pg8000.native.literal(value) for value in in_order(values))
    fleet.sql(f"PREPARE heartbeats AS {text}")
    try:
        (plan,) = fleet.sql(f"EXPLAIN (ANALYZE, WAL, FORMAT JSON) EXECUTE heartbeats({arguments})")[0]
    finally:
        fleet.sql("DEALLOCATE heartbeats")
    found: dict[str, Any] = plan[0]["Plan"]
    assert found["Actual Rows"] == len(machines)
    return found


@pytest.mark.parametrize("together", [1, 20])
def test_a_heartbeat_writes_120_bytes_of_wal_at_most(fleet: Fleet, together: int) -> None:
    """A lock on the agent's row would be a record of its own, and so would pruning the page each time."""
    machines = [fleet.started_machine(HOUR) for _ in range(60)]  # more than a page has
    batches = [machines[at : at + together] for at in range(0, len(machines), together)]
    for _ in range(2):
        written(fleet, machines)  # the first one inserts, the next one may write whole pages
    plans = [written(fleet, batch) for _ in range(5) for batch in batches]
    after_checkpoints = [plan for plan in plans if plan.get("WAL FPI")]  # these write whole pages
    counted = [plan["WAL Bytes"] + COMMIT_BYTES for plan in plans if plan not in after_checkpoints]
    assert len(counted) > len(plans) / 2
    assert sum(counted) / (len(counted) * together) <= 120


def test_a_heartbeat_is_a_hot_update(fleet: Fleet) -> None:
    """Otherwise each would write an entry into the index."""
    machines = [fleet.started_machine(HOUR) for _ in range(20)]
    counts = (
        "SELECT n_tup_upd, n_tup_hot_upd, n_tup_ins FROM pg_stat_user_tables WHERE relname = 'machine_agent_heartbeat'"
    )

    def counted() -> list[int]:
        fleet.sql("SELECT pg_stat_force_next_flush()")
        return list(fleet.sql(counts)[0])

    written(fleet, machines)
    before = counted()
    for _ in range(50):
        written(fleet, machines)
    updates, hot, inserts = (new - old for new, old in zip(counted(), before, strict=True))
    assert (updates, inserts) == (50 * 20, 0)
    assert hot == updates


def test_no_agent_row_is_locked_after_the_first_heartbeat(fleet: Fleet) -> None:
    """The lock would be a write to another table."""
    machine_id = fleet.started_machine(HOUR)
    locked = "SELECT xmax::text <> '0' FROM machine_agent_started WHERE machine_id = :id"
    written(fleet, [machine_id])
    assert fleet.sql(locked, id=machine_id) == [[True]], "or this test proves nothing"
    fleet.sql("UPDATE machine_agent_started SET agent_started_at = agent_started_at")
    written(fleet, [machine_id])
    assert fleet.sql(locked, id=machine_id) == [[False]]
