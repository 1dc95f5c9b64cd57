"""Try a fault on its loop, end it, let the schedules continue, and return all differences from the table."""

from collections.abc import Mapping
from contextlib import closing

from shepherd_core.domain.errors import ShepherdError
from shepherd_core.telemetry import Metric

from tests.chaos.explore import Explored, converge
from tests.chaos.faults.at_machines import MACHINES
from tests.chaos.faults.at_provider import wait_for_timers
from tests.chaos.faults.fault import AgentStarts, FaultyScenario, Tick, cold
from tests.chaos.faults.stage import Fault, Stage
from tests.chaos.invariants import violations
from tests.chaos.stage.environment import Environment

_DRIFTED_ANYWAY = 1
"""The vanished machine of the Provisioner's scenario."""


def try_fault(fault: Fault, scenario: FaultyScenario) -> list[str]:
    """Try *fault*; return the violations and every difference from how it must show."""
    scenario.access = cold()
    with closing(scenario.arrange()) as environment:
        stage = Stage(scenario, environment)
        with stage.undo:
            fault.begin(stage)
            shown = _shown(scenario, environment)
            found = [each for each in violations(environment) if not fault.breaks or not each.startswith(fault.breaks)]
        wrong = [] if shown == fault.shows else [f"it showed as {sorted(shown)} instead of {sorted(fault.shows)}"]
        return wrong + found + _recovered(scenario, environment)


def try_machine_faults(scenario: AgentStarts) -> list[str]:
    """Try every machine fault at once, each on one machine of many; return all violations and differences."""
    scenario.access = access = cold(connect_seconds=1, machine_seconds=8, answer_seconds=3)
    with closing(scenario.arrange()) as environment:
        stage = Stage(scenario, environment)
        with stage.undo:
            faulty = dict(zip(scenario.ids, MACHINES, strict=False))
            for name, fault in faulty.items():
                fault.begin(stage, name, scenario.ids[name])
            scenario.tick(environment, Tick())
            environment.fleet.disconnect()
            found = violations(environment)
            expected = {name: faulty[name].cause if name in faulty else "Finished" for name in scenario.ids}
            shown = {name: _end(environment, str(machine_id)) for name, machine_id in scenario.ids.items()}
        assert access.addresses  # some faults change it
        found += [
            f"{faulty[name].name if name in faulty else 'nothing'}: {end} instead of {expected[name]}"
            for name, end in shown.items()
            if end.split(":")[0] != expected[name]
        ]
        return found + _recovered(scenario, environment)


def _recovered(scenario: FaultyScenario, environment: Environment) -> list[str]:
    scenario.access = cold()
    try:
        wrong = converge(scenario, environment, Explored())
    except ShepherdError as error:
        return [f"after the fault, an invocation ended with {error!r}"]
    wait_for_timers(environment)
    return wrong + violations(environment) + scenario.missing(environment)


def _shown(scenario: FaultyScenario, environment: Environment) -> set[str]:
    shown: set[str] = set()
    counts: Mapping[Metric, float] = {}
    try:
        counts = scenario.tick(environment, Tick())
    except ShepherdError as error:
        shown.add(f"fails {error.kind}")
    finally:
        environment.fleet.disconnect()
    for how, table in (("cause", "work_history WHERE kind IS NOT NULL"), ("penalty", "capacity_penalties")):
        shown |= {f"{how} {row[0]}" for row in environment.fleet.sql(f"SELECT DISTINCT kind FROM {table}")}
    if counts.get(Metric.INCOMPLETE):
        shown.add("incomplete")
    if counts.get(Metric.DRIFTED, 0) > _DRIFTED_ANYWAY:
        shown.add("drifted")
    return shown


def _end(environment: Environment, machine_id: str) -> str:
    """Return the end of the last work on a machine; for a failure, its cause."""
    rows = environment.fleet.sql(
        "SELECT coalesce(kind, event) FROM work_history WHERE machine_id = :id ORDER BY timestamp DESC LIMIT 1",
        id=machine_id,
    )
    return str(rows[0][0]) if rows else "nothing"
