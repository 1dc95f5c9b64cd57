"""Lets a fault of the table meet its loop, ends it, lets the schedules go on, and tells what was not as it must be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shepherd_core.domain.errors import ShepherdError
from shepherd_core.telemetry import Metric

from tests.chaos.explore import Explored, converge
from tests.chaos.faults.at_machines import MACHINES
from tests.chaos.faults.at_provider import wait_for_what_comes_late
from tests.chaos.faults.fault import Way
from tests.chaos.faults.network import Tick
from tests.chaos.faults.stage import Stage
from tests.chaos.invariants import violations

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.chaos.faults.fault import AgentStarts, Bendable
    from tests.chaos.faults.stage import Fault
    from tests.chaos.stage.environment import World

_DISPUTED_ANYWAY = 1
"""A machine of the Provisioner's scenario has vanished."""


def endure(fault: Fault, scenario: Bendable) -> list[str]:
    """Return what is wrong with what came of *fault*."""
    scenario.way = Way()
    world = scenario.arrange()
    stage = Stage(scenario, world)
    try:
        with stage.undo:
            fault.begin(stage)
            shown = _shown(scenario, world)
            found = [each for each in violations(world) if not fault.plants or not each.startswith(fault.plants)]
        wrong = [] if shown == fault.shows else [f"it showed as {sorted(shown)} instead of {sorted(fault.shows)}"]
        return wrong + found + _recovered(scenario, world)
    finally:
        world.close()


def endure_machines(scenario: AgentStarts) -> list[str]:
    """Let every fault of a machine befall one of many, at once; return what is wrong with what came of that."""
    scenario.way = way = Way(connect_seconds=1, machine_seconds=8, answer_seconds=3)
    world = scenario.arrange()
    stage = Stage(scenario, world)
    try:
        with stage.undo:
            befallen = dict(zip(scenario.machines(), MACHINES, strict=False))
            for name, fault in befallen.items():
                fault.begin(stage, name, scenario.machines()[name])
            scenario.tick(world, Tick())
            world.fleet.disconnect()
            found = violations(world)
            expected = {name: befallen[name].cause if name in befallen else "Finished" for name in scenario.machines()}
            shown = {name: _end(world, str(machine_id)) for name, machine_id in scenario.machines().items()}
        assert way.addresses  # the faults bent it
        found += [
            f"{befallen[name].name if name in befallen else 'nothing'}: {end} instead of {expected[name]}"
            for name, end in shown.items()
            if end.split(":")[0] != expected[name]
        ]
        return found + _recovered(scenario, world)
    finally:
        world.close()


def _recovered(scenario: Bendable, world: World) -> list[str]:
    """End the fault, and let the schedules go on."""
    scenario.way = Way()
    try:
        wrong = converge(scenario, world, Explored())
    except ShepherdError as error:
        return [f"although all is well, an invocation ended with {error!r}"]
    wait_for_what_comes_late(world)
    return wrong + violations(world) + scenario.missing(world)


def _shown(scenario: Bendable, world: World) -> set[str]:
    """Carry out an invocation, and return how it showed that something was wrong."""
    shown: set[str] = set()
    counts: Mapping[Metric, float] = {}
    try:
        counts = scenario.tick(world, Tick())
    except ShepherdError as error:
        shown.add(f"fails {type(error).__name__}")
    finally:
        world.fleet.disconnect()
    causes = "SELECT DISTINCT split_part({}, ':', 1) FROM {}"
    for how, column, table in (
        ("cause", "failed_cause", "work_history WHERE event = 'Failed'"),
        ("penalty", "cause", "capacity_penalties"),
    ):
        shown |= {f"{how} {row[0]}" for row in world.fleet.sql(causes.format(column, table))}
    if counts.get(Metric.INCOMPLETE):
        shown.add("incomplete")
    if counts.get(Metric.DISPUTED, 0) > _DISPUTED_ANYWAY:
        shown.add("disputed")
    return shown


def _end(world: World, machine_id: str) -> str:
    """Return how the last work on a machine ended: its cause if it failed."""
    rows = world.fleet.sql(
        "SELECT coalesce(failed_cause, event) FROM work_history WHERE machine_id = :id ORDER BY timestamp DESC LIMIT 1",
        id=machine_id,
    )
    return str(rows[0][0]) if rows else "nothing"
