"""A model of a fleet whose heartbeats get lost: real rules, the agent's real pauses, default settings."""

import random
from dataclasses import dataclass, field
from itertools import product

import pytest
from shepherd_core.domain.budget import WHOLE_PROVIDER, FleetFigures
from shepherd_core.rules.budget import budgets
from shepherd_core.settings.functions.services import AgentApiSettings

from agent.shepherd_agent.reports.heartbeat import pause_after
from tests.chaos.sample import drawn
from tests.support import defaults

TICK, HOUR = 60, 3_600
DURATION = 6 * HOUR
DIES_AT = 2 * HOUR
INTERVALS = [60, AgentApiSettings.model_fields["heartbeat_interval_seconds"].default]
LOSSES = [number / 10 for number in range(1, 10)]


@dataclass(slots=True)
class Machine:
    attempt_at: float
    """When its agent sends the next heartbeat."""
    interval: float
    failed: int = 0
    """How many requests were lost before its last heartbeat."""
    lost: int = 0
    last: float = 0.0
    """Its last heartbeat, or the start of its agent."""
    timeout: float = defaults.HEALTH.heartbeat_timeout_seconds
    not_before: float = 0.0

    def heard_within(self, now: float, seconds: float) -> bool:
        return self.timeout == defaults.HEALTH.heartbeat_timeout_seconds and now - self.last < seconds

    def report(self, now: float, loss: float, chance: random.Random) -> None:
        while self.attempt_at <= now:
            if chance.random() < loss:
                self.lost += 1
            else:
                self.last, self.failed, self.lost = self.attempt_at, self.lost, 0
                self.timeout = defaults.HEALTH.heartbeat_timeout_seconds
            self.attempt_at += pause_after(self.lost, self.interval, chance)


