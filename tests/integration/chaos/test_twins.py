"""
Invocations beside each other: interleaved at their effects one step at a time, and as real processes.

A part of the schedules here; ``make chaos`` plays more. A schedule that breaks a
promise is played again with ``python -m tests.chaos --twins NAME --seed N``.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
from shepherd_core.bmdb.machines import queries
from shepherd_core.domain.clock import SystemClock

from tests.chaos.concurrent_runs import Deed, Scheduler, normal
from tests.chaos.crash_points import Points
from tests.chaos.life import Beside, Life
from tests.chaos.sample import SEED, WHOLE
from tests.chaos.scenarios import OneCapacity, Overridden, Provisioning, Recoveries
from tests.chaos.schedules import Chance, Interrupting, Play, Twins, play, play_all, play_seed, play_seeds
from tests.chaos.stage.environment import World
from tests.chaos.stage.processes import Functions, explore_processes, load
from tests.chaos.stage.records import Reports, Updates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.chaos.concurrent_runs import Stop
    from tests.support.bmdb.fleet import Fleet

# The dead close no sockets. The operating system does that for a process, and here nobody.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

SEEDS = 1
INTERRUPTED = 8
"""Schedules of two Provisioners that are played; ``make chaos`` plays all."""
BESIDE = 4
"""The same of each pair of deeds."""


@pytest.mark.parametrize(
    "make",
    [
        Life,
        Beside,
        lambda fleet: Twins(Provisioning(fleet), 3),
        lambda fleet: Twins(Recoveries(fleet)),
        lambda fleet: Twins(Overridden(fleet)),
        lambda fleet: Twins(Updates(fleet)),
        lambda fleet: Twins(Reports(fleet)),
    ],
    ids=["all_loops", "operators", "provisioner", "recoverer", "overridden", "updater", "agent_api"],
)
def test_whatever_is_done_beside_each_other_keeps_every_promise(
    real_time: Fleet, make: Callable[[Fleet], Play]
) -> None:
    """Lambda starts a function twice, and the schedules start all of them in the same second."""
    played = play_seeds(make(real_time), iter(range(SEED, SEED + SEEDS)))
    assert played.broken == [], f"seed {SEED}"
    assert played.schedules == SEEDS


def test_two_provisioners_over_one_capacity_make_one_machine_however_one_interrupts_the_other(
    real_time: Fleet,
) -> None:
    """Schedules with one interruption at most, by the seed of the sample."""
    more = iter(range(INTERRUPTED))
    played = play_all(Twins(OneCapacity(real_time)), 1, Random(SEED), lambda: next(more, None) is not None)
    assert played.broken == [], f"seed {SEED}"
    assert played.schedules == INTERRUPTED
    assert played.left > 0


@pytest.mark.parametrize(
    "pair", [("unquarantine", "resume"), ("forget", "heartbeat"), ("forget", "report")], ids="+".join
)
def test_two_who_do_something_to_one_machine_keep_every_promise_however_one_interrupts_the_other(
    real_time: Fleet, pair: tuple[str, str]
) -> None:
    """Two commands in two shells, or a command in the moment of a heartbeat; the long form plays all pairs."""
    more = iter(range(1_000 if WHOLE else BESIDE))
    played = play_all(Beside(real_time, *pair), 1, Random(SEED), lambda: next(more, None) is not None)
    assert played.broken == [], f"seed {SEED}"
    assert played.schedules > 5 if WHOLE else played.schedules == BESIDE


def test_a_seed_makes_the_same_schedule_again(real_time: Fleet) -> None:
    """What a long run finds would be lost otherwise."""
    first, again = (normal(play_seed(Twins(Provisioning(real_time)), 7).trace) for _ in range(2))
    assert first == again


def test_whoever_waits_for_a_row_lets_another_go_on(real_time: Fleet) -> None:
    """Else nothing would ever be interrupted in a transaction: the first to be would stop them all."""
    # The first twin stops with the lock of the provider in its hand.
    plan = {0: "twin 1", 5: "twin 2"}
    choices = Interrupting(plan)
    ran = play(Twins(OneCapacity(real_time)), choices, Random(0))
    assert ran.waits > 0
    assert ran.broken == []


def test_the_dead_keep_no_row_from_the_living(real_time: Fleet) -> None:
    """An open transaction ends with the connection of its process, which the server sees."""
    ran = play(Twins(OneCapacity(real_time)), _KillsAt("COMMIT"), Random(0))
    assert ran.deaths == 1
    assert ran.broken == []


class _KillsAt:
    """Kills whoever comes first to an effect."""

    def __init__(self, effect: str) -> None:
        self._effect = effect
        self._killed = False

    def choose(self, stopped: list[Stop], last: str | None) -> tuple[Deed, Stop]:
        """See ``Choices``."""
        if not self._killed and stopped[0].effect.endswith(self._effect):
            self._killed = True
            return Deed.DIE_BEFORE, stopped[0]
        return Deed.GO_ON, stopped[0]


def test_a_broken_promise_is_seen_at_the_step_that_breaks_it(real_time: Fleet) -> None:
    """Some faults are repaired before the invocation ends; whoever looks then sees nothing."""
    world = World(real_time, SystemClock())
    try:
        machine_id = real_time.provided_machine()

        def careless() -> None:
            connection = world.connect()
            for change in ("process = NULL", "process = 'ShepherdAgentStart'"):
                connection.transact(lambda change=change: connection.script(f"UPDATE machine_due SET {change}"))  # type: ignore[misc]  # this change

        scheduler = Scheduler(world, Chance(Random(1)))
        ran = scheduler.run({"careless": careless}, Points(scheduler))
        assert {each.split(":")[0] for each in ran.broken} >= {"nobody_waits_for_ever"}
        assert queries.show_machine(real_time.connection, machine_id)["needs"] == "ShepherdAgentStart"
    finally:
        world.close()


@pytest.fixture(scope="module")
def functions() -> Iterator[Functions]:
    """Return what runs functions as processes."""
    with Functions(2) as functions:
        yield functions


def test_a_process_that_is_killed_leaves_nothing_that_the_next_cannot_mend(
    real_time: Fleet, functions: Functions
) -> None:
    """An exception, however rude, is not what happens to a function: SIGKILL is."""
    explored = explore_processes(Provisioning(real_time), functions, range(24, 1_000, 24))
    assert explored.broken == []
    assert explored.deaths >= 2


def test_processes_beside_each_other_keep_every_promise(real_time: Fleet, functions: Functions) -> None:
    """No scheduler, no threads of one process: PostgreSQL, signals and time as they are."""
    loaded = load(real_time, functions, 2, 1.5, SEED)
    assert loaded.broken == [], f"seed {SEED}"
    assert loaded.invocations > 0
    assert "ConfigError" not in loaded.errors
