"""Crash-point exploration: run to every outside effect, die there, and let the schedules go on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.chaos.invariants import violations
from tests.chaos.points import Death, Points, alive

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.chaos.scenarios import Scenario
    from tests.chaos.world import World

TICKS = 24
"""After so many ticks a world must have converged, wherever the first one died."""

OUTAGE_SECONDS = 4 * 3600 + 1.0
"""Before the first of them so much time passes: sessions die, and backoffs, penalties and settle times end."""
TICK_SECONDS = 280
"""Between them; a Recoverer that looks less often than that holds back."""


@dataclass
class Explored:
    """What was explored of a scenario."""

    effects: int = 0
    """Outside effects of one invocation that nobody disturbs."""
    deaths: int = 0
    ticks: int = 0
    broken: list[str] = field(default_factory=list)
    """Promises that were broken, each with where the invocation had died."""


def explore(scenario: Scenario, *, stride: int = 1, told: Callable[[str], None] = lambda _: None) -> Explored:
    """Die at every *stride*-th effect of *scenario*, before it and after it, and return what came of it."""
    explored = Explored()
    for after in (False, True):
        number = 1
        while _die_at(scenario, number, explored, after=after):
            told(f"{scenario.name}: {'after' if after else 'before'} effect {number}")
            number += stride
    return explored


def _die_at(scenario: Scenario, number: int, explored: Explored, *, after: bool) -> bool:
    """Run *scenario* with a death at effect *number*; False: there are not so many."""
    world = scenario.arrange()
    try:
        death = Death(number, after=after)
        with Points(death) as points:
            alive(lambda: scenario.tick(world, points))
        world.fleet.disconnect()  # what the operating system does for a dead process
        if not death.dead:
            explored.effects = len(death.names)
            return False
        explored.deaths += 1
        where = f"{scenario.name}, dead {'after' if after else 'before'} effect {number} ({death.names[-1]})"
        explored.broken += [f"{where}: {each}" for each in violations(world)]
        explored.broken += [f"{where}: {each}" for each in converge(scenario, world, explored)]
    finally:
        world.close()
    return True


def converge(scenario: Scenario, world: World, explored: Explored) -> list[str]:
    """Let the schedules go on until nothing is missing; return the promises that were broken on the way."""
    broken: list[str] = []
    missing: list[str] = []
    for tick in range(TICKS):
        world.pass_time(TICK_SECONDS if tick else OUTAGE_SECONDS)
        with Points(Death()) as points:
            scenario.tick(world, points)
        world.fleet.disconnect()
        explored.ticks += 1
        broken += violations(world)
        missing = scenario.missing(world)
        if not missing or broken:
            return broken
    return [f"not converged after {TICKS} ticks: {each}" for each in missing]
