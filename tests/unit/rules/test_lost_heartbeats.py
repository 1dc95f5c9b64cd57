"""A model of a fleet whose heartbeats get lost: real rules, the agent's real pauses, default settings."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import product

import pytest
from shepherd_core.domain.health import LocationStats, Unhealthy
from shepherd_core.rules.circuit_breaker import BreakerLimits, over_number, over_share
from shepherd_core.settings.functions.services import AgentApiSettings

from agent.shepherd_agent.reports.heartbeat import pause_after
from tests.chaos.sample import drawn
from tests.support import defaults

TICK, HOUR = 60, 3_600
DURATION = 6 * HOUR
DIES_AT = 2 * HOUR
INTERVALS = [60, AgentApiSettings.model_fields["heartbeat_interval_seconds"].default]
LOSSES = [number / 10 for number in range(1, 10)]
STOPPED, NEVER = Unhealthy.STOPPED_REPORTING, Unhealthy.NEVER_REPORTED
TIMEOUTS = {STOPPED: defaults.HEALTH.heartbeat_timeout_seconds, NEVER: defaults.HEALTH.startup_timeout_seconds}


@dataclass(slots=True)
class Machine:
    """A machine as the BMDB knows it, and the pauses of its agent."""

    attempt_at: float
    """When its agent sends the next heartbeat."""
    interval: float
    failed: int = 0
    """How many requests were lost before its last heartbeat."""
    lost: int = 0
    last: float = 0.0
    """Its last heartbeat, or the start of its agent."""
    kind: Unhealthy = STOPPED
    """How it is unhealthy if it does not report in time."""
    not_before: float = 0.0

    def report(self, now: float, loss: float, chance: random.Random) -> None:
        """Send what is to be sent by then."""
        while self.attempt_at <= now:
            if chance.random() < loss:
                self.lost += 1
            else:
                self.last, self.kind, self.failed, self.lost = self.attempt_at, STOPPED, self.lost, 0
            self.attempt_at += pause_after(self.lost, self.interval, chance)


@dataclass
class Fleet:
    """A fleet of which the first machine dies; each request of an agent is lost with the same probability."""

    size: int
    loss: float
    interval: float = INTERVALS[-1]
    look_loss: float = 0
    """How often a look at a machine that is alive fails; 1: there are no looks."""
    limits: BreakerLimits = defaults.LIMITS
    restarts: int = 0
    interrupted: list[tuple[float, int]] = field(default_factory=list)
    """When, and which machine."""
    suspended: bool = False
    ended_at: float = float("-inf")

    def run(self) -> None:
        """Let the time pass."""
        chance = random.Random(f"{self.size} {self.loss} {self.interval}")
        self.looks = random.Random(f"looks {self.size} {self.loss} {self.interval}")
        self.machines = [Machine(chance.uniform(0, self.interval), self.interval) for _ in range(self.size)]
        for now in range(TICK, DURATION, TICK):
            if now == DIES_AT:
                self.machines[0].attempt_at = float("inf")
            for machine in self.machines:
                machine.report(now, self.loss, chance)
            self._recover(now)

    def _recover(self, now: float) -> None:
        """Run the Recoverer once: judge the fleet, then take a step on each machine that is due."""
        stats, overdue = LocationStats(), []
        for number, machine in enumerate(self.machines):
            missing = now - (max(self.ended_at, machine.last))
            timeout = TIMEOUTS[machine.kind]
            if 2 * missing >= timeout:
                stats.late[machine.kind] += 1
                if missing >= timeout and machine.not_before <= now:
                    stats.due[machine.kind] += 1
                    overdue.append(number)
            elif machine.kind is STOPPED and 2 * (now - machine.last) < timeout:
                stats.reporting += 1
                stats.heard += 1
                stats.losing += machine.failed > 0
        stats.recovered[STOPPED] = sum(at > now - HOUR for at, _ in self.interrupted)
        if self.suspended or self.ended_at > now - HOUR:
            stats.recovered_in_trouble[STOPPED] = sum(at > now - 6 * HOUR for at, _ in self.interrupted)
        fleet: dict[str | None, LocationStats] = {None: stats}
        suspended = bool(over_share(fleet, self.limits) or over_number(fleet, self.limits, ()))
        if self.suspended and not suspended:
            self.ended_at = now
        self.suspended = suspended
        for number in () if suspended else overdue:
            machine = self.machines[number]
            machine.last, machine.kind, machine.not_before = now, NEVER, now + defaults.TIMEOUTS.cooldown
            if machine.attempt_at < float("inf") and self.looks.random() >= self.look_loss:
                self.restarts += 1
            else:
                self.interrupted.append((now, number))


@pytest.mark.parametrize("interval", INTERVALS)
@pytest.mark.parametrize(
    ("size", "loss"),
    [*product([9], LOSSES), *product([10, 12, 20, 100], [0.5]), (100, 0.9)],
)
def test_no_healthy_machine_is_interrupted_whatever_is_lost(size: int, loss: float, interval: float) -> None:
    """For six hours; and a machine that is dead is recovered within twice the usual time, at up to half lost."""
    fleet = Fleet(size, loss, interval)
    fleet.run()
    assert {number for _, number in fleet.interrupted} <= {0}
    if loss <= 0.5:
        usual = TIMEOUTS[STOPPED] + TICK
        assert DIES_AT < fleet.interrupted[0][0] <= DIES_AT + 2 * usual


@pytest.mark.parametrize("interval", INTERVALS)
@pytest.mark.parametrize(("size", "loss"), list(product([9, 100], [0.1, 0.2, 0.3, 0.4])))
def test_no_healthy_machine_is_interrupted_where_looks_fail_as_often(size: int, loss: float, interval: float) -> None:
    """A network that loses heartbeats may lose SSH as well: so far, agents that repeat what is lost are enough."""
    fleet = Fleet(size, loss, interval, look_loss=loss)
    fleet.run()
    assert {number for _, number in fleet.interrupted} == {0}
    assert DIES_AT < fleet.interrupted[0][0] <= DIES_AT + 2 * (TIMEOUTS[STOPPED] + TICK)


@pytest.mark.parametrize("interval", INTERVALS)
@pytest.mark.parametrize(("size", "loss"), list(product([100], [0.5, 0.7, 0.9])))
def test_where_looks_fail_more_often_the_limits_bound_what_is_interrupted(
    size: int, loss: float, interval: float
) -> None:
    """From half on, nothing tells a machine that is alive from a dead one; six hours cost less than a third wave."""
    fleet = Fleet(size, loss, interval, look_loss=loss)
    fleet.run()
    assert len(fleet.interrupted) <= 2 * defaults.LIMITS.unhealthy.machines


@pytest.mark.parametrize("size", [9, 100])
def test_without_a_look_healthy_machines_are_interrupted(size: int) -> None:
    """So it is the look that protects them in this model, not a model that is too kind."""
    fleet = Fleet(size, 0.8, look_loss=1, limits=replace(defaults.LIMITS, losing_share=1))
    fleet.run()
    assert {number for _, number in fleet.interrupted} - {0}


@pytest.mark.parametrize("interval", INTERVALS)
@pytest.mark.parametrize(("size", "loss"), [(100, 0.9)])
def test_without_a_look_machines_that_say_what_they_lost_are_protected(size: int, loss: float, interval: float) -> None:
    """At 90 % loss nearly all of those that report have lost requests before."""
    fleet = Fleet(size, loss, interval, look_loss=1)
    fleet.run()
    assert fleet.interrupted == []


@pytest.mark.parametrize("interval", INTERVALS)
@pytest.mark.parametrize(("size", "loss"), [(100, 0.8)])
def test_without_a_look_the_number_bounds_what_is_interrupted(size: int, loss: float, interval: float) -> None:
    """Where SSH fails as well, six hours of trouble cost the limit once or twice, not each hour anew."""
    fleet = Fleet(size, loss, interval, look_loss=1)
    fleet.run()
    assert len(fleet.interrupted) <= 2 * defaults.LIMITS.unhealthy.machines


Rule = Callable[[int, float, float], None]
RULES: dict[Rule, list[float]] = {
    test_no_healthy_machine_is_interrupted_whatever_is_lost: LOSSES,
    test_where_looks_fail_more_often_the_limits_bound_what_is_interrupted: [0.5, 0.7, 0.9],
    test_without_a_look_machines_that_say_what_they_lost_are_protected: [0.9],
    test_without_a_look_the_number_bounds_what_is_interrupted: [0.8],
}


@pytest.mark.parametrize("size", [100, 1_000])
def test_large_fleets_keep_the_same_rules(size: int) -> None:
    """One case is drawn, and ``make chaos`` tries all."""
    cases = [(rule, *case) for rule, losses in RULES.items() for case in product(losses, INTERVALS)]
    for rule, loss, interval in drawn(cases, size):
        rule(size, loss, interval)
