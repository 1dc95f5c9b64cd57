import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from shepherd_core.bmdb.machines.overview import FleetCount, Unsteady
from shepherd_core.bmdb.recovery.budget import ShownBudget
from shepherd_core.bmdb.wire.server import Transaction
from shepherd_core.bmdb.work.ticks import Tick
from shepherd_core.domain.budget import Brake
from shepherd_core.domain.errors.kinds import FailureKind
from shepherd_core.domain.records import BadAgent
from shepherd_core.domain.states import State
from shepherd_core.settings.functions.specs import LOOPS

from shepherdctl.descriptions.condition import AWS_ALONE, Condition, ConditionName
from shepherdctl.descriptions.conditions import FleetStatus, conditions, only
from tests.support.console import parsed
from tests.support.metrics_page import documented

NOW = datetime(2026, 11, 23, 3, tzinfo=UTC)
MINUTES = dict.fromkeys(LOOPS, 1) | {"updater": 10}
PAGE = (Path(__file__).parents[2] / "docs" / "conditions.md").read_text(encoding="utf-8")


def count(state: State, machines: int = 1, location: str | None = None, age_class: int | None = 1) -> FleetCount:
    return FleetCount("redfish", location, state, {str(age_class): machines}, machines, 0, 0, 0)


def tick(loop: str, minutes_ago: float = 1, **changes: Any) -> Tick:
    ended = NOW - timedelta(minutes=minutes_ago)
    return replace(Tick(loop, "redfish", ended, ended, 1, "Succeeded", None, None, {}, None, None, "1"), **changes)


def counting(loop: str, **counts: float) -> Tick:
    return tick(loop, counts=counts)


MACHINES = [count(State.RUNNING), count(State.UNHEALTHY)]
TICKS = [tick(loop) for loop in LOOPS]
WELL = FleetStatus(NOW, 0, -60, MACHINES, [], [], [], [], 0, None, None, False, False, TICKS)


def fleet(*ticks: Tick, **changes: Any) -> FleetStatus:
    """Return a fleet that is well but for *changes*, and for *ticks*, which replace those of their loops."""
    replaced = {each.loop for each in ticks}
    return replace(WELL, ticks=[*ticks, *(each for each in TICKS if each.loop not in replaced)], **changes)


def wrong(*ticks: Tick, **changes: Any) -> list[Condition]:
    return conditions(fleet(*ticks, **changes), MINUTES)


def test_a_fleet_that_is_well_has_no_condition() -> None:
    """Unhealthy machines are repaired without anybody, and no figure is more than it may be."""
    assert wrong() == []
    waited, slow = counting("initializer", oldest_due_age_seconds=1800), tick("recoverer", seconds=144)
    late = tick("updater", 34)  # its interval is ten minutes
    assert wrong(waited, slow, late, clock_ahead_seconds=300, checkpoint_ahead_seconds=60) == []
    assert wrong(machines=[count(State.STARTING, 2, age_class=None)]) == [], "before the first report"


