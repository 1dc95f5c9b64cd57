"""
Days of a fleet, minute by minute where something happens.

In a minute in which every machine is healthy and nothing else is going on, each tick finds the same as the one before.
Such minutes are skipped up to the next event, and their ticks and heartbeats are counted as if they had run.
"""

import io
import random
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any

from shepherd_core import telemetry
from shepherd_core.agent.endpoint import AgentApi
from shepherd_core.agent.judgement import Limits
from shepherd_core.bmdb.machines.search import Search, search
from shepherd_core.bmdb.recovery.remediation import unquarantine
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.domain.pace import Pace
from shepherd_core.domain.remediation import provider_steps
from shepherd_core.domain.states import State
from shepherd_core.loops import runner
from shepherd_core.loops.base import Loop
from shepherd_core.loops.initializer import Initializer, StartOptions
from shepherd_core.loops.look import Look
from shepherd_core.loops.provisioner import Provisioner
from shepherd_core.loops.recoverer import Recoverer
from shepherd_core.loops.updater import Updater
from shepherd_core.settings.functions.loops import ProvisionerSettings, RecovererSettings
from shepherd_core.settings.functions.services import AgentApiSettings
from shepherd_core.settings.functions.specs import FUNCTION_SECONDS, LOOPS
from shepherd_core.telemetry import Metric
from shepherd_core.wiring.loops import creation_limits, recovery_rules

from simulator.cost.formula import HOURS, Activity, listing_seconds
from simulator.cost.inputs import Inputs
from simulator.month.clock import SimulatedBmdb, SimulatedClock
from simulator.month.machines import AILMENTS, Ailment, OurAgent, SimulatedFleet, SimulatedMachine

FAILING_A_DAY = 0.005
"""Of the machines."""
OUTAGES = ("agent API", "database", "provider", "network to the machines")
"""One a week, in turn."""
DAY = 24 * 60
_OUTAGE_EVERY, _SHORTEST_OUTAGE, _LONGEST_OUTAGE = 7 * DAY, 20, 60
_REPAIRED_AFTER = DAY
"""Until an operator has repaired a machine in quarantine."""
_CALM = 10
"""Minutes without anything until minutes are skipped."""
_MOST_TO_BEGIN = 6 * 60
"""Minutes in which the fleet must run at the beginning."""


@dataclass
class Month:
    """What happened, in minutes and counts."""

    machines: int
    days: int
    failures: Counter[str] = field(default_factory=Counter)
    outages: Counter[str] = field(default_factory=Counter)
    steps: Counter[str] = field(default_factory=Counter)
    agent_starts: int = 0
    """After the first of each machine."""
    quarantined: int = 0
    recoveries_of_healthy_machines: int = 0
    not_running: int = 0
    """Minutes of machines whose agent did not run."""
    ticks: int = 0
    failed_ticks: int = 0
    requests: int = 0
    refused: int = 0
    listed: int = 0
    log_bytes: int = 0
    simulated: int = 0
    """Minutes that were not skipped."""
    running: int = 0
    """Machines at the end."""

    @property
    def availability(self) -> float:
        """Return the share of the time in which agents ran."""
        return 1 - self.not_running / (self.machines * self.days * DAY)

    @property
    def summary(self) -> dict[str, object]:
        """Return it in the types of JSON."""
        return {
            "machines": self.machines,
            "days": self.days,
            "availability": f"{100 * self.availability:.3f} %",
            "failures": dict(self.failures.most_common()),
            "outages": dict(self.outages),
            "recovery_steps": dict(self.steps),
            "agent_starts": self.agent_starts,
            "quarantined": self.quarantined,
            "false_recoveries": self.recoveries_of_healthy_machines,
            "running": self.running,
            "ticks": self.ticks,
            "failed_ticks": self.failed_ticks,
            "heartbeats": self.requests - self.refused,
            "refused_requests": self.refused,
            "log_megabytes": round(self.log_bytes / 1e6, 1),
            "simulated_minutes": f"{self.simulated} of {self.days * DAY}; the others are like the one before",
        }

    def activity(self, inputs: Inputs) -> Activity:
        """Return what the functions would do in a month of the length that AWS charges for."""
        scale = HOURS / 24 / self.days
        return Activity(
            machines=self.machines,
            ticks=self.ticks * scale,
            requests=self.requests * scale,
            starts=self.agent_starts * scale,
            listing_seconds=listing_seconds(self.listed, inputs) * scale,
            log_kb=self.log_bytes / 1000 * scale,
        )


def simulate(machines: int, days: int, seed: int, say: Callable[[float, str], None]) -> Month:
    """
    Return what happens to so many machines in so many days; *say* is told the day and what happens then.

    Raises:
        ShepherdError: the fleet did not begin to run.
    """
    clock = SimulatedClock()
    with SimulatedBmdb(clock) as bmdb:
        return _Simulation(machines, days, random.Random(seed), bmdb, say).run()


