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
    env.watch(32)
    assert env.limited() == {WHOLE_PROVIDER: (0, Brake.SILENT)}
    for first in range(0, REPORTING, 15):  # all agents repeat a heartbeat within about a minute
        env.reporting += everyone[first : first + 15]
        assert env.limited() == {WHOLE_PROVIDER: (0, Brake.SILENT)}
        env.watch(1)
    assert (env.limited(), env.provider.reboots) == ({}, {})


def test_a_machine_due_after_an_outage_of_ours_waits_too(env: RecoveryEnvironment) -> None:
    """The first invocation that gets through says nothing about agents that have not reported again yet."""
    env.add_reporting(REPORTING)
    env.after_outage = True
    env.watch(1)
    env.add_unhealthy(1)
    assert env.watch(1)[Metric.HELD_BACK] == 1
    assert not env.provider.reboots
    env.watch(2)
    assert env.provider.reboots.total() == 1


def test_many_dead_machines_lower_the_budget_to_one_an_hour(env: RecoveryEnvironment) -> None:
    """A switch fails for one room; the others keep their budget, and no room waits for ever. Each says for what."""
    env.add_reporting(60, "ams")
    env.add_reporting(10, "fra")
    dark = env.add_unhealthy(12, "fra")
    lost = env.add_unhealthy(2, "ams")
    counts = env.run(concurrency=50)
    assert (counts[Metric.RECOVERY_LIMITED], counts[Metric.FINISHED], counts[Metric.HELD_BACK]) == (1, 3, 11)
    (shown,) = budget.shown_budgets(env.fleet.connection)
    assert (shown.location, shown.per_hour, shown.brake, shown.waiting) == ("fra", 1, Brake.SHARE, 11)
    assert shown.reason == "12 of 22 machines are dead, or were interrupted in the last six hours"
    causes = env.fleet.sql(
        "SELECT DISTINCT cause, round(extract(epoch FROM until - now()) / 60) FROM work_backoff "
        "WHERE kind = 'held-back'"
    )
    assert causes == [[f"the budget of location fra, 1 an hour, is used up, because {shown.reason}", 5]]
    assert {env.provider_id(machine) for machine in lost} < set(env.provider.reboots)
    waiting = [machine for machine in dark if env.provider_id(machine) not in env.provider.reboots]
    assert {event for machine in waiting for event in env.fleet.events(machine)} == {"Started", "Looked", "Canceled"}
    for minutes, claimed in ((4, 0), (1, len(waiting))):
        env.fleet.pass_time(minutes * MINUTE)
        env.fleet.report(env.reporting)
        assert env.run(concurrency=50)[Metric.CLAIMED] == claimed
    env.watch(48)
    assert len(env.provider.reboots) == 3
    env.watch(12)
    assert len(set(env.provider.reboots) & {env.provider_id(machine) for machine in dark}) == 2


def test_a_budget_that_nobody_needs_any_more_is_not_shown(env: RecoveryEnvironment) -> None:
    """A cured rack counts as dead for six hours; an alarm that long would hide the next fault."""
    env.add_reporting(60, "ams")
    env.add_reporting(20, "fra")
    env.fleet.sql(
        "INSERT INTO machine_rebooted SELECT machine_id, now() - interval '2 hours', now() FROM machine_provided "
        "WHERE provider_location = 'fra' LIMIT 12"
    )
    assert (env.watch(1)[Metric.RECOVERY_LIMITED], env.limited()) == (0, {})
    env.reporting.pop()
    env.watch(16)
    assert env.limited() == {"fra": (1, Brake.SHARE)}


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


