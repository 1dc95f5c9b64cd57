from collections.abc import Callable
from typing import Any

import pytest
from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.listings.provider_facts import CHUNK
from shepherd_core.bmdb.machines import pauses
from shepherd_core.bmdb.recovery import remediation
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.errors.bmdb import SessionExpired
from shepherd_core.domain.errors.provider import ProviderUnusable
from shepherd_core.domain.provider import Provider
from shepherd_core.loops.updater import Updater
from shepherd_core.telemetry import Metric

from tests.conftest import ManualClock, log_lines
from tests.support.bmdb.capacity import Killed, failing
from tests.support.bmdb.fleet import HOUR, PROVIDER, Fleet
from tests.support.bmdb.listings import UP, Listed, Watched, facts, name_of, plant, record

Counts = dict[Metric, float]
Run = Callable[..., Counts]

MINUTE = 60
MANY = 2 * CHUNK + 1
OTHER_TABLES = ("machine_provided", "provider_listings", "sessions", "ticks")


@pytest.fixture
def listed() -> Listed:
    return Listed()


@pytest.fixture
def make(fleet: Fleet, clock: ManualClock) -> Callable[..., Updater]:
    def make(provider: Provider, connection: Connection | None = None, session_seconds: float = 30) -> Updater:
        return Updater(provider, connection or fleet.connection, clock, session_seconds, HOUR)

    return make


@pytest.fixture
def run(make: Callable[..., Updater], clock: ManualClock) -> Run:
    def run(provider: Provider, seconds: float = 600, **settings: Any) -> Counts:
        return make(provider, **settings).run(Deadline(clock, seconds), "a test")

    return run


def counted(counts: Counts) -> dict[str, float]:
    return {metric.value: count for metric, count in counts.items() if count}


def plant_many(fleet: Fleet, listed: Listed) -> None:
    """Let there be machines for three chunks, all of which have moved since they were settled."""
    fleet.sql(
        f"INSERT INTO machines SELECT gen_random_uuid(), now() - interval '1 day' FROM generate_series(1, {MANY});"
        "INSERT INTO machine_provided"
        " SELECT machine_id, 'static', machine_id::text, 'r', '192.0.2.1', 'fra', 'Running' FROM machines"
    )
    for (name,) in fleet.sql("SELECT provider_id FROM machine_provided"):
        listed.put(name)


def moved(fleet: Fleet) -> int:
    return int(fleet.sql("SELECT count(*) FROM machine_provided WHERE provider_location = 'ams'")[0][0])


def listed_ago(fleet: Fleet) -> float | None:
    """Return how many seconds ago all machines were compared; None: never."""
    found = fleet.sql("SELECT extract(epoch FROM clock_timestamp() - listed_at)::float8 FROM provider_listings")
    return found[0][0] if found else None