class _Simulation:
    def __init__(
        self, machines: int, days: int, chance: random.Random, bmdb: SimulatedBmdb, say: Callable[[float, str], None]
    ) -> None:
        self._did = Month(machines, days)
        self._chance = chance
        self._bmdb = bmdb
        self._clock = bmdb.clock
        self._say = say
        self._fleet = SimulatedFleet(machines, bmdb.clock)
        self._minute = 0
        self._calm = 0
        self._outage: str | None = None
        self._log = _Log()
        self._idle: dict[str, int] = {}
        """The bytes that each loop logs when it finds nothing to do."""
        self._repaired: dict[str, int] = {}
        self._events: dict[int, list[Callable[[], None]]] = {}
        self._operator = bmdb.connection()
        self._interval = int(AgentApiSettings.model_fields["heartbeat_interval_seconds"].default)
        limits = Limits(Pace().report_seconds, Pace().hardware_report_seconds, self._interval)
        self._api = AgentApi(bmdb.connection(), limits)
        self._loops = self._functions()

    def _functions(self) -> dict[str, Callable[[Deadline], dict[Metric, float]]]:
        fleet, clock, pace = self._fleet, self._clock, Pace()
        settings = RecovererSettings.model_construct()  # type: ignore[call-arg]  # what has a default
        bounds = runner.RunLimits(settings.concurrency, pace.machine_seconds, pace.session_seconds)
        limits, rates = creation_limits(ProvisionerSettings.model_construct(max_machines=0))  # type: ignore[call-arg]
        options = StartOptions(
            path=settings.agent_path,
            endpoint="https://simulated.invalid",
            answer_seconds=pace.answer_seconds,
            backoff=pace.start_backoff,
        )
        look = Look(fleet, settings.agent_path, pace.look_seconds, lambda _: None)
        loops: tuple[Loop[Any], ...] = (
            Initializer(fleet, fleet, lambda: (OurAgent(), b""), options),
            Recoverer(fleet, provider_steps(fleet), recovery_rules(settings), look),
        )
        connections = {name: self._bmdb.connection() for name in LOOPS}

        def machine_loop(loop: Loop[Any]) -> Callable[[Deadline], dict[Metric, float]]:
            return lambda deadline: runner.run(
                loop, fleet.name, connections[loop.name], clock, bounds, deadline=deadline, runtime_info="simulated"
            )

        updater = Updater(fleet, connections["updater"], clock, pace.session_seconds, pace.update_seconds)
        return {
            "provisioner": lambda deadline: Provisioner(fleet, connections["provisioner"], clock, limits, rates).run(
                deadline, "simulated"
            ),
            **{loop.name: machine_loop(loop) for loop in loops},
            "updater": lambda deadline: updater.run(deadline, "simulated"),
        }

    def run(self) -> Month:
        """Let the fleet begin, and then the days pass."""
        did = self._did
        while not all(each.healthy for each in self._fleet.machines):
            if self._minute > _MOST_TO_BEGIN:
                message = f"not all machines run after {_MOST_TO_BEGIN // 60} hours"
                raise ShepherdError(message)
            self._pass(1)
            self._tick()
        self._did = did = Month(did.machines, did.days)
        self._fleet.listed, self._log.bytes, self._minute = 0, 0, 0
        for each in self._fleet.machines:
            each.starts = 0
        self._plan()
        end = did.days * DAY
        while self._minute < end:
            self._pass(self._step(end))
            for event in self._events.pop(self._minute, ()):
                event()
            self._tick()
            did.simulated += 1
        did.steps = self._fleet.steps
        did.recoveries_of_healthy_machines = self._fleet.harmed
        did.agent_starts = sum(each.starts for each in self._fleet.machines)
        did.listed += self._fleet.listed
        did.log_bytes += self._log.bytes
        did.running = sum(each.healthy for each in self._fleet.machines)
        return did

    def _plan(self) -> None:
        """Decide what happens: machines that fail, and outages."""
        for day in range(self._did.days):
            for machine in self._fleet.machines:
                if self._chance.random() < FAILING_A_DAY:
                    (ailment,) = self._chance.choices(AILMENTS, [each.share for each in AILMENTS])
                    self._at(day * DAY + self._chance.randrange(DAY), partial(self._fail, machine, ailment))
        for number, begins in enumerate(range(_OUTAGE_EVERY // 2, self._did.days * DAY, _OUTAGE_EVERY)):
            kind = OUTAGES[number % len(OUTAGES)]
            lasts = self._chance.randrange(_SHORTEST_OUTAGE, _LONGEST_OUTAGE)
            self._at(begins, partial(self._break, kind, lasts))

    def _at(self, minute: int, event: Callable[[], None]) -> None:
        self._events.setdefault(minute, []).append(event)

    def _fail(self, machine: SimulatedMachine, ailment: Ailment) -> None:
        if machine.healthy:
            machine.ailment = ailment
            self._did.failures[ailment.name] += 1
            self._tell(f"{machine.provider_id} {ailment.name}")

    def _break(self, what: str, minutes: int) -> None:
        self._did.outages[what] += 1
        self._tell(f"the {what} is down for {minutes} minutes")
        self._set_outage(what)
        self._at(self._minute + minutes, lambda: self._set_outage(None))

    def _set_outage(self, what: str | None) -> None:
        self._outage = what
        self._fleet.down = what == "provider"
        self._fleet.cut_off = what == "network to the machines"
        self._bmdb.set_down(down=what == "database")

    def _tell(self, text: str) -> None:
        self._say(self._minute / DAY, text)

    def _step(self, end: int) -> int:
        """Return the minutes until something may happen: one, or those until just before the next event."""
        if self._calm < _CALM:
            return 1
        following = min([end, *self._events])
        return max(1, following - self._minute - 1)

    def _pass(self, minutes: int) -> None:
        """Let minutes pass, of which all but the last are skipped."""
        skipped = minutes - 1
        if skipped:
            working = sum(each.healthy for each in self._fleet.machines)
            self._did.requests += working * skipped * 60 // self._interval
            self._did.ticks += skipped * len(LOOPS)
            # The Provisioner's of each minute, and the Updater's of each hour.
            listings = skipped + skipped * 60 // round(Pace().update_seconds)
            self._did.listed += listings * self._did.machines
            self._did.log_bytes += skipped * sum(self._idle.values())
            for each in self._fleet.machines:
                each.owes_report = True
        self._minute += minutes
        self._bmdb.move(60 * minutes)
        self._did.not_running += minutes * sum(not each.healthy for each in self._fleet.machines)

    def _tick(self) -> None:
        """Let agents report, and each loop run once."""
        self._report()
        before = self._fleet.steps.total(), self._did.failed_ticks
        for name in LOOPS:
            self._invoke(name)
        if self._outage is None:
            self._operate()
        waiting = [each for each in self._fleet.machines if not each.healthy and each.provider_id not in self._repaired]
        calm = not waiting and self._outage is None and before == (self._fleet.steps.total(), self._did.failed_ticks)
        self._calm = self._calm + 1 if calm else 0

    def _report(self) -> None:
        if self._outage == "agent API" or self._fleet.cut_off:
            for each in self._fleet.machines:
                each.owes_report |= each.healthy
            return
        minutes = max(1, self._interval // 60)
        with redirect_stdout(self._log):
            for each in self._fleet.machines:
                if each.healthy and (each.owes_report or (self._minute + each.number) % minutes == 0):
                    self._did.requests += 1
                    accepted = self._api.handle(each.heartbeat()).status == HTTPStatus.OK
                    self._did.refused += not accepted
                    each.owes_report = not accepted

    def _invoke(self, loop: str) -> None:
        self._did.ticks += 1
        telemetry.bind(loop=loop)
        before = self._log.bytes
        with redirect_stdout(self._log):
            try:
                counts = self._loops[loop](Deadline(self._clock, FUNCTION_SECONDS[loop]))
            except ShepherdError as error:
                self._did.failed_ticks += 1
                telemetry.error("invocation failed", exc=error)
            else:
                telemetry.emit(loop, self._fleet.name, counts)
        telemetry.unbind()
        if self._calm:
            self._idle[loop] = self._log.bytes - before

    def _operate(self) -> None:
        """Do what an operator does: repair the machines in quarantine within a day, and end it."""
        found = search(self._operator, Search(states=(State.QUARANTINED,)), None, self._did.machines).machines
        for each in found:
            machine = self._fleet.machines[int(str(each.provider_id).rpartition("-")[2])]
            if machine.provider_id not in self._repaired:
                self._did.quarantined += 1
                self._tell(f"{machine.provider_id} is in quarantine")
                self._repaired[machine.provider_id] = self._minute + _REPAIRED_AFTER
                self._at(self._minute + _REPAIRED_AFTER, lambda: None)
            elif self._minute >= self._repaired[machine.provider_id]:
                del self._repaired[machine.provider_id]
                machine.ailment = None
                machine.take("repair")
                unquarantine(self._operator, each.machine_id, reason="repaired")
                self._tell(f"{machine.provider_id} is repaired")


class _Log(io.TextIOBase):
    """Counts what is written to it."""

    bytes = 0

    def write(self, text: str) -> int:
        """Count *text*."""
        self.bytes += len(text.encode())
        return len(text)
