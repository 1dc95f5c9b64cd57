"""The budget: how many machines the Recoverer interrupts, in which order, and what goes on while it interrupts none."""

from typing import Any

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


def test_a_failing_machine_is_due_since_its_backoff_ended(env: RecoveryEnvironment) -> None:
    """One that has failed for a day neither goes before the others nor looks as if nobody had worked on it."""
    env.add_reporting(10)
    failing, other = env.fleet.unhealthy_machine(24 * HOUR, 25 * HOUR), env.fleet.unhealthy_machine(11 * MINUTE)
    env.fleet.sql(
        "INSERT INTO work_backoff VALUES (:id, 'ShepherdRecovery', now() - interval '10 seconds', '?', 3600)",
        id=failing,
    )
    planned = env.dry_run()
    assert [work.machine_id for work in planned.work] == [other, failing]
    later = planned.due_at[failing] - planned.due_at[other]
    assert later.total_seconds() == pytest.approx(50, abs=5)
    env.run(concurrency=1)
    started = env.fleet.sql("SELECT machine_id FROM work_history WHERE event = 'Started' ORDER BY timestamp")
    assert started == [[other], [failing]]


def _looked(step: str, ago: str = "0 minutes") -> str:
    return (
        "INSERT INTO work_history (machine_id, process, event, step, timestamp) "
        f"SELECT machine_id, 'ShepherdRecovery', 'Looked', {step}, clock_timestamp() - interval '{ago}' FROM machines"
    )


def _failed(fault: str) -> str:
    return (
        "INSERT INTO work_backoff (machine_id, process, until, cause, last_interval_seconds, fault) "
        f"SELECT machine_id, 'ShepherdAgentStart', now(), '?', 60, '{fault}' FROM machines"
    )


def _rebooted(ago: str) -> str:
    return f"INSERT INTO machine_rebooted SELECT machine_id, now() - interval '{ago}', now() FROM machines"


GRACE = (
    "INSERT INTO machine_grace SELECT machine_id, now() - interval '1 hour', now() - interval '1 minute' FROM machines"
)
WELL = {"started_ago": HOUR, "reported_ago": 0}
SILENT = {"started_ago": HOUR, "reported_ago": 20 * MINUTE}
STATES: dict[str, tuple[dict[str, Any], list[str], FleetFigures]] = {
    "reports": (WELL, [], FleetFigures(fleet=1, reporting=1, heard=1)),
    "is late": ({"started_ago": HOUR, "reported_ago": 9 * MINUTE}, [], FleetFigures(fleet=1, reporting=1)),
    "lost requests": (
        WELL,
        ["UPDATE machine_agent_heartbeat SET failed_attempts = 1"],
        FleetFigures(fleet=1, reporting=1, heard=1, losing=1),
    ),
    "is new": ({"started_ago": MINUTE}, [], FleetFigures(fleet=1)),
    "is unhealthy": (SILENT, [], FleetFigures(fleet=1, dead=1)),
    "never reported": ({"started_ago": HOUR}, [], FleetFigures(fleet=1, dead=1)),
    "was found alive": (SILENT, [_looked("NULL"), _looked("'await-installation'")], FleetFigures(fleet=1)),
    "was found alive an hour ago": (
        SILENT,
        [_looked("'await-installation'", "61 minutes")],
        FleetFigures(fleet=1, dead=1),
    ),
    "was found dead": (SILENT, [_looked("'restart-agent'"), _looked("NULL")], FleetFigures(fleet=1, dead=1)),
    "is unhealthy and paused": (
        SILENT,
        ["INSERT INTO pauses (machine_id, owner, reason) SELECT machine_id, 'me', '?' FROM machines"],
        FleetFigures(fleet=1),
    ),
    "was rebooted": ({}, [_rebooted("1 minute")], FleetFigures(fleet=1, dead=1, steps=1, steps_six_hours=1)),
    "was rebooted hours ago": ({}, [_rebooted("5 hours")], FleetFigures(fleet=1, dead=1, steps_six_hours=1)),
    "was rebooted and reports": (
        WELL,
        [_rebooted("1 minute")],
        FleetFigures(fleet=1, reporting=1, dead=1, heard=1, steps=1, steps_six_hours=1),
    ),
    "did not come back": ({}, [GRACE, _failed("unreached")], FleetFigures(fleet=1, dead=1, unreached=1)),
    "did not come back, which is our fault": ({}, [GRACE, _failed("access")], FleetFigures()),
    "has no agent yet": ({}, [], FleetFigures()),
    "never came up": (
        {},
        ["UPDATE machines SET machine_created_at = now() - interval '7 hours'", _failed("unreached")],
        FleetFigures(fleet=1, dead=1, unreached=1),
    ),
    "is quarantined": (
        SILENT,
        ["INSERT INTO machine_quarantine SELECT machine_id, now(), '?', 'steps-used-up' FROM machines"],
        FleetFigures(),
    ),
}


@pytest.mark.parametrize(("agent", "happened", "figures"), STATES.values(), ids=STATES)
def test_each_machine_is_counted_by_its_facts(
    fleet: Fleet, agent: dict[str, Any], happened: list[str], figures: FleetFigures
) -> None:
    fleet.machines(1, **agent)
    fleet.change(*happened)
    found = budget.read_fleet(fleet.open_session(), PROVIDER)
    assert sum((each for each in found if each.location is not None), FleetFigures()) == figures


@pytest.mark.parametrize(("ago", "unreached"), [("1 minute", 3), ("5 hours", 2)])
def test_a_machine_is_awaited_beside_unreached_ones_for_an_hour(fleet: Fleet, ago: str, unreached: int) -> None:
    fleet.machines(2)
    fleet.change(GRACE, _failed("unreached"))
    (awaited,) = fleet.machines(1)
    fleet.sql("INSERT INTO machine_rebooted VALUES (:id, now() - CAST(:ago AS interval), now())", id=awaited, ago=ago)
    assert sum(each.unreached for each in budget.read_fleet(fleet.open_session(), PROVIDER)) == unreached