LATE = {"started_ago": HOUR, "reported_ago": 20 * MINUTE}
REPORTS = {"started_ago": HOUR, "reported_ago": 0}
LOOKED = "INSERT INTO work_history (machine_id, process, event, step) VALUES (:id, 'ShepherdRecovery', 'Looked', {})"
AWAITED = LOOKED.format("'await-installation'")
FAILED = (
    "INSERT INTO work_backoff (machine_id, process, until, cause, last_interval_seconds, fault) "
    "VALUES (:id, 'ShepherdAgentStart', now(), '?', 60, '{}')"
)
GRACE = "INSERT INTO machine_grace VALUES (:id, now() - interval '1 hour', now() - interval '1 minute')"
REBOOTED = "INSERT INTO machine_rebooted VALUES (:id, now() - interval '{}', now())"
STATES: dict[str, tuple[dict[str, Any], list[str], FleetFigures]] = {
    "reports": (REPORTS, [], FleetFigures(fleet=1, reporting=1, heard=1)),
    "is late": ({"started_ago": HOUR, "reported_ago": 9 * MINUTE}, [], FleetFigures(fleet=1, reporting=1)),
    "lost requests": (
        REPORTS,
        ["UPDATE machine_agent_heartbeat SET failed_attempts = 1 WHERE machine_id = :id"],
        FleetFigures(fleet=1, reporting=1, heard=1, losing=1),
    ),
    "is new": ({"started_ago": MINUTE}, [], FleetFigures(fleet=1)),
    "is unhealthy": (LATE, [], FleetFigures(fleet=1, dead=1)),
    "never reported": ({"started_ago": HOUR}, [], FleetFigures(fleet=1, dead=1)),
    "was found alive": (LATE, [LOOKED.format("NULL"), AWAITED], FleetFigures(fleet=1)),
    "was found alive an hour ago": (
        LATE,
        [AWAITED, "UPDATE work_history SET timestamp = now() - interval '61 minutes' WHERE machine_id = :id"],
        FleetFigures(fleet=1, dead=1),
    ),
    "was found dead": (LATE, [LOOKED.format("'restart-agent'"), LOOKED.format("NULL")], FleetFigures(fleet=1, dead=1)),
    "is unhealthy and paused": (
        LATE,
        ["INSERT INTO pauses (machine_id, owner, reason) VALUES (:id, 'me', '?')"],
        FleetFigures(fleet=1),
    ),
    "was rebooted": ({}, [REBOOTED.format("1 minute")], FleetFigures(fleet=1, dead=1, steps=1, steps_six_hours=1)),
    "was rebooted hours ago": ({}, [REBOOTED.format("5 hours")], FleetFigures(fleet=1, dead=1, steps_six_hours=1)),
    "was rebooted and failed for good": (
        {},
        [
            REBOOTED.format("1 minute"),
            "UPDATE machine_provided SET provider_status = 'ProvisioningFailedPermanent' WHERE machine_id = :id",
        ],
        FleetFigures(steps=1, steps_six_hours=1),
    ),
    "was rebooted and reports": (
        REPORTS,
        [REBOOTED.format("1 minute")],
        FleetFigures(fleet=1, reporting=1, dead=1, heard=1, steps=1, steps_six_hours=1),
    ),
    "did not come back": ({}, [GRACE, FAILED.format("unreached")], FleetFigures(fleet=1, dead=1, unreached=1)),
    "did not come back, which is our fault": ({}, [GRACE, FAILED.format("access")], FleetFigures()),
    "has no agent yet": ({}, [], FleetFigures()),
    "never came up": (
        {},
        [
            "UPDATE machines SET machine_created_at = now() - interval '7 hours' WHERE machine_id = :id",
            FAILED.format("unreached"),
        ],
        FleetFigures(fleet=1, dead=1, unreached=1),
    ),
    "is quarantined": (
        LATE,
        ["INSERT INTO machine_quarantine VALUES (:id, now(), '?', 'steps-used-up')"],
        FleetFigures(),
    ),
}


def figures_of(fleet: Fleet, *states: str) -> FleetFigures:
    for state in states:
        ages, statements, _ = STATES[state]
        (machine,) = fleet.machines(1, **ages)
        for statement in statements:
            fleet.sql(statement, id=machine)
    found = budget.read_fleet(fleet.open_session(), PROVIDER)
    return sum((each for each in found if each.location is not None), FleetFigures())


@pytest.mark.parametrize("state", STATES)
def test_each_machine_is_counted_by_its_facts(fleet: Fleet, state: str) -> None:
    assert figures_of(fleet, state) == STATES[state][-1]


def test_agents_that_started_count_beside_machines_that_are_unreached(fleet: Fleet) -> None:
    """They show that SSH works."""
    assert figures_of(fleet, "did not come back", "is new") == FleetFigures(fleet=2, dead=1, unreached=1, reached=1)


@pytest.mark.parametrize(
    ("state", "unreached"),
    [("was rebooted", 3), ("was rebooted hours ago", 2), ("was rebooted and failed for good", 2)],
)
def test_a_machine_is_awaited_beside_unreached_ones_for_an_hour(fleet: Fleet, state: str, unreached: int) -> None:
    assert figures_of(fleet, "did not come back", "did not come back", state).unreached == unreached
