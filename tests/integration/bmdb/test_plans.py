"""How many rows of a large fleet each statement visits, with plans for known parameters and with generic ones."""

import json
import re
from collections.abc import Collection, Iterator
from typing import Any
from uuid import UUID

import pg8000.native
import pytest
from shepherd_core.bmdb.connection import Connection, as_rows
from shepherd_core.bmdb.schema.migrate import this_code
from shepherd_core.bmdb.statements import statements
from shepherd_core.wiring import agent_endpoint

from simulator.environment.postgres import Postgres
from tests.support.bmdb.fleet import HOUR, Fleet

MACHINES = 50_000
BATCH = 10

# Three of four have an agent that sends heartbeats, every one has a past; 1 % are due now, the others within a day.
# Foreign keys are not checked, which would take longer than all else.
PLANT = f"""
SET session_replication_role = replica;
INSERT INTO machines (machine_created_at)
    SELECT now() - interval '1 day' - n * interval '1 second' FROM generate_series(1, {MACHINES}) n;
INSERT INTO machine_provided
    SELECT machine_id, 'static', machine_id::text, NULL, '192.0.2.1', 'ams',
        CASE WHEN random() < 20.0 / {MACHINES} THEN 'Provisioning' WHEN random() < 0.1 THEN 'Missing' ELSE 'Running'
        END, NULL, NULL, jsonb_build_object('rack', 'r' || ceil(random() * 2000), 'role', 'db')
    FROM machines;
INSERT INTO machine_operator_labels SELECT machine_id, '{{"role": "web"}}' FROM machines WHERE random() < 0.3;
INSERT INTO machine_agent_started
    SELECT machine_id, machine_created_at + interval '1 hour', decode(repeat('5e', 32), 'hex')
    FROM machines WHERE random() < 0.75;
INSERT INTO machine_agent_heartbeat
    SELECT machine_id, now() - random() * interval '1 minute' FROM machine_agent_started;
INSERT INTO machine_host_key SELECT machine_id, 'key', machine_created_at FROM machines;
INSERT INTO machine_rebooted
    SELECT machine_id, machine_created_at, machine_created_at FROM machines WHERE random() < 0.3;
INSERT INTO machine_os_installation_request SELECT machine_id, 2, '' FROM machines WHERE random() < 0.3;
INSERT INTO machine_os_installation_report
    SELECT machine_id, 1, 'Success', '' FROM machine_os_installation_request;
INSERT INTO machine_hardware_report SELECT machine_id, '' FROM machine_agent_heartbeat;
INSERT INTO work_backoff
    SELECT machine_id, 'ShepherdAgentStart', now() - interval '1 hour', '?', 60 FROM machines WHERE random() < 0.3;
INSERT INTO machine_quarantine SELECT machine_id, now(), '?', 'steps-used-up'
    FROM machines WHERE random() < 0.02;
INSERT INTO machine_grace
    SELECT machine_id, now() - interval '2 hours', now() + (random() - 0.5) * interval '1 hour'
    FROM machine_need WHERE process = 'ShepherdAgentStart' AND random() < 0.1;
UPDATE work_backoff SET fault = CASE WHEN random() < 0.001 THEN 'access' ELSE 'unreached' END;
UPDATE work_backoff SET deaths = 4
    WHERE machine_id IN (SELECT machine_id FROM work_backoff LIMIT {BATCH});
INSERT INTO recovery_policy VALUES ('static', 600, 1800, 1800);
INSERT INTO work_history
    SELECT machine_id, 'ShepherdAgentStart', event, machine_created_at, NULL, gen_random_uuid()
    FROM machines, unnest(ARRAY['Started', 'Finished']) AS event;
INSERT INTO work_history
    SELECT machine_id, process, event, now() - n * interval '1 hour'
    FROM work_backoff, (VALUES ('Started', 5), ('Expired', 4), ('Started', 3), ('Expired', 2)) AS e (event, n)
    WHERE deaths > 0;
INSERT INTO sessions (component_name, runtime_info, interval_seconds, deadline)
    VALUES ('test', 'a test', 3600, now() + interval '1 hour');
INSERT INTO work
    SELECT machine_id, process, session_id, now() FROM sessions, (
        (SELECT machine_id, process FROM machine_need WHERE process = 'ShepherdAgentStart' LIMIT {BATCH})
        UNION ALL
        (SELECT machine_id, process FROM machine_need WHERE process = 'ShepherdRecovery' LIMIT {BATCH})
    ) AS held;
INSERT INTO provisioner_lock SELECT 'static', session_id FROM sessions;
UPDATE machine_rebooted SET rebooted_at = now() - interval '10 minutes'
    WHERE machine_id IN (SELECT machine_id FROM machine_rebooted LIMIT {BATCH});
INSERT INTO recovery_budgets SELECT 'static', 'fra', 1, 'share', '?';
WITH gone AS (INSERT INTO machines SELECT FROM generate_series(1, 1000) RETURNING machine_id)
    INSERT INTO machine_tombstone
    SELECT machine_id, 'Released', 'static', machine_id::text, 'me', '?' FROM gone;
INSERT INTO machine_release SELECT machine_id, now(), 'me', '?', now() FROM machine_rebooted LIMIT {BATCH};
INSERT INTO provider_listings SELECT 'static', session_id, now(), now() FROM sessions;
INSERT INTO sessions (component_name, runtime_info, interval_seconds, deadline)
    SELECT 'test', 'dead', 60, now() - n * interval '1 second' FROM generate_series(1, 20) n;
WITH new AS (INSERT INTO machines SELECT FROM generate_series(1, 20) RETURNING machine_id)
    INSERT INTO machine_creation_intent SELECT machine_id, 'static', NULL, now() FROM new;
INSERT INTO ticks
    SELECT gen_random_uuid(), loop, 'static', '', now() - n * interval '1 minute', now(), 'Succeeded', NULL, '{{}}'
    FROM unnest(ARRAY['initializer', 'recoverer', 'updater']) AS loop, generate_series(1, 21000) AS n;
RESET session_replication_role;
ANALYZE;
"""

