"""The budget: how many machines the Recoverer interrupts, and what goes on while it interrupts none."""

from uuid import UUID

import pytest
from shepherd_core.bmdb.recovery import budget
from shepherd_core.domain.budget import WHOLE_PROVIDER, Brake, FleetFigures
from shepherd_core.telemetry import Metric

from tests.conftest import ManualClock
from tests.support.bmdb.breaking_connection import BreakingConnection
from tests.support.bmdb.fleet import HOUR, PROVIDER, Fleet
from tests.support.bmdb.recovery import MINUTE, RecoveryEnvironment

REPORTING = 30


@pytest.fixture
def env(fleet: Fleet, clock: ManualClock) -> RecoveryEnvironment:
    return RecoveryEnvironment(fleet, clock)


def test_an_outage_of_ours_reboots_no_machine(env: RecoveryEnvironment) -> None:
    """Heartbeats that we could not take say nothing about machines, not even when the first arrive again."""
    env.add_reporting(REPORTING)
    everyone, env.reporting = env.reporting, []
    env.wait(32)
    assert env.limited() == {WHOLE_PROVIDER: (0, Brake.SILENT)}
    for first in range(0, REPORTING, 15):  # all agents repeat a heartbeat within about a minute
        env.reporting += everyone[first : first + 15]
        assert env.limited() == {WHOLE_PROVIDER: (0, Brake.SILENT)}
        env.tick()
    assert env.limited() == {}
    assert not env.provider.reboots


def test_many_dead_machines_lower_the_budget_to_one_an_hour(env: RecoveryEnvironment) -> None:
    """A switch fails for one room; the others keep their budget, and no room waits for ever."""
    env.add_reporting(60, "ams")
    env.add_reporting(10, "fra")
    dark = env.add_unhealthy(12, "fra")
    lost = env.add_unhealthy(2, "ams")
    counts = env.run(concurrency=50)
    assert (counts[Metric.RECOVERY_LIMITED], counts[Metric.FINISHED], counts[Metric.HELD_BACK]) == (1, 3, 11)
    assert env.limited() == {"fra": (1, Brake.SHARE)}
    assert {env.provider_id(machine) for machine in lost} < set(env.provider.reboots)
    env.wait(56)
    assert len(env.provider.reboots) == 3
    env.wait(8)
    assert len(set(env.provider.reboots) & {env.provider_id(machine) for machine in dark}) == 2


def test_a_budget_that_nobody_needs_any_more_is_not_shown(env: RecoveryEnvironment) -> None:
    """A cured rack counts as dead for six hours; an alarm that long would hide the next fault."""
    env.add_reporting(60, "ams")
    env.add_reporting(20, "fra")
    env.fleet.sql(
        "INSERT INTO machine_rebooted SELECT machine_id, now() - interval '2 hours', now() FROM machine_provided "
        "WHERE provider_location = 'fra' LIMIT 12"
    )
    assert env.tick()[Metric.RECOVERY_LIMITED] == 0
    assert env.limited() == {}
    env.reporting.pop()
    env.wait(16)
    assert env.limited() == {"fra": (1, Brake.SHARE)}


def test_a_machine_that_waits_says_for_what(env: RecoveryEnvironment) -> None:
    env.add_reporting(100, "ams")
    env.add_reporting(10, "fra")
    dark = env.add_unhealthy(12, "fra")
    env.run(concurrency=50)
    (shown,) = budget.shown_budgets(env.fleet.connection)
    assert (shown.location, shown.per_hour, shown.waiting) == ("fra", 1, 11)
    assert shown.reason == "12 of 22 machines are dead, or were interrupted in the last six hours"
    waiting = [machine for machine in dark if env.provider_id(machine) not in env.provider.reboots]
    causes = env.fleet.sql(
        "SELECT DISTINCT cause, round(extract(epoch FROM until - now()) / 60) FROM work_backoff "
        "WHERE kind = 'held-back'"
    )
    assert causes == [[f"the budget of location fra, 1 an hour, is used up, because {shown.reason}", 5]]
    assert {event for machine in waiting for event in env.fleet.events(machine)} == {"Started", "Looked", "Canceled"}
    env.fleet.pass_time(4 * MINUTE)
    assert env.run()[Metric.CLAIMED] == 0
    env.fleet.pass_time(MINUTE)
    env.fleet.report(env.reporting)
    assert env.run(concurrency=50)[Metric.CLAIMED] == len(waiting)


def test_a_dry_run_shows_the_budget_and_leaves_no_trace(env: RecoveryEnvironment) -> None:
    due = env.add_never_reported(12)
    planned = env.dry_run()
    assert {work.machine_id for work in planned.work} <= set(due)
    assert planned.limited == ("the whole provider: no machine reports, and 12 are dead",)
    assert {str(each) for each in planned.decisions.values()} == {"reboot, attempt 1 of 3"}
    assert env.limited() == {}
    assert all(env.fleet.events(machine) == [] for machine in due)


def test_an_idle_tick_waits_for_the_bmdb_three_times(env: RecoveryEnvironment) -> None:
    """Open, read, close: nearly every invocation, once a minute, does only this."""
    env.add_reporting(REPORTING)
    with BreakingConnection(env.fleet.settings) as breaking:
        connection = env.fleet.connect(breaking.settings)
        env.run(connection=connection)  # prepares its statements
        before = breaking.requests
        env.run(connection=connection)
        assert breaking.requests - before == 3
        connection.close()


