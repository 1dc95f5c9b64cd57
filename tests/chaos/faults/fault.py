"""
A fault of provider, AWS, database or machine: its cause, the loop that meets it, and how it shows.

Each is tried on its loop and ended; then the schedules continue. The scenarios
are smaller than those of ``scenarios``, and without crash points.

How it shows is complete: the error of the invocation (``fails X``, which Lambda
counts and the log names), the failure causes in the machines' history
(``cause X``), the cause of a penalty (``penalty X``), a part that was left for
later (``incomplete``), and machines with drift (``drifted``). An empty set: the
loop handled the fault without a trace.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from shepherd_core.bmdb.wire.driver import TimeLimits
from shepherd_core.domain.clock import SystemClock
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.telemetry import Metric

from simulator.machines.pool import MachinePool
from tests.chaos.crash_points import Context
from tests.chaos.explore import Explored, converge
from tests.chaos.invariants import violations
from tests.chaos.scenarios import loops, recoveries
from tests.chaos.stage.environment import Access, Environment
from tests.support import defaults
from tests.support.bmdb.fleet import Fleet
from tests.support.waiting import eventually

_DRIFTED_ANYWAY = 1
"""The vanished machine of the Provisioner's scenario."""


class SkippingClock(SystemClock):
    """The real time, but ``sleep`` returns at once and moves the clock ahead."""

    def __init__(self) -> None:
        self._skipped = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self._skipped

    def sleep(self, seconds: float) -> None:
        self._skipped += max(0.0, seconds)


def cold(**changes: Any) -> Access:
    """Return what an invocation has that is the first in its process, but for the *changes*."""
    return Access(limits=TimeLimits(), **changes)


class Recoveries(recoveries.Recoveries):
    """The Recoverer's scenario with a smaller fleet, since it runs many times."""

    policy = defaults.policy(boot_wait=120)
    at_once = 16

    def arrange(self) -> Environment:
        environment = Environment(self._fleet)
        self._unhealthy = environment.unhealthy(2)
        environment.add_healthy(1)
        environment.paused()
        return environment


class AgentStarts(loops.AgentStarts):
    """The Initializer's scenario, with no full disk unless a fault fills it."""

    at_once = 16

    def __init__(self, fleet: Fleet, pool: MachinePool, private_key: str, folder: Path) -> None:
        super().__init__(fleet, pool, private_key, folder)
        self._agent.write_text(loops.AGENT + "#" * 100_000)  # long enough for an upload that breaks in the middle

    def arrange(self) -> Environment:
        environment = super().arrange()
        self._pool.free_disk(self._pool.names()[0])
        return environment

    def _free_disk(self) -> None: ...


class Updates(loops.Updates):
    """Machines without recorded provider facts, and one that vanished from the provider."""

    def arrange(self) -> Environment:
        environment = Environment(self._fleet)
        machines = [self._fleet.provided_machine() for _ in range(4)]
        gone, *_ = [environment.at_provider(machine_id) for machine_id in machines]
        self._wanted = {**dict.fromkeys(machines, "Running"), machines[0]: "Missing"}
        environment.api.forget(gone)
        return environment


FaultyScenario = loops.Provisioning | Recoveries | AgentStarts | Updates


@dataclass
class Stage:
    scenario: FaultyScenario
    environment: Environment
    undo: ExitStack = field(default_factory=ExitStack)
    """Ends the fault. The ``Access`` is replaced separately."""

    @property
    def pool(self) -> MachinePool:
        assert self.environment.pool is not None
        return self.environment.pool

    def sql(self, text: str, undo: str) -> None:
        self.environment.fleet.sql(text)
        self.undo.callback(self.environment.fleet.sql, undo)


@dataclass(frozen=True)
class Fault:
    name: str
    loop: str
    begin: Callable[[Stage], object]
    shows: frozenset[str] = frozenset()
    breaks: str = ""
    """The invariant that the fault itself violates while it lasts."""

    def __str__(self) -> str:
        return f"{self.name}, {self.loop}, {' and '.join(sorted(self.shows)) or 'no trace'}"