# These have about as many rows as there are workers, pauses, creations and recoveries in progress.
SMALL = {
    "capacity_penalties", "machine_grace", "machine_creation_intent", "machine_release", "pauses",
    "provider_listings", "provisioner_lock", "recovery_policy", "schema_migrations", "sessions", "recovery_budgets",
    "work",
}  # fmt: skip

# A page of the list has a hundred machines, whose state and pauses are looked up separately. Quarantine reads the
# history of its machines. A thousand history rows are deleted at a time.
LIMITS = {
    "begin_work": 250,
    "cause_of_deaths": 400,
    "quarantine": 400,
    "delete_old_history": 4_000,
    "search_machines": 1_000,
    "last_examined": 1_000,
    "newest_machines": 1_001,
    "tick_totals": 10_000,  # in table and index, of a day in which each of three loops runs 1,440 times
}
LIMIT = 200

EXAMINED = 1_000
"""Machines that a search examines here."""
SEARCH_LIMIT = 25 * EXAMINED
"""For each, the rows of some twenty small tables and views at most."""

# Tables that only this statement may scan, because it counts their rows.
COUNTED = {"fleet_notices": {"machine_quarantine"}}

MODES = ("force_custom_plan", "force_generic_plan")

READS_ALL = {
    "find_candidates": "a tick reads the facts of its provider's fleet once",
    "read_fleet": "a tick of the Recoverer does",
    "all_facts": "the Updater compares all machines with the provider's listing, once an hour",
    "provided_machines": "the Provisioner compares all machines with the provider's listing",
    "unusual_machines": "the same",
    "machines_in_states": "it stands in for looking at the fleet machine by machine",
    "tombstones": "the Provisioner looks for machines among them that the provider still lists",
    "intents": "so many creations are not under way",
    "penalized_capacity": "so much capacity does not fail",
    "pauses_in_force": "people read it",
    "inventory": "people ask what the whole fleet consists of",
    "fleet_counts": "people ask how the whole fleet is",
    "failures": "people ask what fails in the whole fleet",
    "unsteady": "the same",
    "bad_agents": "machines on which the agent fails, which are few",
    "find_oldest_transaction": "the connections, and who they belong to",
    "find_machines": "people ask it, by the beginning of an id",
    "locations": "people ask it, and mistype",
    "applied_migrations": "a few rows",
    "schema_exists": "the catalogue",
    "create_schema_migrations": "no query",
    "create_schema_lock": "no query",
    "fill_schema_lock": "one row",
    "take_schema_lock": "one row",
    "revocations": "the catalogue",
    "record_migration": "one row",
}


@pytest.fixture(scope="module")
def large(postgres: Postgres) -> Iterator[pg8000.native.Connection]:
    settings = postgres.new_database()
    with pg8000.native.Connection(
        "postgres",
        database=settings.bmdb_name,
        unix_sock=f"{settings.bmdb_host}/.s.PGSQL.{settings.bmdb_port}",
        ssl_context=False,
    ) as driver:
        driver.run(PLANT)
        # Otherwise a plan visits what the plans before it, which were rolled back, wrote about the same machines.
        driver.run("VACUUM (INDEX_CLEANUP ON) work_history")
        yield driver
    postgres.drop(settings)


