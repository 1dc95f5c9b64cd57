"""A model of sessions and work in plain Python, with whole seconds: each step has the effect of one statement."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from shepherd_core.domain.errors.bmdb import SessionExpired, WorkConflict
from shepherd_core.domain.health import HealthTimeouts
from shepherd_core.domain.machine import Process, WorkEvent
from shepherd_core.settings.functions.specs import PROCESS_OF_LOOP

LOOPS = tuple(PROCESS_OF_LOOP.values())

UNIT = 600
"""Seconds. Everything lasts whole units, so that nothing is just about to happen while a step runs."""
TIMEOUTS = HealthTimeouts(
    startup_timeout_seconds=30 * UNIT, heartbeat_timeout_seconds=10 * UNIT, grace_seconds=5 * UNIT
)
CREATION_SECONDS = 36 * UNIT
"""How long a new machine may take to get its first agent."""
HOUR = 3600
LOCATION_STEPS, PROVIDER_STEPS, STEPS_IN_SIX_HOURS = 1, 2, 2
"""The budgets: how many machines may be interrupted in an hour, and in six hours, there and at the provider."""
DEATH_SECONDS, LONGEST_DEATH_SECONDS = 30, 3840
"""The backoff after a death: at first, and at most."""

_ENDS = {WorkEvent.FINISHED, WorkEvent.FAILED, WorkEvent.CANCELED, WorkEvent.EXPIRED, WorkEvent.RECOVERED}


@dataclass
class Machine:
    """One machine, by its facts. It counts as created so long ago that it is due at once."""

    location: str | None = None
    back_by: float = 0
    """Until when it has time to get an agent, while it has none."""
    started_at: int | None = None
    """When the present agent was started."""
    heartbeat_at: int | None = None
    interval: int = 0
    """How often the present agent reports; 0: it follows no interval."""
    boot_wait_until: int = 0
    """When it should have booted after its last reboot."""
    interrupted_at: list[int] = field(default_factory=list)
    """When each step was permitted, or when it is known to have been taken."""
    quarantined: bool = False
    done: bool = False
    """It is installed, or has failed for good."""
    watched: bool = True
    """Its provider has a Recoverer."""
    backoffs: dict[Process, tuple[int, int | None]] = field(default_factory=dict)
    """For each process: until when, and how many seconds that was; None: after a death."""
    deaths: Counter[Process] = field(default_factory=Counter)
    """For each process: how many times in a row its work has expired."""
    history: list[tuple[Process, WorkEvent, int]] = field(default_factory=list)
    """Process, event, and session."""

    @property
    def needs(self) -> Process | None:
        if self.quarantined or self.done:
            return None
        return Process.AGENT_START if self.started_at is None else Process.RECOVERY

    @property
    def reported(self) -> bool:
        return self.heartbeat_at is not None


@dataclass(frozen=True)
class Pause:
    """A pause; None applies to all."""

    machine: int | None = None
    process: Process | None = None
    until: int | None = None


@dataclass
class Session:
    seconds: int
    deadline: int


@dataclass
class Model:
    now: int = 0
    """By the server's clock."""
    machines: list[Machine] = field(default_factory=list)
    sessions: list[Session] = field(default_factory=list)
    work: dict[tuple[int, Process], int] = field(default_factory=dict)
    """The session that works on a machine for a process."""
    pauses: list[Pause] = field(default_factory=list)
    timeouts: HealthTimeouts = TIMEOUTS

    # Sessions.

    def open(self, seconds: int) -> int:
        """Open a session, which ends the work of expired ones; return its number."""
        for (machine, process), session in list(self.work.items()):
            if not self.alive(session):
                self._end(machine, process, WorkEvent.EXPIRED)
                found = self.machines[machine]
                found.deaths[process] += 1
                backoff = min(DEATH_SECONDS * 4 ** (found.deaths[process] - 1), LONGEST_DEATH_SECONDS)
                found.backoffs[process] = (self.now + backoff, None)
        self.sessions.append(Session(seconds, self.now + seconds))
        return len(self.sessions) - 1

    def alive(self, session: int) -> bool:
        return self.sessions[session].deadline > self.now

    def renew(self, session: int) -> None:
        self.require(session)
        self.sessions[session].deadline = self.now + self.sessions[session].seconds

    def close(self, session: int) -> None:
        """Cancel the session's work, whether it has expired or not, and end it."""
        for (machine, process), holder in list(self.work.items()):
            if holder == session:
                self._end(machine, process, WorkEvent.CANCELED)
        self.expire(session)

    def expire(self, session: int) -> None:
        self.sessions[session].deadline = min(self.sessions[session].deadline, self.now)

    # Work.

    def claimable(self, process: Process) -> set[int]:
        """Return the machines that a claim may take, if it takes all."""
        return {number for number in range(len(self.machines)) if not self.obstacle(number, process)}

    def obstacle(self, number: int, process: Process) -> str | None:
        """Return the promise that a claim of this machine would break; None: it may be claimed."""
        machine = self.machines[number]
        backoff_until, _ = machine.backoffs.get(process, (0, None))
        not_back = process is Process.RECOVERY and self._not_back(machine)
        if machine.needs is not process and not not_back:
            return "a_claim_takes_only_machines_that_need_it"
        if any((number, other) in self.work for other in LOOPS):
            return "no_machine_has_two_live_works"
        if any(self._in_force(pause, number, process) for pause in self.pauses):
            return "a_paused_machine_is_not_touched"
        if backoff_until > self.now or (machine.back_by if not_back else machine.boot_wait_until) > self.now:
            return "backoff_and_boot_wait_are_observed"
        if process is machine.needs is Process.RECOVERY and self._not_unhealthy(machine):
            return "no_healthy_machine_is_rebooted"
        return None

    def claim(self, session: int, process: Process, machines: set[int]) -> None:
        self.require(session)
        for machine in machines:
            self._start(session, process, machine)

    def start(self, session: int, machine: int) -> None:
        """Start an operator's work on one machine, due or not."""
        self.require(session)
        if any((machine, other) in self.work for other in LOOPS):
            raise WorkConflict
        self._start(session, Process.RECOVERY, machine)

    def end(self, session: int, process: Process, machine: int, event: WorkEvent) -> bool:
        """End work if it is still this session's, and return whether it was."""
        if not self.alive(session) or self.work.get((machine, process)) != session:
            return False
        self._end(machine, process, event)
        if event in (WorkEvent.FINISHED, WorkEvent.RECOVERED):
            self.machines[machine].backoffs.pop(process, None)
        if event is not WorkEvent.CANCELED:
            self.machines[machine].deaths.pop(process, None)
        return True

    def may_interrupt(self, session: int, machine: int) -> bool:
        self.require(session)
        found = self.machines[machine]
        if found.needs is Process.RECOVERY:
            due = not self._not_unhealthy(found)
        else:
            due = self._not_back(found) and found.back_by <= self.now
        return (
            due
            and self.work.get((machine, Process.RECOVERY)) == session
            and not any(self._in_force(pause, machine, Process.RECOVERY) for pause in self.pauses)
        )

    def permit(self, session: int, machines: Sequence[int]) -> set[int]:
        """Permit steps on machines as far as the budget allows, the first come first; the others are held back."""
        self.require(session)
        granted: set[int] = set()
        for machine in machines:
            location = self.machines[machine].location
            near = sum(self.machines[other].location == location for other in granted)
            if (
                self._interrupted(HOUR) + len(granted) < PROVIDER_STEPS
                and self._interrupted(HOUR, location) + near < (LOCATION_STEPS if location else PROVIDER_STEPS)
                and self._interrupted(6 * HOUR) + len(granted) < STEPS_IN_SIX_HOURS
            ):
                granted.add(machine)
        return {machine for machine in machines if self._ask(session, machine, granted=machine in granted)}

    def step(self, session: int, machine: int) -> bool:
        """Record a step of an operator, whom no budget holds back; return whether it may be taken."""
        self.require(session)
        return self._ask(session, machine, granted=True)

    def attempted(self, session: int, machine: int) -> bool:
        return WorkEvent.ATTEMPTED in self._since_start(session, machine)

    def steps(self) -> dict[str, tuple[int, int]]:
        locations = {machine.location for machine in self.machines}
        found = {at or "": (self._interrupted(HOUR, at), self._interrupted(6 * HOUR, at)) for at in locations}
        return {location: steps for location, steps in found.items() if any(steps)}

    def ended_last(self, session: int, process: Process, machine: int, event: WorkEvent) -> bool:
        own = [each for each in self.machines[machine].history if each[0] is process and each[2] == session]
        return bool(own) and own[-1][1] is event

    def fail(self, session: int, process: Process, machine: int, seconds: int) -> bool:
        ended = self.undone(session, process, machine, WorkEvent.FAILED)
        if ended:
            self.machines[machine].backoffs[process] = (self.now + seconds, seconds)
        return ended

    def undone(self, session: int, process: Process, machine: int, event: WorkEvent) -> bool:
        """End work; a step that is on record was not taken, and does not count."""
        attempted = process is Process.RECOVERY and self.attempted(session, machine)
        if attempted and self.alive(session) and self.work.get((machine, process)) == session:
            self.machines[machine].interrupted_at.pop()
            self.machines[machine].history.append((process, WorkEvent.NOT_TAKEN, session))
        return self.end(session, process, machine, event)

    def hold_back(self, session: int, machine: int, seconds: int) -> bool:
        ended = self.undone(session, Process.RECOVERY, machine, WorkEvent.CANCELED)
        if ended:
            self.machines[machine].backoffs[Process.RECOVERY] = (self.now + seconds, None)
            self.machines[machine].deaths.pop(Process.RECOVERY, None)
        return ended

    def agent_started(self, session: int, machine: int) -> bool:
        ended = self.end(session, Process.AGENT_START, machine, WorkEvent.FINISHED)
        if ended:
            found = self.machines[machine]
            found.started_at, found.heartbeat_at, found.interval = self.now, None, 0
        return ended

    def recovered(self, session: int, machine: int, boot_wait_seconds: int) -> bool:
        ended = self.end(session, Process.RECOVERY, machine, WorkEvent.FINISHED)
        if ended:
            self.machines[machine].boot_wait_until = self.now + boot_wait_seconds
            self.machines[machine].interrupted_at[-1:] = [self.now]
            self._expect_back(self.machines[machine])
        return ended

    def quarantine(self, session: int, machine: int) -> bool:
        ended = self.end(session, Process.RECOVERY, machine, WorkEvent.FINISHED)
        if ended:
            self.machines[machine].quarantined = True
            self.machines[machine].backoffs.clear()
            self.machines[machine].deaths.clear()
        return ended

    # Operators.

    def unquarantine(self, machine: int) -> bool:
        found = self.machines[machine]
        was, found.quarantined = found.quarantined, False
        if was:
            self._expect_back(found)
        return was

    def retry(self, machine: int) -> bool:
        backoffs, deaths = self.machines[machine].backoffs, self.machines[machine].deaths
        ended = [process for process, (until, _) in backoffs.items() if until > self.now or deaths[process] > 0]
        for process in ended:
            del backoffs[process]
            self.machines[machine].deaths.pop(process, None)
        return bool(ended)

    def resume(self, pause: Pause) -> bool:
        there = pause in self.pauses
        if there:
            self.pauses.remove(pause)
        return there

    # Other events.

    def appear(self, location: str | None) -> None:
        self.machines.append(Machine(location, self.now + CREATION_SECONDS))

    def heartbeat(self, machine: int, interval: int | None = None) -> None:
        """Record a heartbeat, if there is an agent, which is told an *interval*; None: as before."""
        found = self.machines[machine]
        if found.started_at is not None:
            found.heartbeat_at = self.now
            found.interval = found.interval if interval is None else interval

    def reaped(self) -> Model:
        other = copy.deepcopy(self)
        other.open(1)
        return other

    def unended(self) -> Counter[Process]:
        """Return how much work was started and not ended, by the history alone."""
        found: Counter[Process] = Counter()
        for machine in self.machines:
            for process, event, _ in machine.history:
                found[process] += 1 if event is WorkEvent.STARTED else -1 if event in _ENDS else 0
        return found

    def require(self, session: int) -> None:
        if not self.alive(session):
            raise SessionExpired

    def _start(self, session: int, process: Process, machine: int) -> None:
        self.work[machine, process] = session
        self.machines[machine].history.append((process, WorkEvent.STARTED, session))

    def _end(self, machine: int, process: Process, event: WorkEvent) -> None:
        session = self.work.pop((machine, process))
        self.machines[machine].history.append((process, event, session))

    def _in_force(self, pause: Pause, machine: int, process: Process) -> bool:
        return (
            pause.machine in (None, machine)
            and pause.process in (None, process)
            and (pause.until is None or pause.until > self.now)
        )

    def _ask(self, session: int, machine: int, *, granted: bool) -> bool:
        """Record a step on the machine, or that it is held back; return whether the step may be taken."""
        if self.work.get((machine, Process.RECOVERY)) != session:
            return False
        found, before = self.machines[machine], self._since_start(session, machine)
        if WorkEvent.ATTEMPTED in before:
            return True
        if granted:
            found.interrupted_at.append(self.now)
            found.boot_wait_until = self.now
            found.history.append((Process.RECOVERY, WorkEvent.ATTEMPTED, session))
        elif WorkEvent.LOOKED not in before:
            found.history.append((Process.RECOVERY, WorkEvent.LOOKED, session))
        return granted

    def _since_start(self, session: int, machine: int) -> list[WorkEvent]:
        own = [
            event
            for process, event, by in self.machines[machine].history
            if by == session and process is Process.RECOVERY
        ]
        starts = [number for number, event in enumerate(own) if event is WorkEvent.STARTED]
        return own[starts[-1] :] if starts else []

    def _interrupted(self, seconds: int, *locations: str | None) -> int:
        """Return how many machines, of all or these *locations*, were interrupted in these last *seconds*."""
        return sum(
            machine.interrupted_at[-1] + seconds > self.now
            for machine in self.machines
            if machine.interrupted_at and (not locations or machine.location in locations)
        )

    def _expect_back(self, machine: Machine) -> None:
        machine.started_at, machine.heartbeat_at, machine.back_by = None, None, self.now + self.timeouts.grace_seconds
        machine.backoffs.clear()
        machine.deaths.clear()

    def _not_back(self, machine: Machine) -> bool:
        _, seconds = machine.backoffs.get(Process.AGENT_START, (0, None))
        return machine.needs is Process.AGENT_START and seconds is not None

    def _not_unhealthy(self, machine: Machine) -> bool:
        timeout = self.timeouts.startup_timeout_seconds
        if machine.reported:
            timeout = max(self.timeouts.heartbeat_timeout_seconds, 2.5 * machine.interval)
        silent = self.now - max(machine.started_at or 0, machine.heartbeat_at or 0)
        return silent < timeout or not machine.watched