BEGAN = NOW - timedelta(hours=3)
BUDGET = ShownBudget("redfish", "", 0, Brake.SILENT, "no machine reports", NOW - timedelta(hours=2), 4)
RACKS = [count(State.UNHEALTHY, 3, "r1"), count(State.UNHEALTHY, 1, "r2")]
FAILED: dict[str, Any] = {"outcome": "Failed", "kind": FailureKind.CONFIG_ERROR, "cause": "no bucket"}
AWAY: dict[str, Any] = {"outcome": "Failed", "kind": FailureKind.PROVIDER_UNAVAILABLE, "cause": "503"}
DRIFT: dict[str, Any] = FAILED | {"kind": FailureKind.DRIFT_LIMIT_EXCEEDED, "cause": "9 of 9"}
SILENT = [count(State.RUNNING, 2, age_class=0), count(State.UNHEALTHY, 3, age_class=0)]
NO_WRITES = "database-read-only: the database takes no writes:"
JUMPED = "clock-jumped: the database's clock"
DIFFERS = "clock-differs: the database's clock is"
NOTHING_RUNS = "the one here: until they agree, no loop runs and no heartbeat is taken"
LIMITED = "recovery-limited: recovery takes"
NO_ANSWER = "provider-away: redfish does not answer as it should:"
WRONG: dict[str, FleetStatus] = {
    f"{NO_WRITES} it is a standby, or was made read-only": fleet(read_only=True),
    f"{NO_WRITES} its disk is full": fleet(full=True),
    f"{DIFFERS} 2 h ahead of {NOTHING_RUNS}": fleet(clock_ahead_seconds=7_200, checkpoint_ahead_seconds=7_140),
    f"{DIFFERS} 5 min behind {NOTHING_RUNS}": fleet(clock_ahead_seconds=-301),
    f"{JUMPED} was ahead by 119 min or more, and was corrected": fleet(checkpoint_ahead_seconds=7_140),
    f"{LIMITED} no step: redfish, the whole provider; no machine reports; unhealthy: 3 at r1, 1 at r2": fleet(
        budgets=[BUDGET], machines=RACKS
    ),
    f"{LIMITED} at most 1 step an hour: redfish, location r 1; no machine reports": fleet(
        budgets=[replace(BUDGET, location="r 1", per_hour=1)]
    ),
    "loop-late: the Recoverer of redfish has not run for 20 min": fleet(tick("recoverer", 20)),
    "loop-late: the Updater of redfish has not run for 36 min": fleet(tick("updater", 36)),
    "loop-fails: the Updater of redfish failed: config-error: no bucket": fleet(tick("updater", **FAILED)),
    "loop-fails: the Updater of redfish was cut off": fleet(tick("updater", outcome="Expired")),
    f"{NO_ANSWER} Provisioner, Updater failed with provider-unavailable: 503": fleet(
        tick("updater", **AWAY), tick("provisioner", 2, **AWAY)
    ),
    "drift-limit-exceeded: the Provisioner of redfish failed: drift-limit-exceeded: 9 of 9": fleet(
        tick("provisioner", **DRIFT)
    ),
    "no-reports: no machine of redfish has reported for half an hour": fleet(machines=SILENT),
    "long-wait: a machine has waited for the Initializer of redfish for 30 min": fleet(
        counting("initializer", oldest_due_age_seconds=1801)
    ),
    "loop-slow: the Recoverer of redfish took 2 min, and is killed after 180 s": fleet(tick("recoverer", seconds=145)),
    "old-transaction: a transaction of alice (psql) has been open for 11 min, and slows every claim": fleet(
        oldest_transaction=Transaction("open", 42, "alice", "psql", None, 660)
    ),
    "quarantined: 2 machines of redfish in quarantine": fleet(machines=[count(State.QUARANTINED, 2)]),
    "bad-agent: no step is taken: the agent ab12 fails on 3 machines, with agent-exited, and runs on none": fleet(
        bad_agents=[BadAgent("ab12", FailureKind.AGENT_EXITED, 3)]
    ),
    "reports-again: 1 machine of ec2 in quarantine, and the agent reports": fleet(unsteady=[Unsteady("ec2", 0, 1)]),
    "recovered-often: 2 machines of ec2 recovered more than five times in a day": fleet(
        unsteady=[Unsteady("ec2", 2, 0)]
    ),
    "places-lost: 2 places of redfish lost to machines that failed for good there": fleet(
        machines=[count(State.FAILED, 2)]
    ),
    "settings-refused: the settings document was refused: the Updater of redfish works with the last good one": fleet(
        counting("updater", settings_refused=1)
    ),
    "no-access: 1 machine of redfish let no agent start until you act": fleet(counting("recoverer", no_access=1)),
    "drifted: 2 machines of redfish differ between provider and BMDB": fleet(counting("provisioner", drifted=2)),
    "found-alive: 3 machines of redfish did not report and answered over SSH": fleet(
        counting("recoverer", found_alive=3)
    ),
}


@pytest.mark.parametrize("told", WRONG)
def test_a_condition_is_told_from_its_figure_on(told: str) -> None:
    assert [f"{each.name}: {each.text}" for each in conditions(WRONG[told], MINUTES)] == [told]


def test_what_lasts_is_told_with_its_beginning() -> None:
    names = ("no_access", "found_alive", "settings_refused")
    lasting = dict.fromkeys(names, (tick("recoverer").ended_at - BEGAN).total_seconds())
    for ticks, conditions_found in (
        ([tick("updater", **FAILED, failing_since=BEGAN)], 1),
        ([tick("updater", **AWAY, failing_since=BEGAN), tick("provisioner", **AWAY, failing_since=NOW)], 1),
        ([tick("recoverer", counts=dict.fromkeys(names, 1), lasting=lasting)], 3),
    ):
        assert [each.since for each in wrong(*ticks)] == [BEGAN] * conditions_found
    (found,) = wrong(machines=[count(State.QUARANTINED)], unsteady=[Unsteady("redfish", 0, 0, BEGAN)])
    assert found.since == BEGAN