@dataclass(frozen=True)
class MachineFault:
    """A fault of one machine of many, and the failure cause that its history must name."""

    name: str
    begin: Callable[[Stage, str, UUID], object]
    cause: str


def rows(loop: str, *rows: tuple[str, Callable[[Stage], object], str]) -> tuple[Fault, ...]:
    """Return the faults of one loop, from rows of name, start and how it shows."""
    return tuple(Fault(name, loop, begin, frozenset(shows.split(", ") if shows else ())) for name, begin, shows in rows)


def try_fault(fault: Fault, scenario: FaultyScenario) -> list[str]:
    """Try *fault*; return the violations and every difference from how it must show."""
    scenario.access = cold()
    with closing(scenario.arrange()) as environment:
        stage = Stage(scenario, environment)
        with stage.undo:
            fault.begin(stage)
            shown = _shown(scenario, environment)
            found = [each for each in violations(environment) if not fault.breaks or not each.startswith(fault.breaks)]
        wrong = [] if shown == fault.shows else [f"it showed as {sorted(shown)} instead of {sorted(fault.shows)}"]
        return wrong + found + _recovered(scenario, environment)


def try_machine_faults(scenario: AgentStarts, faults: Sequence[MachineFault]) -> list[str]:
    """Try every machine fault at once, each on one machine of many; return all violations and differences."""
    scenario.access = access = cold(connect_seconds=1, machine_seconds=8, answer_seconds=3)
    with closing(scenario.arrange()) as environment:
        stage = Stage(scenario, environment)
        with stage.undo:
            faulty = dict(zip(scenario.ids, faults, strict=False))
            for name, fault in faulty.items():
                fault.begin(stage, name, scenario.ids[name])
            scenario.tick(environment, Context(SkippingClock()))
            environment.fleet.disconnect()
            found = violations(environment)
            expected = {name: faulty[name].cause if name in faulty else "Finished" for name in scenario.ids}
            shown = {name: _end(environment, str(machine_id)) for name, machine_id in scenario.ids.items()}
        assert access.addresses  # some faults change it
        found += [
            f"{faulty[name].name if name in faulty else 'nothing'}: {end} instead of {expected[name]}"
            for name, end in shown.items()
            if end.split(":")[0] != expected[name]
        ]
        return found + _recovered(scenario, environment)


def _recovered(scenario: FaultyScenario, environment: Environment) -> list[str]:
    scenario.access = cold()
    wrong = converge(scenario, environment, Explored())
    eventually(environment.api.settled)
    return wrong + violations(environment) + scenario.missing(environment)


def _shown(scenario: FaultyScenario, environment: Environment) -> set[str]:
    shown: set[str] = set()
    counts: Mapping[Metric, float] = {}
    try:
        counts = scenario.tick(environment, Context(SkippingClock()))
    except ShepherdError as error:
        shown.add(f"fails {error.kind}")
    finally:
        environment.fleet.disconnect()
    for how, table in (("cause", "work_history WHERE kind IS NOT NULL"), ("penalty", "capacity_penalties")):
        shown |= {f"{how} {row[0]}" for row in environment.fleet.sql(f"SELECT DISTINCT kind FROM {table}")}
    if counts.get(Metric.INCOMPLETE):
        shown.add("incomplete")
    if counts.get(Metric.DRIFTED, 0) > _DRIFTED_ANYWAY:
        shown.add("drifted")
    return shown


def _end(environment: Environment, machine_id: str) -> str:
    """Return the end of the last work on a machine; for a failure, its cause."""
    rows = environment.fleet.sql(
        "SELECT coalesce(kind, event) FROM work_history WHERE machine_id = :id ORDER BY timestamp DESC LIMIT 1",
        id=machine_id,
    )
    return str(rows[0][0]) if rows else "nothing"
