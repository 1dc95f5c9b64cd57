"""Which schedules are played: by chance from a seed, or all that interrupt invocations so many times at most."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Protocol

from tests.chaos.concurrent_runs import Choices, Deed, Ran, Scheduler, Stop
from tests.chaos.crash_points import Points
from tests.chaos.explore import SOON_SECONDS, Explored, converge
from tests.chaos.scenarios import Scenario

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.chaos.stage.environment import World

Cast = dict[str, "Callable[[], object]"]

_DEATHS = 1
_LEAPS = 2


class Play(Scenario, Protocol):
    """A scenario for several at once."""

    def cast(self, world: World, points: Points, chance: Random) -> Cast:
        """Return invocations to be run beside each other, by name; which ones may be left to *chance*."""


class Twins:
    """*count* invocations of the same loop in the scenario of that loop."""

    def __init__(self, scenario: Scenario, count: int = 2) -> None:
        self.name = f"{count} x {scenario.name}"
        self.arrange, self.tick, self.missing = scenario.arrange, scenario.tick, scenario.missing
        self._count = count

    def cast(self, world: World, points: Points, chance: Random) -> Cast:
        """See ``Play``."""
        return {f"twin {number}": lambda: self.tick(world, points) for number in range(1, self._count + 1)}


class Chance:
    """Leaves everything to chance: who goes on, who dies, and when the time of a session passes."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._interrupts = chance.choice((0.05, 0.3, 0.8))
        self._deaths, self._leaps = _DEATHS, _LEAPS

    def choose(self, stopped: list[Stop], last: str | None) -> tuple[Deed, Stop]:
        """See ``Choices``."""
        mine = [stop for stop in stopped if stop.actor == last]
        stop = self._chance.choice(mine if mine and self._chance.random() >= self._interrupts else stopped)
        if self._leaps and self._chance.random() < 0.02:
            self._leaps -= 1
            return Deed.PASS_TIME, stop
        if self._deaths and self._chance.random() < 0.01:
            self._deaths -= 1
            return self._chance.choice((Deed.DIE_BEFORE, Deed.DIE_AFTER)), stop
        return Deed.GO_ON, stop


class Interrupting:
    """Lets each go on to its end, but at the steps of a plan, where another one's turn comes."""

    def __init__(self, plan: Mapping[int, str]) -> None:
        self._plan = plan
        self.missed = False
        """Whether an interruption of the plan could not be: the server took a lock from one and gave it to another."""
        self.others: list[tuple[list[str], bool]] = []
        """For each step: who else could have gone on, and whether that would have been an interruption."""

    def choose(self, stopped: list[Stop], last: str | None) -> tuple[Deed, Stop]:
        """See ``Choices``."""
        actors = sorted({stop.actor for stop in stopped})
        usual = last if last in actors else actors[0]
        chosen = self._plan.get(len(self.others), usual)
        self.others.append(([actor for actor in actors if actor != usual], usual == last))
        self.missed |= chosen not in actors
        return Deed.GO_ON, next((stop for stop in stopped if stop.actor == chosen), stopped[0])


@dataclass
class Played:
    """What came of all schedules of one kind."""

    schedules: int = 0
    steps: int = 0
    deaths: int = 0
    missed: int = 0
    """Schedules that did not turn out as planned, because of the order in which the server let waiters go on."""
    left: int = 0
    """Schedules that there was no time for, as far as they are known."""
    waits: int = 0
    """How often an invocation waited for a row that another one held."""
    broken: list[str] = field(default_factory=list)
    """Promises that were broken, each with the schedule that breaks it."""

    def add(self, name: str, ran: Ran) -> None:
        """Count one more."""
        self.schedules += 1
        self.steps += len(ran.trace)
        self.deaths += ran.deaths
        self.waits += ran.waits
        self.broken += [f"{name}: {each}" for each in ran.broken]


def play(scenario: Play, choices: Choices, chance: Random) -> Ran:
    """Play one schedule, let the world converge, and return what came of it."""
    world = scenario.arrange()
    try:
        scheduler = Scheduler(world, choices)
        points = Points(scheduler)
        ran = scheduler.run(scenario.cast(world, points, chance), points)
        world.fleet.disconnect()
        ran.broken += [] if ran.broken else converge(scenario, world, Explored(), SOON_SECONDS)
    finally:
        world.close()
    return ran


def play_seed(scenario: Play, seed: int) -> Ran:
    """Play the schedule that *seed* makes."""
    chance = Random(seed)
    return play(scenario, Chance(chance), chance)


def play_seeds(scenario: Play, seeds: Iterator[int]) -> Played:
    """Play the schedules of all *seeds*."""
    played = Played()
    for seed in seeds:
        played.add(f"{scenario.name}, seed {seed}", play_seed(scenario, seed))
    return played


def play_all(
    scenario: Play, interruptions: int, chance: Random | None = None, more: Callable[[], bool] = lambda: True
) -> Played:
    """
    Play every schedule in which invocations are interrupted *interruptions* times at most, the fewest first.

    While *more* says so; of those with as many interruptions, *chance* picks the next.
    """
    chance = chance or Random(0)
    played = Played()
    plans: list[list[dict[int, str]]] = [[{}], *([] for _ in range(interruptions))]
    while (count := next((number for number, found in enumerate(plans) if found), None)) is not None:
        if not more():
            break
        plan = plans[count].pop(chance.randrange(len(plans[count])))
        choices = Interrupting(plan)
        played.add(f"{scenario.name}, {plan}", play(scenario, choices, Random(0)))
        played.missed += choices.missed
        for step in range(max(plan, default=-1) + 1, len(choices.others)):
            others, interrupts = choices.others[step]
            if count + interrupts <= interruptions:
                plans[count + interrupts] += [{**plan, step: other} for other in others]
    played.left = sum(len(found) for found in plans)
    return played