def parameters(driver: pg8000.native.Connection) -> dict[str, Any]:
    (session_id,) = driver.run("SELECT session_id FROM work LIMIT 1")[0]
    held = [row[0] for row in driver.run("SELECT machine_id FROM work WHERE process = 'ShepherdAgentStart'")]
    return {
        **dict.fromkeys((
            "failed_steps", "created", "rebooted", "released", "loses_agent", "replace", "respect_pauses",
            "despite_heartbeat", "scans"
        ), True),
        **dict.fromkeys((
            "waiting", "signed_at", "time", "hardware_threads", "memory_bytes", "disks", "disk_bytes",
            "needed_schema", "days"
        ), 1),
        **dict.fromkeys((
            "provider_reservation_id", "provider_ip_address", "provider_location", "provider_status",
            "provider_failure", "provider_hardware", "labels", "location", "locations", "kinds", "requested",
            "reported", "reported_result", "states", "providers", "paused", "remark", "text", "heartbeat_older",
            "heartbeat_younger", "state_older", "state_younger", "with_labels"
        ), None),
        "session_id": session_id, "holder": session_id, "fence": 0, "failed_attempts": 0, "machine_ids": held,
        "machine_id": held[0], "process": "ShepherdAgentStart", "provider": "static", "loop_provider": "static",
        "users": ["shepherd"], "limit": BATCH, "startup_timeout_seconds": 1800, "grace_seconds": 1800,
        "heartbeat_timeout_seconds": 600, "cooldown_seconds": 600, "boot_seconds": 600, "boot_wait_seconds": 120,
        "max_machines": 50, "kind": "ssh-refused", "asked_step": "reboot", "host_key": "key", "known": held[:1],
        "public_key": "5e" * 32, "report_interval": 240, "tolerance_seconds": 1e12, "raw": "00", "request": "00",
        "result": "Success", "event": "Recovered", "after": UUID(int=2**127), "component_name": "test",
        "runtime_info": "a test", "seconds": 60, "known_schema": 3, "generation": 3, "statement": "30s", "lock": "0",
        "idle": "35s", "cause": "no luck", "outcome": "Failed", "counts": "{}", "provider_labels": "{}",
        "loop": "recoverer", "settings_hash": "5e771465", "code_version": "c0de", "capacity_id": "rack",
        "reason": "?", "owner": "me", "pause_id": UUID(int=1), "provider_id": "new", "how": "Forgotten",
        "fresh_seconds": 3600, "ages": [3600.0, 60.0], "each": 30, "examine": EXAMINED, "added": '{"role": "db"}',
        "removed": ["rack"], "lasting": ["drifted"],
    }  # fmt: skip


# Of each machine in the :rows of a statement.
ROW = {
    "step": "reboot", "loses_host_key": True, "reboots": True, "looked": "it is alive", "seen": "runs",
    "alive": True, "held": False, "kind": "ssh-refused", "fault": "machine", "cause": "no luck", "seconds": 300,
    "agent_sha256": "ab" * 32, "public_key": "5e" * 32, "host_key": "key", "origin": "Provider",
    "address": "192.0.2.1", "location": "ams", "status": "Running", "per_hour": 1, "brake": "share", "reason": "?",
    "lasts": False, "labels": {},
}  # fmt: skip

# Where the general values would find nothing to do.
OF_RECOVERY = {
    "accept_heartbeat", "reporting_agent", "no_longer_due", "leave_alone", "finish_recovery", "quarantine",
    "record_attempts",
}  # fmt: skip
MACHINE_IN = {
    **dict.fromkeys(("provide", "delete_intent"), "machine_creation_intent"),
    **dict.fromkeys(("decommission", "request_release", "cancel_release"), "machine_release"),
    "cause_of_deaths": "work_backoff WHERE deaths > 0",
}
SPECIAL: dict[str, dict[str, Any]] = {
    "fence_session": {"fence": 1},
    "search_machines": {"machine_ids": None},
    "newest_machines": {"after": None},
}


def explain(driver: pg8000.native.Connection, name: str, mode: str, **chosen: Any) -> dict[str, Any]:
    """Return the plan that ran for a statement with the *chosen* parameters; its effect is rolled back."""
    values = parameters(driver) | SPECIAL.get(name, {}) | chosen
    if name in OF_RECOVERY:
        held = driver.run("SELECT machine_id FROM work WHERE process = 'ShepherdRecovery'")
        values |= {"process": "ShepherdRecovery", "machine_ids": [row[0] for row in held]}
    if name in MACHINE_IN:
        ((values["machine_id"],),) = driver.run(f"SELECT machine_id FROM {MACHINE_IN[name]} LIMIT 1")
    values["rows"] = as_rows({"machine_id": machine_id, **ROW} for machine_id in values["machine_ids"] or ())
    if name == "set_budgets":
        values["rows"] = as_rows({**ROW, "location": f"rack {number}"} for number in range(BATCH))
    text, in_order = pg8000.native.to_statement(statements()[name])
    arguments = ", ".join(pg8000.native.literal(value) for value in in_order(values))
    driver.run(f"SET plan_cache_mode = {mode}")
    driver.run(f"PREPARE explained AS {text}")
    driver.run("BEGIN")
    try:
        execute = f"EXECUTE explained({arguments})" if arguments else "EXECUTE explained"
        answer = driver.run(f"EXPLAIN (ANALYZE, BUFFERS off, FORMAT JSON) {execute}")[0][0]
    finally:
        driver.run("ROLLBACK")
        driver.run("DEALLOCATE explained")
    found: dict[str, Any] = (json.loads(answer) if isinstance(answer, str) else answer)[0]["Plan"]
    return found


