"""
Concurrent invocations: interleaved at their effects one step at a time, and as real processes.

A sample of the schedules; ``make chaos`` plays more. ``CHAOS_SEED=N`` replays the schedule of a seed.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import combinations, count, takewhile
from random import Random

import pytest
from shepherd_core.bmdb.machines import lookup

from simulator.machines.pool import MachinePool
from tests.chaos.concurrent_runs import Action, Scheduler, Stop
from tests.chaos.crash_points import Points
from tests.chaos.sample import SECONDS, SEED, WHOLE, chance, more
from tests.chaos.scenarios.fleet_operation import COMMANDS, FleetOperation, OperatorsAndAgents, SshBrake, TwoStacks
from tests.chaos.scenarios.loops import Decommissioning, OneCapacity, Provisioning, Reports, Scenario, Updates
from tests.chaos.scenarios.recoveries import Reboots, Recoveries
from tests.chaos.schedules import Chance, Concurrent, Play, play, play_all, play_seeds
from tests.chaos.stage import processes
from tests.chaos.stage.environment import Environment
from tests.chaos.stage.processes import Functions, explore_processes, load
from tests.integration.chaos.conftest import Check
from tests.support.bmdb.fleet import LEVELS, Fleet

# A killed thread does not close its sockets, as the operating system does for a process.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

PLAYS: tuple[Callable[[Fleet], Play], ...] = (
    FleetOperation,
    OperatorsAndAgents,
    lambda fleet: Concurrent(Provisioning(fleet), 3),
    lambda fleet: Concurrent(Recoveries(fleet)),
    lambda fleet: Concurrent(Updates(fleet)),
    lambda fleet: Concurrent(Reports(fleet)),
    TwoStacks,
    # The others are played by `make chaos` alone.
    lambda fleet: Concurrent(Provisioning(fleet)),
    lambda fleet: Concurrent(OneCapacity(fleet)),
    lambda fleet: Concurrent(SshBrake(fleet)),
    lambda fleet: Concurrent(Decommissioning(fleet)),
    lambda fleet: Concurrent(Reboots(fleet)),
)
PAIRS = (("unquarantine", "resume"), ("forget", "heartbeat"), ("forget", "report"))
"""Of commands; ``make chaos`` plays all."""
SCHEDULES = 4
"""Number of schedules of two Provisioners, and of each pair of commands; ``make chaos`` plays more."""


@pytest.fixture(params=LEVELS)
def isolated(real_time: Fleet, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    with real_time.isolated(request.param):
        yield real_time


@pytest.mark.parametrize("make", PLAYS if SECONDS else PLAYS[:7], ids=lambda make: make(None).name)
def test_concurrent_invocations_keep_every_promise(
    isolated: Fleet, make: Callable[[Fleet], Play], check: Check
) -> None:
    """Lambda may start a function twice, and the schedules start all functions in the same second."""
    check(play_seeds(make(isolated), takewhile(more(1, 0.3 / len(PLAYS) / len(LEVELS)), count(SEED))))


def test_two_provisioners_with_one_capacity_create_one_machine(isolated: Fleet, check: Check) -> None:
    go_on = more(SCHEDULES, 0.3 / len(LEVELS))
    played = play_all(Concurrent(OneCapacity(isolated)), 2 if SECONDS else 1, Random(SEED), go_on)
    check(played)
    assert played.schedules >= SCHEDULES


@pytest.mark.parametrize("pair", tuple(combinations(COMMANDS, 2)) if SECONDS else PAIRS, ids="+".join)
def test_concurrent_commands_on_one_machine_keep_every_promise(
    isolated: Fleet, pair: tuple[str, str], check: Check
) -> None:
    check(play_all(OperatorsAndAgents(isolated, *pair), 1, Random(SEED), more(1_000 if WHOLE else SCHEDULES, 0)))


def test_the_scheduler_continues_another_while_one_waits_for_a_row(real_time: Fleet) -> None:
    """Otherwise an interruption in a transaction would stop all invocations."""

    def yielding(stopped: list[Stop], last: str | None) -> tuple[Action, Stop]:
        """Let another continue where one is about to count steps, as long as there is one."""
        others = [stop for stop in stopped if not stop.effect.endswith(" count_steps")]
        return Action.CONTINUE, (others or stopped)[0]

    ran = play(Concurrent(Recoveries(real_time)), yielding, Random(0))
    assert ran.waits > 0
    assert ran.broken == []


def test_a_broken_promise_is_reported_at_its_step(real_time: Fleet) -> None:
    """Some violations are repaired before the invocation ends, and a check at the end would miss them."""
    with closing(Environment(real_time)) as environment:
        machine_id = real_time.provided_machine()

        def careless() -> None:
            connection = environment.connect()
            for change in (
                "INSERT INTO machine_creation_intent SELECT machine_id, provider FROM machine_provided",
                "DELETE FROM machine_creation_intent",
            ):
                connection.transact(lambda change=change: connection.script(change))  # type: ignore[misc]  # this change

        scheduler = Scheduler(environment, Chance(Random(1)))
        ran = scheduler.run({"careless": careless}, Points(scheduler))
        assert {each.split(":")[0] for each in ran.broken} == {"related_rows_come_and_go_together"}
        assert lookup.show_machine(real_time.connection, machine_id).needs == "ShepherdAgentStart"


@pytest.fixture(scope="module")
def functions(racked: tuple[MachinePool, str]) -> Iterator[Functions]:
    with processes.functions(racked[1]) as functions:
        yield functions


@pytest.mark.parametrize("make", [Provisioning, Recoveries, Updates][: 3 if SECONDS else 1], ids=lambda make: make.name)
def test_after_sigkill_the_next_invocations_repair_everything(
    real_time: Fleet, functions: Functions, make: Callable[[Fleet], Scenario], check: Check
) -> None:
    effect = chance("a process").randint(1, 25)  # a Provisioner has as many, or a few more
    numbers = range(1, 1_000, 2) if SECONDS else range(effect, effect + 1)
    explored = explore_processes(make(real_time), functions, numbers)
    check(explored)
    assert explored.kills >= 2, "before it and after it"


def test_concurrent_processes_keep_every_promise(real_time: Fleet, functions: Functions, check: Check) -> None:
    loaded = load(real_time, functions, 4 if SECONDS else 2, max(1.5, 0.1 * SECONDS), SEED)
    check(loaded)
    assert loaded.invocations > 0
    assert "ConfigError" not in loaded.errors
