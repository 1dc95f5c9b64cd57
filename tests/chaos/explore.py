"""
Crash-point exploration: kill an invocation at each external side effect, then let the schedules continue.

The invariants are checked after every effect of every invocation, also of those
that are not killed.
"""

import itertools
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from random import Random

from shepherd_core.domain.errors import ShepherdError

from tests.chaos.crash_points import KillAt, Points, alive
from tests.chaos.invariants import violations
from tests.chaos.scenarios.loops import Scenario
from tests.chaos.stage.environment import Environment

TICKS = 24
"""The environment must have converged after so many ticks, wherever the first was killed."""

OUTAGE_SECONDS = 4 * 3600 + 1.0
"""If the next tick comes after so long, sessions have expired, and backoffs, penalties and boot waits are over."""
SOON_SECONDS = 61.0
"""If it comes after so long, the session of the killed invocation has expired, and nothing else is over."""
TICK_SECONDS = 280
"""Between ticks, so that functions have always run two to seven minutes ago."""


@dataclass
class Explored:
    effects: int = 0
    """External effects of one undisturbed invocation."""
    kills: int = 0
    ticks: int = 0
    checks: int = 0
    breaks: list[object] = field(default_factory=list)
    """Of a network."""
    schedules: int = 0
    steps: int = 0
    waits: int = 0
    """How often an invocation waited for another's row lock."""
    missed: int = 0
    """Schedules that did not run as planned, because the server granted locks in another order."""
    left: int = 0
    """Known schedules that there was no time for."""
    invocations: int = 0
    errors: set[str] = field(default_factory=set)
    """Of concurrent invocations; allowed, since another may have been faster."""
    broken: list[str] = field(default_factory=list)
    """Broken promises, each with the crash point or the schedule."""
    trace: list[str] = field(default_factory=list)
    """The steps of a schedule, of several the last one that broke a promise."""


def explore(scenario: Scenario, gap: float) -> Explored:
    """Kill *scenario* before and after every effect, until that breaks a promise."""
    explored = Explored()
    for after in (False, True):
        for number in itertools.count(1):
            if explored.broken or not _explore_one(scenario, explored, gap, KillAt(number, after=after)):
                break
    return explored


def explore_sample(scenario: Scenario, gap: float, chance: Random) -> Explored:
    """Kill *scenario* before one effect and after one, as *chance* chooses them."""
    explored = undisturbed(scenario)
    for after in (False, True):
        # The first invocation in a process may have more effects than the others.
        while not _explore_one(scenario, explored, gap, KillAt(chance.randint(1, explored.effects), after=after)):
            continue
    return explored


def explore_pairs(scenario: Scenario, chance: Random, more: Callable[[], bool]) -> Explored:
    """Kill *scenario* at an effect, then again in the next tick, until *more* returns False."""
    explored = undisturbed(scenario)
    while more():
        kills = [KillAt(chance.randint(1, explored.effects), after=chance.random() < 1 / 2) for _ in range(2)]
        _explore_one(scenario, explored, chance.choice((SOON_SECONDS, OUTAGE_SECONDS)), *kills)
    return explored


def undisturbed(scenario: Scenario) -> Explored:
    explored = Explored()
    _explore_one(scenario, explored, OUTAGE_SECONDS, KillAt())
    return explored


def _explore_one(scenario: Scenario, explored: Explored, gap: float, *kills: KillAt) -> bool:
    """Kill one invocation after the other, then let the schedules continue; False: the first had fewer effects."""
    with closing(scenario.arrange()) as environment:
        broken: list[str] = []
        for number, kill in enumerate(kills):
            if number:
                environment.pass_time(gap)
            broken += invoke(scenario, environment, explored, kill)
            environment.fleet.disconnect()  # as the operating system does for a killed process
            if not number and not kill.killed:
                explored.effects = len(kill.names)
                explored.broken += [f"{scenario.name}, undisturbed: {each}" for each in broken]
                return False
            explored.kills += kill.killed
        broken += [] if broken else converge(scenario, environment, explored, gap)
        where = " and ".join(str(kill) for kill in kills)
        explored.broken += [f"{scenario.name}, {where}: {each}" for each in broken]
    return True


def invoke(scenario: Scenario, environment: Environment, explored: Explored, kill: KillAt) -> list[str]:
    found: list[str] = []

    def watch() -> None:
        explored.checks += 1
        found.extend(each for each in violations(environment, watched=True) if each not in found)

    watch()
    with Points(kill, watch) as points:
        if alive(lambda: (scenario.tick(environment, points),)) is not None and kill.killed:
            found.append("some code caught the kill")
    watch()
    return found


def converge(
    scenario: Scenario, environment: Environment, explored: Explored, gap: float = OUTAGE_SECONDS
) -> list[str]:
    """Let the schedules continue until nothing is missing; return the promises that were broken meanwhile."""
    missing: list[str] = []
    for tick in range(TICKS):
        environment.pass_time(TICK_SECONDS if tick else gap)
        try:
            broken = invoke(scenario, environment, explored, KillAt())
        except ShepherdError as error:
            broken = [f"an undisturbed tick failed: {type(error).__name__}: {error}"]
        environment.fleet.disconnect()
        explored.ticks += 1
        missing = scenario.missing(environment)
        if not missing or broken:
            return broken
    return [f"not converged after {TICKS} ticks: {each}" for each in missing]
