"""
Crash-point exploration: run to every outside effect, die there, and let the schedules go on.

The invariants are asked after every effect of every invocation, also of those
that nobody disturbs.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shepherd_core.domain.errors import ShepherdError

from tests.chaos.crash_points import Death, Points, alive
from tests.chaos.invariants import violations

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.chaos.scenarios import Scenario
    from tests.chaos.stage.environment import World

TICKS = 24
"""After so many ticks a world must have converged, wherever the first one died."""

OUTAGE_SECONDS = 4 * 3600 + 1.0
"""When the next tick comes after so long, sessions are dead, and backoffs, penalties and settle times over."""
SOON_SECONDS = 61.0
"""When it comes as soon as that, the dead session is dead, and nothing else is over."""
TICK_SECONDS = 280
"""Between ticks; a Recoverer that looks less often than that holds back."""


@dataclass
class Explored:
    """What was explored of a scenario."""

    effects: int = 0
    """Outside effects of one invocation that nobody disturbs."""
    deaths: int = 0
    ticks: int = 0
    checks: int = 0
    """How often all invariants were asked."""
    broken: list[str] = field(default_factory=list)
    """Promises that were broken, each with where the invocation had died."""


def explore(
    scenario: Scenario,
    *,
    stride: int = 1,
    first: int = 1,
    gap: float = OUTAGE_SECONDS,
    told: Callable[[str], None] = lambda _: None,
) -> Explored:
    """Die at every *stride*-th effect of *scenario* from the *first*, before and after it; return what came of it."""
    explored = Explored()
    for after in (False, True):
        for number in itertools.count(first, stride):
            died = _explore_one(scenario, explored, gap, Death(number, after=after))
            if not died:
                break
            told(f"{scenario.name}: {'after' if after else 'before'} effect {number}")
    return explored


def explore_pairs(scenario: Scenario, effects: int, chance: Random, more: Callable[[int], bool]) -> Explored:
    """
    Die at one of the *effects* of *scenario*, then again in the next tick, while *more* says so of the pairs so far.

    Whether that comes soon or late, and which effects they are, is left to *chance*.
    """
    explored = Explored(effects=effects)
    for pairs in itertools.count():
        if not more(pairs):
            return explored
        deaths = [Death(chance.randint(1, effects), after=chance.random() < 1 / 2) for _ in range(2)]
        _explore_one(scenario, explored, chance.choice((SOON_SECONDS, OUTAGE_SECONDS)), *deaths)
    raise AssertionError


def _explore_one(scenario: Scenario, explored: Explored, gap: float, *deaths: Death) -> bool:
    """Let one invocation after the other die, then the schedules go on; False: the first had not so many effects."""
    world = scenario.arrange()
    try:
        broken: list[str] = []
        for number, death in enumerate(deaths):
            if number:
                world.pass_time(gap)
            broken += invoke(scenario, world, explored, death)
            world.fleet.disconnect()  # what the operating system does for a dead process
            if not number and not death.dead:
                explored.effects = len(death.names)
                explored.broken += [f"{scenario.name}, undisturbed: {each}" for each in broken]
                return False
            explored.deaths += death.dead
        broken += [] if broken else converge(scenario, world, explored, gap)
        where = " and ".join(str(death) for death in deaths)
        explored.broken += [f"{scenario.name}, {where}: {each}" for each in broken]
    finally:
        world.close()
    return True


def invoke(scenario: Scenario, world: World, explored: Explored, death: Death) -> list[str]:
    """Carry out one invocation, and return the promises that were broken in it."""
    found: list[str] = []

    def watch() -> None:
        explored.checks += 1
        found.extend(each for each in violations(world, watched=True) if each not in found)

    with Points(death, watch) as points:
        if alive(lambda: (scenario.tick(world, points),)) is not None and death.dead:
            found.append("somebody caught its death")
    watch()
    return found


def converge(scenario: Scenario, world: World, explored: Explored, gap: float = OUTAGE_SECONDS) -> list[str]:
    """Let the schedules go on until nothing is missing; return the promises that were broken on the way."""
    missing: list[str] = []
    for tick in range(TICKS):
        world.pass_time(TICK_SECONDS if tick else gap)
        broken = world.disagreements()  # before the Updater may mend any
        if broken:
            return broken
        try:
            broken = invoke(scenario, world, explored, Death())
        except ShepherdError as error:
            broken = [f"a tick that nobody disturbed failed: {type(error).__name__}: {error}"]
        world.fleet.disconnect()
        explored.ticks += 1
        missing = scenario.missing(world)
        if not missing or broken:
            return broken + world.disagreements()
    return [f"not converged after {TICKS} ticks: {each}" for each in missing]
