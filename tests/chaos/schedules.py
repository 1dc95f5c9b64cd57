from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from random import Random
from typing import Protocol

from tests.chaos.concurrent_runs import Action, Choices, Scheduler, Stop, normal
from tests.chaos.crash_points import Points
from tests.chaos.explore import SOON_SECONDS, Explored, converge
from tests.chaos.scenarios.fleet_operation import Cast
from tests.chaos.scenarios.loops import Scenario
from tests.chaos.stage.environment import Environment


class Play(Scenario, Protocol):
    def cast(self, environment: Environment, points: Points, chance: Random) -> Cast:
        """Return the invocations to run concurrently, by name; *chance* may choose them."""


class Concurrent:
    """*count* concurrent invocations of one loop, in the scenario of that loop."""

    def __init__(self, scenario: Scenario, count: int = 2) -> None:
        self.name = f"{count} x {scenario.name}"
        self.arrange, self.tick, self.missing = scenario.arrange, scenario.tick, scenario.missing
        self._count = count

    def cast(self, environment: Environment, points: Points, chance: Random) -> Cast:
        return {f"invocation {number}": lambda: self.tick(environment, points) for number in range(1, self._count + 1)}


class Chance:
    """Chooses at random: which invocation continues, which is killed, and when a session's time passes."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._interrupts = chance.choice((0.05, 0.3, 0.8))
        self._kills, self._leaps = 1, 2

    def __call__(self, stopped: list[Stop], last: str | None) -> tuple[Action, Stop]:
        mine = [stop for stop in stopped if stop.actor == last]
        stop = self._chance.choice(mine if mine and self._chance.random() >= self._interrupts else stopped)
        if self._leaps and self._chance.random() < 0.02:
            self._leaps -= 1
            return Action.PASS_TIME, stop
        if self._kills and self._chance.random() < 0.01:
            self._kills -= 1
            return self._chance.choice((Action.KILL_BEFORE, Action.KILL_AFTER)), stop
        return Action.CONTINUE, stop


class Interrupting:
    """Lets each invocation continue to its end, except at the steps of a plan, where another one continues."""

    def __init__(self, plan: Mapping[int, str]) -> None:
        self._plan = plan
        self.missed = False
        """Whether a planned interruption was impossible, because the server granted the lock to another invocation."""
        self.others: list[tuple[list[str], bool]] = []
        """For each step: which others could have continued, and whether that would have been an interruption."""

    def __call__(self, stopped: list[Stop], last: str | None) -> tuple[Action, Stop]:
        actors = sorted({stop.actor for stop in stopped})
        usual = last if last in actors else actors[0]
        chosen = self._plan.get(len(self.others), usual)
        self.others.append(([actor for actor in actors if actor != usual], usual == last))
        self.missed |= chosen not in actors
        return Action.CONTINUE, next((stop for stop in stopped if stop.actor == chosen), stopped[0])


def play(scenario: Play, choices: Choices, chance: Random) -> Explored:
    with closing(scenario.arrange()) as environment:
        scheduler = Scheduler(environment, choices)
        points = Points(scheduler)
        ran = scheduler.run(scenario.cast(environment, points, chance), points)
        environment.fleet.disconnect()
        ran.broken += [] if ran.broken else converge(scenario, environment, Explored(), SOON_SECONDS)
    return ran


def play_seeds(scenario: Play, seeds: Iterable[int]) -> Explored:
    played = Explored()
    for seed in seeds:
        chance = Random(seed)
        _add(played, f"{scenario.name}, seed {seed}", play(scenario, Chance(chance), chance))
    return played


def play_all(scenario: Play, interruptions: int, chance: Random, more: Callable[[], bool]) -> Explored:
    """Play the schedules with at most so many interruptions, fewest first, until *more* returns False."""
    played = Explored()
    plans: list[list[dict[int, str]]] = [[{}], *([] for _ in range(interruptions))]
    while (count := next((number for number, found in enumerate(plans) if found), None)) is not None:
        if not more():
            break
        plan = plans[count].pop(chance.randrange(len(plans[count])))
        choices = Interrupting(plan)
        _add(played, f"{scenario.name}, {plan}", play(scenario, choices, Random(0)))
        played.missed += choices.missed
        for step in range(max(plan, default=-1) + 1, len(choices.others)):
            others, interrupts = choices.others[step]
            if count + interrupts <= interruptions:
                plans[count + interrupts] += [{**plan, step: other} for other in others]
    played.left = sum(len(found) for found in plans)
    return played


def _add(played: Explored, name: str, ran: Explored) -> None:
    played.schedules += 1
    played.steps += len(ran.trace)
    played.kills += ran.kills
    played.waits += ran.waits
    played.broken += [f"{name}: {each}" for each in ran.broken]
    played.trace = [name, *normal(ran.trace), *ran.errors] if ran.broken else played.trace