def test_a_loop_that_never_ran_is_missed() -> None:
    """Who deploys finds the one that was not started; the ticks of a loop that died go after two weeks."""
    some, none = [each for each in TICKS if each.loop != "recoverer"], replace(WELL, machines=[], ticks=[])
    (found,) = conditions(replace(WELL, ticks=some), MINUTES)
    assert (found.name, found.text) == ("loop-late", "the Recoverer of redfish has not run in the last two weeks")
    assert conditions(replace(WELL, ticks=some), MINUTES | {"recoverer": 0}) == []
    (found,) = conditions(none, MINUTES)
    assert (found.name, found.text) == ("loop-late", "no loop has run in the last two weeks")
    assert conditions(none, dict.fromkeys(LOOPS, 0)) == []
    static = [replace(each, provider="static") for each in some]
    assert conditions(replace(none, ticks=static), MINUTES) == [], "it cannot reboot"
    unused = [replace(tick(loop, 2_000), provider="ec2") for loop in LOOPS]
    assert conditions(replace(WELL, ticks=[*TICKS, *unused]), MINUTES) == []


def test_urgency_comes_before_size_and_size_before_duration() -> None:
    budgets = [replace(BUDGET, location="r1", began_at=NOW), replace(BUDGET, location="r2")]
    budgets.append(replace(BUDGET, location="r3", began_at=NOW, waiting=20))
    found = wrong(tick("updater", **FAILED), machines=[count(State.QUARANTINED)], budgets=budgets)
    assert [each.name for each in found] == [*["recovery-limited"] * 3, "loop-fails", "quarantined"]
    assert [each.location for each in found[:3]] == ["r3", "r2", "r1"]


@pytest.mark.parametrize(
    ("provider", "location", "shown"),
    [
        (None, None, ["old-transaction", "redfish", "redfish r1", "ec2"]),
        ("redfish", None, ["old-transaction", "redfish", "redfish r1"]),
        ("redfish", "r2", ["old-transaction", "redfish"]),
        (None, "r1", ["old-transaction", "redfish", "redfish r1"]),
        (None, "r2", ["old-transaction", "redfish"]),
        ("ec2", None, ["old-transaction", "ec2"]),
    ],
)
def test_the_conditions_of_a_location_are_those_of_its_provider(
    provider: str | None, location: str | None, shown: list[str]
) -> None:
    of_all = Condition(ConditionName.OLD_TRANSACTION, "", "")
    of_one = replace(of_all, name=ConditionName.RECOVERY_LIMITED, provider="redfish")
    found = [of_all, of_one, replace(of_one, location="r1"), replace(of_one, provider="ec2")]
    counts = [count(State.RUNNING, 1, "r1"), count(State.RUNNING, 1, "r2"), replace(MACHINES[0], provider="ec2")]
    left = only(found, provider, location, counts)
    assert [" ".join(filter(None, (each.provider, each.location))) or each.name for each in left] == shown


@pytest.mark.parametrize("location", ["rack 1; true", ""])
def test_the_command_of_a_cure_can_be_typed(location: str) -> None:
    """It is copied at night; a name from outside may be anything."""
    for brake in Brake:
        (found,) = wrong(budgets=[replace(BUDGET, location=location, brake=brake)])
        _, causes, _, reboot, _ = found.cure.split("`")
        assert parsed(causes)
        assert parsed(reboot)


def test_each_alarm_has_its_condition_and_each_condition_its_row() -> None:
    """What wakes somebody is what the commands say, but for figures that only AWS has."""
    alarms = documented("Alarms").keys()
    assert {alarm for name in ConditionName for alarm in name.alarms} == alarms - AWS_ALONE
    assert alarms >= AWS_ALONE
    rows = re.findall(r'^\| <a id="([a-z-]+)"></a>`\1` \| (urgent|warning) \|', PAGE, re.MULTILINE)
    assert rows == [(name.value, name.severity.value) for name in ConditionName]
