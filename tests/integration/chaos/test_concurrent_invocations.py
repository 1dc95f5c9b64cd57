"""
Concurrent invocations: interleaved at their effects one step at a time, and as real processes.

A sample of the schedules; ``make chaos`` plays more. Replay a schedule that breaks
a promise with ``python -m tests.chaos --replay NAME --seed N``.
"""

from collections.abc import Callable, Iterator
from random import Random

import pytest
from shepherd_core.bmdb.machines import lookup
from shepherd_core.domain.clock import SystemClock

from tests.chaos.concurrent_runs import Action, Scheduler, Stop, normal
from tests.chaos.crash_points import Points
from tests.chaos.sample import SEED, WHOLE, chance
from tests.chaos.scenarios.fleet_operation import FleetOperation, OperatorsAndAgents
from tests.chaos.scenarios.loops import OneCapacity, Provisioning, Recoveries
from tests.chaos.scenarios.records import Reports, Updates
from tests.chaos.scenarios.two_stacks import TwoStacks
from tests.chaos.schedules import Chance, Concurrent, Interrupting, Play, play, play_all, play_seed, play_seeds
from tests.chaos.stage.environment import Environment
from tests.chaos.stage.processes import Functions, explore_processes, load
from tests.support.bmdb.fleet import LEVELS, Fleet

# A killed thread does not close its sockets, as the operating system does for a process.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

SEEDS = 1
INTERRUPTED = 4
"""Number of schedules of two Provisioners; ``make chaos`` plays all."""
BESIDE = 4
"""Number of schedules of each pair of commands."""
EFFECTS = 48
"""Of a Provisioner in a process of its own, or a few more."""


@pytest.fixture(params=LEVELS)
def isolated(real_time: Fleet, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """Return a BMDB in the time of the day, at one of the isolation levels."""
    with real_time.isolated(request.param):
        yield real_time


@pytest.mark.parametrize(
    "make",
    [
        FleetOperation,
        OperatorsAndAgents,
        lambda fleet: Concurrent(Provisioning(fleet), 3),
        lambda fleet: Concurrent(Recoveries(fleet)),
        lambda fleet: Concurrent(Updates(fleet)),
        lambda fleet: Concurrent(Reports(fleet)),
        TwoStacks,
    ],
    ids=[
        "all_loops",
        "operators",
        "provisioner",
        "recoverer",
        "updater",
        "agent_api",
        "two_stacks",
    ],
)
def test_concurrent_invocations_keep_every_promise(isolated: Fleet, make: Callable[[Fleet], Play]) -> None:
    """Lambda may start a function twice, and the schedules start all functions in the same second."""
    played = play_seeds(make(isolated), iter(range(SEED, SEED + SEEDS)))
    assert played.broken == [], f"seed {SEED}"
    assert played.schedules == SEEDS


def test_two_provisioners_with_one_capacity_create_one_machine(isolated: Fleet) -> None:
    """A sample of the schedules with at most one interruption."""
    more = iter(range(INTERRUPTED))
    played = play_all(Concurrent(OneCapacity(isolated)), 1, Random(SEED), lambda: next(more, None) is not None)
    assert played.broken == [], f"seed {SEED}"
    assert played.schedules == INTERRUPTED
    assert played.left > 0


@pytest.mark.parametrize(
    "pair", [("unquarantine", "resume"), ("forget", "heartbeat"), ("forget", "report")], ids="+".join
)
def test_concurrent_commands_on_one_machine_keep_every_promise(isolated: Fleet, pair: tuple[str, str]) -> None:
    """Two commands in two shells, or a command at the moment of a heartbeat. ``make chaos`` plays all pairs."""
    more = iter(range(1_000 if WHOLE else BESIDE))
    played = play_all(OperatorsAndAgents(isolated, *pair), 1, Random(SEED), lambda: next(more, None) is not None)
    assert played.broken == [], f"seed {SEED}"
    assert played.schedules > 5 if WHOLE else played.schedules == BESIDE


def test_a_seed_replays_the_same_schedule(real_time: Fleet) -> None:
    """Otherwise the finding of a long run could not be repeated."""
    first, again = (normal(play_seed(Concurrent(Provisioning(real_time)), 7).trace) for _ in range(2))
    assert first == again


def test_the_scheduler_continues_another_while_one_waits_for_a_row(real_time: Fleet) -> None:
    """Otherwise an interruption in a transaction would stop all invocations."""
    # The first invocation stops while it holds the provider's lock.
    plan = {0: "invocation 1", 5: "invocation 2"}
    choices = Interrupting(plan)
    ran = play(Concurrent(OneCapacity(real_time)), choices, Random(0))
    assert ran.waits > 0
    assert ran.broken == []


def test_a_killed_invocation_releases_its_row_locks(real_time: Fleet) -> None:
    """The server ends an open transaction when the connection of its process closes."""
    ran = play(Concurrent(OneCapacity(real_time)), _KillsAt("COMMIT"), Random(0))
    assert ran.kills == 1
    assert ran.broken == []


class _KillsAt:
    """Kills the invocation that is the first to reach an effect."""

    def __init__(self, effect: str) -> None:
        self._effect = effect
        self._killed = False

    def choose(self, stopped: list[Stop], last: str | None) -> tuple[Action, Stop]:
        """See ``Choices``."""
        if not self._killed and stopped[0].effect.endswith(self._effect):
            self._killed = True
            return Action.KILL_BEFORE, stopped[0]
        return Action.CONTINUE, stopped[0]


def test_a_broken_promise_is_reported_at_the_step_that_breaks_it(real_time: Fleet) -> None:
    """Some violations are repaired before the invocation ends, and a check at the end would miss them."""
    environment = Environment(real_time, SystemClock())
    try:
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
    finally:
        environment.close()


@pytest.fixture(scope="module")
def functions() -> Iterator[Functions]:
    """Return functions that run as processes."""
    with Functions(2) as functions:
        yield functions


def test_after_sigkill_the_next_invocations_repair_everything(real_time: Fleet, functions: Functions) -> None:
    """A real function is ended by SIGKILL, not by an exception."""
    effect = chance("a process").randint(1, EFFECTS)
    explored = explore_processes(Provisioning(real_time), functions, range(effect, effect + 1))
    assert explored.broken == [], f"seed {SEED}"
    assert explored.kills == 2, "before it and after it"


def test_concurrent_processes_keep_every_promise(real_time: Fleet, functions: Functions) -> None:
    """Without the scheduler: real processes, signals and time."""
    loaded = load(real_time, functions, 2, 1.5, SEED)
    assert loaded.broken == [], f"seed {SEED}"
    assert loaded.invocations > 0
    assert "ConfigError" not in loaded.errors