@dataclass
class Fleet:
    """Six hours of a fleet of which the first machine dies; each request is lost with the same probability."""

    size: int
    loss: float
    interval: float = INTERVALS[-1]
    look_loss: float = 0
    """How often a look at a machine that is alive fails; 1: there are no looks."""
    late: bool = False
    """A third of the machines reports just in time."""
    silent: bool = False
    """A third of the machines never reports, and answers looks."""
    interrupted: list[tuple[float, int]] = field(default_factory=list)
    """When, and which machine."""

    def __post_init__(self) -> None:
        chance = random.Random(f"{self.size} {self.loss} {self.interval}")
        self.looks = random.Random(f"looks {self.size} {self.loss} {self.interval}")
        self.machines = [Machine(chance.uniform(0, self.interval), self.interval) for _ in range(self.size)]
        for machine in self.machines[1 : 1 + self.size // 3]:
            machine.interval = 540 if self.late else self.interval  # within their timeout
            machine.attempt_at = DURATION if self.silent else machine.attempt_at
        for now in range(TICK, DURATION, TICK):
            if now == DIES_AT:
                self.machines[0].attempt_at = float("inf")
            for machine in self.machines:
                machine.report(now, self.loss, chance)
            self._recover(now)

    def _figures(self, now: float, unhealthy: list[int]) -> FleetFigures:
        reporting = [each for each in self.machines if each.heard_within(now, each.timeout)]
        heard = [each for each in reporting if each.heard_within(now, defaults.HEALTH.heartbeat_timeout_seconds / 2)]
        six_hours = {number for _, number in self.interrupted}
        return FleetFigures(
            fleet=self.size,
            reporting=len(reporting),
            dead=len({*unhealthy, *six_hours}),
            heard=len(heard),
            losing=sum(each.failed > 0 for each in heard),
            steps=len({number for at, number in self.interrupted if at > now - HOUR}),
            steps_six_hours=len(six_hours),
        )

    def _recover(self, now: float) -> None:
        unhealthy = [number for number, machine in enumerate(self.machines) if now - machine.last >= machine.timeout]
        figures = self._figures(now, unhealthy)
        per_hour = budgets({WHOLE_PROVIDER: figures}, defaults.LIMITS)[WHOLE_PROVIDER].per_hour
        left = min(per_hour - figures.steps, 2 * defaults.LIMITS.per_hour - figures.steps_six_hours)
        for number in sorted(unhealthy, key=lambda each: self.machines[each].last):
            machine = self.machines[number]
            alive = machine.attempt_at < float("inf") and self.looks.random() >= self.look_loss
            if machine.not_before > now:
                continue
            if not alive and left <= 0:
                machine.not_before = now + 300
                continue
            machine.last, machine.timeout = now, defaults.HEALTH.startup_timeout_seconds
            machine.not_before = now + defaults.TIMEOUTS.cooldown
            if not alive:
                left -= 1
                self.interrupted.append((now, number))


@pytest.mark.parametrize("interval", INTERVALS)
@pytest.mark.parametrize(
    ("size", "loss", "look_loss"),
    [
        *product([9], LOSSES, [0]),
        *product([10, 12, 20, 100], [0.5], [0]),
        (100, 0.9, 0),
        # A network that loses heartbeats may lose SSH as well: so far, agents that repeat what is lost are enough.
        *((size, loss, loss) for size, loss in product([9, 100], LOSSES[:4])),
        (100, 0.9, 1),  # nearly all of those that report have lost requests before
    ],
)
def test_no_healthy_machine_is_interrupted_whatever_is_lost(
    size: int, loss: float, look_loss: float, interval: float
) -> None:
    """For six hours; and a machine that is dead is recovered within twice the usual time, at up to half lost."""
    fleet = Fleet(size, loss, interval, look_loss)
    assert {number for _, number in fleet.interrupted} <= {0}
    if loss <= 0.5:
        usual = defaults.HEALTH.heartbeat_timeout_seconds + TICK
        assert DIES_AT < fleet.interrupted[0][0] <= DIES_AT + 2 * usual


@pytest.mark.parametrize("interval", INTERVALS)
@pytest.mark.parametrize(("size", "loss"), list(product([9, 100], [0.5, 0.7, 0.9])))
def test_where_looks_fail_more_the_budget_bounds_interruptions(size: int, loss: float, interval: float) -> None:
    """From half on, nothing tells a machine that is alive from a dead one; six hours cost less than a third wave."""
    fleet = Fleet(size, loss, interval, look_loss=loss)
    assert len({number for _, number in fleet.interrupted}) <= min(2 * defaults.LIMITS.per_hour, size)


@pytest.mark.parametrize("size", [9, 100])
def test_without_a_look_healthy_machines_are_interrupted(size: int) -> None:
    """So it is the look that protects them in this model, not a model that is too kind."""
    fleet = Fleet(size, 0.75, look_loss=1)
    assert {number for _, number in fleet.interrupted} - {0}


@pytest.mark.parametrize("size", [10, 12, 20, 100, 500])
@pytest.mark.parametrize("odd", ["late", "silent"])
def test_a_late_or_silent_third_delays_no_dead_machines_recovery(size: int, odd: str) -> None:
    """They harm nobody but themselves, by a lossy link or on purpose."""
    fleet = Fleet(size, 0, late=odd == "late", silent=odd == "silent")
    assert {number for _, number in fleet.interrupted} == {0}
    assert DIES_AT < fleet.interrupted[0][0] <= DIES_AT + HOUR


@pytest.mark.parametrize("size", [100, 1_000])
def test_large_fleets_keep_the_same_rules(size: int) -> None:
    for loss, interval in drawn(product([*LOSSES, None], INTERVALS), size):
        if loss is None:
            test_no_healthy_machine_is_interrupted_whatever_is_lost(size, 0.9, 1, interval)
            continue
        test_no_healthy_machine_is_interrupted_whatever_is_lost(size, loss, 0, interval)
        if loss in (0.5, 0.7, 0.9):
            test_where_looks_fail_more_the_budget_bounds_interruptions(size, loss, interval)