def scans(node: dict[str, Any]) -> Iterator[tuple[str, str, float]]:
    """Return each scan of a plan as its kind, what it reads and how many rows it visited in all."""
    what = node.get("Relation Name") or (node.get("Index Name") if node["Node Type"] == "Bitmap Index Scan" else None)
    if what is not None and "Scan" in node["Node Type"]:
        removed = sum(count for key, count in node.items() if key.startswith("Rows Removed by"))
        yield node["Node Type"], what, node["Actual Loops"] * (node["Actual Rows"] + removed)
    for part in node.get("Plans", []):
        yield from scans(part)


def check(plan: dict[str, Any], limit: int, counted: Collection[str] = ()) -> None:
    found = [scan for scan in scans(plan) if scan[1] not in SMALL.union(counted)]
    assert [what for kind, what, _ in found if kind == "Seq Scan"] == []
    assert sum(rows for _, _, rows in found) <= limit, found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", sorted(set(statements()) - set(READS_ALL)))
def test_a_statement_never_reads_the_whole_fleet(large: pg8000.native.Connection, name: str, mode: str) -> None:
    """Only a tick's reading of the fleet, comparisons with a listing, and what people ask do."""
    check(explain(large, name, mode), LIMITS.get(name, LIMIT), COUNTED.get(name, ()))


@pytest.mark.parametrize("after", [None, UUID(int=int(2**128 * 0.9))], ids=["first", "late"])
@pytest.mark.parametrize(
    "chosen",
    [
        {"states": ["quarantined", "unhealthy"]},
        {"states": ["installed"]},
        {"states": ["creating"]},
        {"paused": True},
        {"text": "nowhere"},
        {"kinds": ["no-address"]},
        {"heartbeat_older": 1e9},
        {"state_older": 1e9},
        {"labels": ["role=nobody"]},
        {"locations": ["nowhere"]},
        {"providers": ["nobody"]},
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", MODES)
def test_a_search_costs_what_it_examines(
    large: pg8000.native.Connection, mode: str, chosen: dict[str, Any], after: UUID | None
) -> None:
    check(explain(large, "search_machines", mode, after=after, limit=100, **chosen), SEARCH_LIMIT)


@pytest.mark.parametrize("mode", MODES)
def test_a_late_page_of_the_newest_machines_costs_the_same(large: pg8000.native.Connection, mode: str) -> None:
    """Its first statement finds the machines by an index, its second one examines these alone."""
    newest = large.run(
        f"SELECT machine_id FROM machines ORDER BY machine_created_at DESC OFFSET {MACHINES // 2} LIMIT 500"
    )
    ids = [row[0] for row in newest]
    check(explain(large, "newest_machines", mode, after=ids[0]), LIMITS["newest_machines"] + 1)
    chosen = {"after": None, "examine": len(ids), "limit": len(ids)}
    check(explain(large, "search_machines", mode, machine_ids=ids, **chosen), 25 * len(ids))


@pytest.mark.parametrize("mode", MODES)
def test_a_recovery_is_claimed_as_cheaply_as_an_agent_start(large: pg8000.native.Connection, mode: str) -> None:
    check(explain(large, "begin_work", mode, process="ShepherdRecovery"), LIMITS["begin_work"])


def test_the_reader_of_plans_sees_a_scan_of_the_fleet(large: pg8000.native.Connection) -> None:
    """Otherwise the test above would prove nothing."""
    large.run("SET max_parallel_workers_per_gather = 0")  # of parallel workers it tells the rounded mean
    large.run("PREPARE whole AS SELECT count(*) FROM machine_provided WHERE provider_ip_address = '?'")
    plan = large.run("EXPLAIN (ANALYZE, BUFFERS off, FORMAT JSON) EXECUTE whole")[0][0]
    large.run("DEALLOCATE whole; RESET max_parallel_workers_per_gather")
    ((kind, what, rows),) = scans((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"])
    assert (kind, what, rows) == ("Seq Scan", "machine_provided", MACHINES)


def test_statements_that_read_all_are_still_there() -> None:
    """An exception for a statement that was removed would apply to another one of that name."""
    assert set(READS_ALL) <= set(statements())


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