def test_only_changed_facts_are_written(
    fleet: Fleet, listed: Listed, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows that are right stay as they are, or a fleet would be rewritten every hour; host keys stay pinned."""
    moved, *others = plant(fleet, listed, 3)
    fleet.unhealthy_machine()  # of which no listing says anything, and which is too young to be missed
    assert run(listed)[Metric.UPDATED] == 3
    assert [facts(fleet, machine_id) for machine_id in (moved, *others)] == [UP] * 3
    fleet.sql("INSERT INTO machine_host_key VALUES (:id, 'key', now())", id=moved)
    listed.put(name_of(fleet, moved), location="fra", hardware="https://bmc1")
    fleet.sql("UPDATE provider_listings SET listed_at = listed_at - interval '2 hours'")
    rest = fleet.content(*OTHER_TABLES)
    before = {row[0]: row[1] for row in fleet.sql("SELECT machine_id, xmin::text FROM machine_provided")}

    capsys.readouterr()
    assert counted(run(listed)) == {"updated": 1, "not_ready": 1}
    (line,) = log_lines(capsys)  # the BMDB keeps no history of it
    assert (line["message"], line["machine_id"]) == ("machine updated", str(moved))
    assert line["changed"] == {"location": ["ams", "fra"], "hardware": [None, "https://bmc1"]}
    assert facts(fleet, moved) == ["r", "192.0.2.1", "fra", "Running"]
    found = fleet.sql("SELECT machine_id, provider_hardware FROM machine_provided WHERE provider_hardware IS NOT NULL")
    assert found == [[moved, "https://bmc1"]]
    after = {row[0]: row[1] for row in fleet.sql("SELECT machine_id, xmin::text FROM machine_provided")}
    assert {machine_id for machine_id in before if before[machine_id] != after[machine_id]} == {moved}
    assert fleet.content(*OTHER_TABLES) == rest
    assert fleet.sql("SELECT 1 FROM sessions") == []


def test_a_settled_fleet_costs_three_statements_and_no_call(fleet: Fleet, listed: Listed, run: Run) -> None:
    """Nearly every minute of nearly every fleet."""
    plant(fleet, listed, 3)
    run(listed)
    connection = Watched(fleet)
    for _ in range(3):
        fleet.pass_time(MINUTE)
        counts = run(listed, connection=connection)
        assert counts == {Metric.UPDATED: 0, Metric.NOT_READY: 0, Metric.MISSING: 0, Metric.INCOMPLETE: 0}
    assert listed.asked == 1
    assert connection.ran == ["open_session", "check_listing", "close_session"] * 3


@pytest.mark.parametrize("status", ["Missing", "ProvisioningFailedPermanent"])
@pytest.mark.parametrize("address", ["192.0.2.1", None])
def test_no_listing_waits_for_machines_that_may_stay_down(
    fleet: Fleet, listed: Listed, run: Run, status: str, address: str | None
) -> None:
    """A fleet collects them over the years; a single one would otherwise cost a listing every minute."""
    (machine_id,) = plant(fleet, listed, 1)
    run(listed)
    record(fleet, machine_id, status=status, ip_address=address)
    fleet.pass_time(MINUTE)
    assert counted(run(listed)) == {}
    assert listed.asked == 1
    fleet.pass_time(HOUR)
    assert counted(run(listed)) == {"updated": 1}
    assert facts(fleet, machine_id) == UP


def test_a_machine_in_quarantine_is_not_asked_about(fleet: Fleet, listed: Listed, run: Run) -> None:
    """It may be switched off for weeks, and would have the provider asked every minute."""
    (machine_id,) = plant(fleet, listed, 1)
    run(listed)
    record(fleet, fleet.quarantine(machine_id), status="Stopped")
    fleet.pass_time(MINUTE)
    assert counted(run(listed)) == {}
    assert listed.asked == 1
    fleet.pass_time(HOUR)
    assert counted(run(listed)) == {}
    assert remediation.unquarantine(fleet.connection, machine_id, reason="me: mended")
    assert counted(run(listed)) == {"updated": 1, "not_ready": 1}


def test_machines_that_are_not_ready_are_compared_alone(fleet: Fleet, listed: Listed, run: Run) -> None:
    """It reads what it is about, whatever the size of the fleet; the others wait for their hour."""
    settled, not_ready = plant(fleet, listed, 2)
    run(listed)
    record(fleet, not_ready, status="Provisioning")
    listed.put(name_of(fleet, settled), location="fra")
    (last,) = fleet.sql("SELECT listed_at FROM provider_listings")
    connection = Watched(fleet)
    assert counted(run(listed, connection=connection)) == {"updated": 1, "not_ready": 1}
    assert facts(fleet, settled) == UP
    assert "all_facts" not in connection.ran
    assert fleet.sql("SELECT listed_at FROM provider_listings") == [last]
    fleet.pass_time(HOUR)
    run(listed)
    assert facts(fleet, settled) == ["r", "192.0.2.1", "fra", "Running"]


def test_a_pause_of_the_provider_alone_holds_it(
    fleet: Fleet, listed: Listed, run: Run, make: Callable[..., Updater], clock: ManualClock
) -> None:
    """A paused provider must not be called; the facts can wait. It works on no machine."""
    (machine_id,) = plant(fleet, listed, 1)
    pauses.pause(fleet.connection, owner="me", reason="?", machine_id=machine_id)
    pause = pauses.pause(fleet.connection, owner="me", reason="maintenance", provider=PROVIDER)
    assert make(listed).plan(Deadline(clock, 60)) == {"changes": []}
    assert run(listed) == {}
    assert listed.asked == 0
    pauses.resume(fleet.connection, pause)
    assert run(listed)[Metric.UPDATED] == 1


def test_a_dry_run_returns_the_changes_and_makes_none(
    fleet: Fleet, listed: Listed, run: Run, make: Callable[..., Updater], clock: ManualClock
) -> None:
    machine_id, _ = plant(fleet, listed, 2)
    run(listed)
    listed.put(name_of(fleet, machine_id), location="fra")
    assert make(listed).plan(Deadline(clock, 60)) == {"changes": []}
    assert listed.asked == 1
    fleet.pass_time(HOUR)
    before = fleet.content()
    changed = {"location": ("ams", "fra")}
    change = {"machine_id": machine_id, "provider_id": name_of(fleet, machine_id), "changed": changed}
    assert make(listed).plan(Deadline(clock, 60)) == {"changes": [change]}
    assert fleet.content() == before


def test_a_concurrent_run_ends_without_asking_the_provider(fleet: Fleet, listed: Listed, run: Run) -> None:
    plant(fleet, listed, 1)
    concurrent_counts: list[Counts] = []
    listed.meanwhile = lambda: concurrent_counts.append(run(listed, connection=fleet.connect()))
    assert run(listed)[Metric.UPDATED] == 1
    assert concurrent_counts == [{}]
    assert listed.asked == 1


@pytest.mark.parametrize("successor", ["none", "another", "another, and its own renewal comes late"])
def test_an_older_listing_writes_nothing(fleet: Fleet, listed: Listed, run: Run, successor: str) -> None:
    """A function that was frozen for an hour wakes up with a listing that is an hour old."""
    (machine_id,) = plant(fleet, listed, 1)

    def overtake() -> None:
        fleet.sql("UPDATE sessions SET deadline = deadline - interval '1 hour'")
        listed.put(name_of(fleet, machine_id), location="fra")
        if successor != "none":
            assert run(listed, connection=fleet.connect())[Metric.UPDATED] == 1
        if "late" in successor:
            fleet.sql("UPDATE sessions SET deadline = deadline + interval '1 hour'")

    listed.meanwhile = overtake
    with pytest.raises(SessionExpired):
        run(listed)
    newer = ["r", "192.0.2.1", "fra", "Running"]
    assert facts(fleet, machine_id) == ([None] * 4 if successor == "none" else newer)
    run(listed)
    assert facts(fleet, machine_id) == newer


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "statement",
    ["open_session", "check_listing", "loop_paused", "begin_listing", "all_facts", "write_facts", "end_listing"],
)
def test_an_invocation_killed_anywhere_is_completed_by_the_next(
    fleet: Fleet, listed: Listed, run: Run, statement: str, when: str
) -> None:
    """Nothing is stuck, and no operator has to act."""
    machines = plant(fleet, listed, 2)
    with pytest.raises(Killed):
        run(listed, connection=killed(fleet, when, statement))
    fleet.sql("UPDATE sessions SET deadline = clock_timestamp()")
    run(listed)
    assert [facts(fleet, machine_id) for machine_id in machines] == [UP] * 2
    assert listed_ago(fleet) is not None
    fleet.pass_time(MINUTE)
    asked = listed.asked
    assert counted(run(listed)) == {}
    assert listed.asked == asked


def killed(fleet: Fleet, when: str, statement: str, nth: int = 1) -> Watched:
    """Return a connection whose process ends before or after the nth time that it runs a statement."""
    connection = Watched(fleet)

    def die(name: str) -> None:
        if connection.ran.count(statement) == nth and name in (statement, "close_session"):
            raise Killed

    setattr(connection, when, die)
    return connection


def test_an_invocation_killed_between_two_chunks_is_repeated(fleet: Fleet, listed: Listed, run: Run) -> None:
    """What was written stays; what was not must not wait for an hour, although no machine is not_ready."""
    plant_many(fleet, listed)
    with pytest.raises(Killed):
        run(listed, connection=killed(fleet, "before", "write_facts", 2))
    fleet.sql("UPDATE sessions SET deadline = clock_timestamp()")
    assert moved(fleet) == CHUNK
    assert counted(run(listed)) == {"updated": MANY - CHUNK}
    assert moved(fleet) == MANY


def test_the_next_invocation_continues_after_a_timeout(
    fleet: Fleet, listed: Listed, run: Run, clock: ManualClock
) -> None:
    plant_many(fleet, listed)
    connection = Watched(fleet)
    connection.after = lambda name: clock.sleep(400 if name == "write_facts" else 0)
    assert counted(run(listed, connection=connection, seconds=600)) == {"updated": 2 * CHUNK, "incomplete": 1}
    assert listed_ago(fleet) is None
    assert counted(run(listed)) == {"updated": MANY - 2 * CHUNK}
    assert listed_ago(fleet) is not None


def test_a_listing_that_fails_is_raised_and_changes_nothing(fleet: Fleet, listed: Listed, run: Run) -> None:
    (machine_id,) = plant(fleet, listed, 1)
    listed.meanwhile = failing(ProviderUnusable("401"))
    with pytest.raises(ProviderUnusable):
        run(listed)
    assert facts(fleet, machine_id) == [None] * 4
    run(listed)
    assert facts(fleet, machine_id) == UP


def test_a_machine_gone_from_the_bmdb_is_passed_over(fleet: Fleet, listed: Listed, run: Run) -> None:
    gone, kept = plant(fleet, listed, 2)
    listed.meanwhile = lambda: fleet.sql("DELETE FROM machine_provided WHERE machine_id = :id", id=gone)
    assert counted(run(listed)) == {"updated": 1, "not_ready": 2}
    assert facts(fleet, kept) == UP