@pytest.mark.parametrize(
    ("state", "figures"),
    [
        ("reports", FleetFigures(fleet=1, reporting=1, heard=1)),
        ("is late", FleetFigures(fleet=1, reporting=1)),
        ("lost requests", FleetFigures(fleet=1, reporting=1, heard=1, losing=1)),
        ("is new", FleetFigures(fleet=1)),
        ("is unhealthy", FleetFigures(fleet=1, dead=1)),
        ("never reported", FleetFigures(fleet=1, dead=1)),
        ("was found alive", FleetFigures(fleet=1)),
        ("was found alive an hour ago", FleetFigures(fleet=1, dead=1)),
        ("was found dead", FleetFigures(fleet=1, dead=1)),
        ("is unhealthy and paused", FleetFigures(fleet=1)),
        ("was rebooted", FleetFigures(fleet=1, dead=1, steps=1, steps_six_hours=1)),
        ("was rebooted hours ago", FleetFigures(fleet=1, dead=1, steps_six_hours=1)),
        ("was rebooted and reports", FleetFigures(fleet=1, reporting=1, dead=1, heard=1, steps=1, steps_six_hours=1)),
        ("did not come back", FleetFigures(fleet=1, dead=1, unreached=1)),
        ("did not come back, which is our fault", FleetFigures()),
        ("has no agent yet", FleetFigures()),
        ("never came up", FleetFigures(fleet=1, dead=1, unreached=1)),
        ("is quarantined", FleetFigures()),
    ],
)
def test_each_machine_is_counted_by_its_facts(env: RecoveryEnvironment, state: str, figures: FleetFigures) -> None:
    fleet = env.fleet
    begun: dict[str, dict[str, float]] = {
        "is late": {"started_ago": HOUR, "reported_ago": 9 * MINUTE},
        "is new": {"started_ago": MINUTE},
        "never reported": {"started_ago": HOUR},
    }
    healthy = {"reports", "lost requests", "was rebooted and reports"}
    without = {
        "has no agent yet",
        "did not come back",
        "did not come back, which is our fault",
        "never came up",
        "was rebooted",
        "was rebooted hours ago",
    }
    usual = {"started_ago": HOUR, "reported_ago": 0 if state in healthy else 20 * MINUTE}
    (machine,) = (
        [fleet.provided_machine()]
        if state in without or "come back" in state
        else fleet.machines(1, **begun.get(state, usual))
    )
    _state(fleet, machine, state)
    session = fleet.open_session()
    found = [each for each in budget.read_fleet(session, PROVIDER) if each.location is not None]
    assert sum(found, FleetFigures()) == figures


def test_agents_that_started_count_beside_machines_that_are_unreached(env: RecoveryEnvironment) -> None:
    """They show that SSH works."""
    _state(env.fleet, env.fleet.provided_machine(), "did not come back")
    env.fleet.machines(1, started_ago=MINUTE)
    found = [each for each in budget.read_fleet(env.fleet.open_session(), PROVIDER) if each.location is not None]
    assert sum(found, FleetFigures()) == FleetFigures(fleet=2, dead=1, unreached=1, reached=1)


def _state(fleet: Fleet, machine: UUID, state: str) -> None:
    looked = (
        "INSERT INTO work_history (machine_id, process, event, step) VALUES (:id, 'ShepherdRecovery', 'Looked', {})"
    )
    failed = (
        "INSERT INTO work_backoff (machine_id, process, until, cause, last_interval_seconds, fault) "
        "VALUES (:id, 'ShepherdAgentStart', now(), '?', 60, '{}')"
    )
    grace = "INSERT INTO machine_grace VALUES (:id, now() - interval '1 hour', now() - interval '1 minute')"
    rebooted = "INSERT INTO machine_rebooted VALUES (:id, now() - interval '{}', now())"
    statements = {
        "lost requests": ["UPDATE machine_agent_heartbeat SET failed_attempts = 1"],
        "was found alive": [looked.format("NULL"), looked.format("'await-installation'")],
        "was found alive an hour ago": [
            looked.format("'await-installation'"),
            "UPDATE work_history SET timestamp = now() - interval '61 minutes'",
        ],
        "was found dead": [looked.format("'restart-agent'"), looked.format("NULL")],
        "is unhealthy and paused": ["INSERT INTO pauses (machine_id, owner, reason) VALUES (:id, 'me', '?')"],
        "was rebooted": [rebooted.format("1 minute")],
        "was rebooted hours ago": [rebooted.format("5 hours")],
        "was rebooted and reports": [rebooted.format("1 minute")],
        "did not come back": [grace, failed.format("unreached")],
        "did not come back, which is our fault": [grace, failed.format("access")],
        "never came up": [
            "UPDATE machines SET machine_created_at = now() - interval '7 hours'",
            failed.format("unreached"),
        ],
        "is quarantined": ["INSERT INTO machine_quarantine VALUES (:id, now(), '?', 'steps-used-up')"],
    }
    for statement in statements.get(state, []):
        fleet.sql(statement, **({"id": machine} if ":id" in statement else {}))


@pytest.mark.parametrize(("state", "unreached"), [("was rebooted", 3), ("was rebooted hours ago", 2)])
def test_a_machine_is_awaited_beside_unreached_ones_for_an_hour(
    env: RecoveryEnvironment, state: str, unreached: int
) -> None:
    for each in ("did not come back", "did not come back", state):
        _state(env.fleet, env.fleet.provided_machine(), each)
    found = budget.read_fleet(env.fleet.open_session(), PROVIDER)
    assert sum(each.unreached for each in found) == unreached
