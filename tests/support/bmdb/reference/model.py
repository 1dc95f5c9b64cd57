"""
A model of sessions and work as plain Python: no database, no concurrency.

Machines and sessions are small numbers. Time is whole seconds and passes when a
test says so. Every statement of the product is one step here, and must have the
same effect.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, field

from shepherd_core.domain.errors.bmdb import SessionExpired, WorkConflict
from shepherd_core.domain.machine import Process, WorkEvent
from shepherd_core.settings.functions import PROCESS_OF_LOOP

from tests.support.bmdb.reference.gap_rule import Gap, extended_timeout

LOOPS = tuple(PROCESS_OF_LOOP.values())

UNIT = 600
"""Seconds. Everything lasts whole units, so that nothing is just about to happen while a step runs."""
STARTUP_TIMEOUT_SECONDS = 30 * UNIT
HEARTBEAT_TIMEOUT_SECONDS = 10 * UNIT
GRACE_SECONDS = 5 * UNIT
DEATH_SECONDS, LONGEST_DEATH_SECONDS = 30, 3840
"""The backoff after a death: at first, and at most."""


@dataclass
class Machine:
    """One machine, by its facts. It counts as created so long ago that it is due at once."""

    location: str | None = None
    started_at: int | None = None
    """When the present agent was started."""
    heartbeat_at: int | None = None
    interval: int = 0
    """How often the present agent reports; 0: it follows no interval."""
    boot_wait_until: int = 0
    """When it should have booted after its last reboot."""
    expected_back_since: int | None = None
    """Since when it is expected back, after a recovery or by an operator; None: it is not."""
    quarantined: bool = False
    decommissioned: bool = False
    backoffs: dict[Process, tuple[int, int | None]] = field(default_factory=dict)
    """For each process: until when, and how many seconds that was; None: after a death."""
    deaths: Counter[Process] = field(default_factory=Counter)
    """For each process: how many times in a row its work has expired."""
    history: list[tuple[Process, WorkEvent, int]] = field(default_factory=list)
    """Process, event, and session."""

    @property
    def needs(self) -> Process | None:
        """Return the loop that the machine needs; None: no loop works on it."""
        if self.quarantined or self.decommissioned:
            return None
        return Process.AGENT_START if self.started_at is None else Process.RECOVERY

    @property
    def reported(self) -> bool:
        """Return whether the present agent has ever reported."""
        return self.heartbeat_at is not None


@dataclass(frozen=True)
class Pause:
    """A pause; None applies to all."""

    machine: int | None = None
    process: Process | None = None
    until: int | None = None


@dataclass
class Session:
    """Alive until its deadline, or until it is closed."""

    seconds: int
    deadline: int


@dataclass
class Model:
    """The BMDB of one provider."""

    now: int = 0
    machines: list[Machine] = field(default_factory=list)
    sessions: list[Session] = field(default_factory=list)
    work: dict[tuple[int, Process], int] = field(default_factory=dict)
    """The session that works on a machine for a process."""
    pauses: list[Pause] = field(default_factory=list)
    suspensions: dict[str, int | None] = field(default_factory=dict)
    """Where recovery was suspended, and when that ended; '' is everywhere."""
    taken_at: int | None = None
    """When the Recoverer took its last health snapshot."""
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """The gaps between snapshots, from when to when."""

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
        """Return whether the deadline is in the future."""
        return self.sessions[session].deadline > self.now

    def renew(self, session: int) -> None:
        """Move the deadline ahead, unless it has passed."""
        self._require(session)
        self.sessions[session].deadline = self.now + self.sessions[session].seconds

    def close(self, session: int) -> None:
        """Cancel the session's work, whether it has expired or not, and end it."""
        for (machine, process), holder in list(self.work.items()):
            if holder == session:
                self._end(machine, process, WorkEvent.CANCELED)
        self.expire(session)

    def expire(self, session: int) -> None:
        """Move the deadline to this moment, unless it has passed."""
        self.sessions[session].deadline = min(self.sessions[session].deadline, self.now)

    # Work.

    def claimable(self, process: Process) -> set[int]:
        """Return the machines that a claim may take, if it takes all."""
        return {number for number in range(len(self.machines)) if not self.obstacle(number, process)}

    def obstacle(self, number: int, process: Process) -> str | None:
        """Return the promise that a claim of this machine would break; None: it may be claimed."""
        machine = self.machines[number]
        backoff_until, _ = machine.backoffs.get(process, (0, None))
        not_back = (
            process is Process.RECOVERY
            and machine.needs is Process.AGENT_START
            and machine.expected_back_since is not None
            and machine.backoffs.get(Process.AGENT_START, (0, None))[1] is not None  # an agent start has failed since
        )
        if machine.needs is not process and not not_back:
            return "a_claim_takes_only_machines_that_need_it"
        if any((number, other) in self.work for other in LOOPS):
            return "no_machine_has_two_live_works"
        if any(self._in_force(pause, number, process) for pause in self.pauses):
            return "a_paused_machine_is_not_touched"
        if backoff_until > self.now or (self._in_grace(machine) if not_back else machine.boot_wait_until > self.now):
            return "backoff_and_boot_wait_are_observed"
        if process is machine.needs is Process.RECOVERY and self._not_unhealthy(machine):
            return "no_healthy_machine_is_rebooted"
        return None

    def claim(self, session: int, process: Process, machines: set[int]) -> None:
        """Claim these machines."""
        self._require(session)
        for machine in machines:
            self._start(session, process, machine)

    def start(self, session: int, machine: int) -> None:
        """Start an operator's work on one machine, due or not."""
        self._require(session)
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
        """Return whether a machine that was claimed for recovery may be interrupted at this moment."""
        self._require(session)
        return (
            self.work.get((machine, Process.RECOVERY)) == session
            and self.machines[machine].needs is Process.RECOVERY
            and not self._not_unhealthy(self.machines[machine])
            and not any(self._in_force(pause, machine, Process.RECOVERY) for pause in self.pauses)
        )

    def ended_last(self, session: int, process: Process, machine: int, event: WorkEvent) -> bool:
        """Return whether *event* is the last event of the session on the machine for the process."""
        own = [each for each in self.machines[machine].history if each[0] is process and each[2] == session]
        return bool(own) and own[-1][1] is event

    def fail(self, session: int, process: Process, machine: int, seconds: int) -> bool:
        """End work as failed."""
        ended = self.end(session, process, machine, WorkEvent.FAILED)
        if ended:
            self.machines[machine].backoffs[process] = (self.now + seconds, seconds)
        return ended

    def agent_started(self, session: int, machine: int) -> bool:
        """End an agent start as done."""
        ended = self.end(session, Process.AGENT_START, machine, WorkEvent.FINISHED)
        if ended:
            found = self.machines[machine]
            found.started_at, found.heartbeat_at, found.expected_back_since = self.now, None, None
            found.interval = 0
        return ended

    def recovered(self, session: int, machine: int, boot_wait_seconds: int) -> bool:
        """End a recovery as done."""
        ended = self.end(session, Process.RECOVERY, machine, WorkEvent.FINISHED)
        if ended:
            self.machines[machine].boot_wait_until = self.now + boot_wait_seconds
            self._expect_back(self.machines[machine])
        return ended

    def quarantine(self, session: int, machine: int) -> bool:
        """End a recovery by quarantine."""
        ended = self.end(session, Process.RECOVERY, machine, WorkEvent.FINISHED)
        if ended:
            self.machines[machine].quarantined = True
            self.machines[machine].backoffs.clear()
            self.machines[machine].deaths.clear()
        return ended

    # Operators.

    def unquarantine(self, machine: int) -> bool:
        """End the quarantine, and return whether there was one."""
        found = self.machines[machine]
        was, found.quarantined = found.quarantined, False
        if was:
            self._expect_back(found)
        return was

    def retry(self, machine: int) -> bool:
        """End the backoffs in force and those of suspects, and return whether there were any."""
        backoffs, deaths = self.machines[machine].backoffs, self.machines[machine].deaths
        ended = [process for process, (until, _) in backoffs.items() if until > self.now or deaths[process] > 0]
        for process in ended:
            del backoffs[process]
            self.machines[machine].deaths.pop(process, None)
        return bool(ended)

    def resume(self, pause: Pause) -> bool:
        """End a pause, and return whether there was one."""
        there = pause in self.pauses
        if there:
            self.pauses.remove(pause)
        return there

    def forget(self, machine: int, fresh_seconds: int) -> bool:
        """Forget a machine, unless a session works on it or its agent reports; return whether it is forgotten."""
        found = self.machines[machine]
        worked = any(number == machine and self.alive(session) for (number, _), session in self.work.items())
        fresh = found.heartbeat_at is not None and found.heartbeat_at > self.now - fresh_seconds
        if not found.decommissioned and not worked and not fresh:
            found.decommissioned = True
            found.started_at = found.heartbeat_at = found.expected_back_since = None
            found.quarantined = False
            found.backoffs.clear()
            found.deaths.clear()
            self.pauses = [pause for pause in self.pauses if pause.machine != machine]
        return found.decommissioned

    # Other events.

    def appear(self, location: str | None) -> None:
        """Add a machine."""
        self.machines.append(Machine(location))

    def heartbeat(self, machine: int, interval: int | None = None) -> None:
        """Record a heartbeat, if there is an agent, which is told an *interval*; None: as before."""
        found = self.machines[machine]
        if found.started_at is not None:
            found.heartbeat_at = self.now
            found.interval = found.interval if interval is None else interval

    def suspend(self, session: int, where: set[str]) -> None:
        """Suspend recovery there, and nowhere else."""
        self._require(session)
        for location, ended_at in self.suspensions.items():
            if ended_at is None and location not in where:
                self.suspensions[location] = self.now
        self.suspensions |= dict.fromkeys(where)

    def take_snapshot(self, session: int) -> None:
        """Take a health snapshot, which ends a gap."""
        self._require(session)
        if self.taken_at is not None:
            self.gaps.append((self.taken_at, self.now))
        self.taken_at = self.now

    def reaped(self) -> Model:
        """Return the state after a session is opened now."""
        other = copy.deepcopy(self)
        other.open(1)
        return other

    def unended(self) -> Counter[Process]:
        """Return how much work was started and not ended, by the history alone."""
        found: Counter[Process] = Counter()
        for machine in self.machines:
            for process, event, _ in machine.history:
                found[process] += 1 if event is WorkEvent.STARTED else -1
        return found

    def _require(self, session: int) -> None:
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

    def _expect_back(self, machine: Machine) -> None:
        machine.started_at, machine.heartbeat_at, machine.expected_back_since = None, None, self.now
        machine.backoffs.clear()
        machine.deaths.clear()

    def _in_grace(self, machine: Machine) -> bool:
        """Return whether a machine is still in its grace: during a suspension, and as long again afterwards."""
        since = machine.expected_back_since or 0
        for location in {"", machine.location or ""} & self.suspensions.keys():
            ended_at = self.suspensions[location]
            since = max(since, self.now if ended_at is None else ended_at)
        return since + GRACE_SECONDS > self.now

    def _not_unhealthy(self, machine: Machine) -> bool:
        """Return whether the agent reported recently, could not report, or is still in its startup timeout."""
        timeout = STARTUP_TIMEOUT_SECONDS
        if machine.reported:
            timeout = max(HEARTBEAT_TIMEOUT_SECONDS, 5 * machine.interval // 2)
        last = max(machine.started_at or 0, machine.heartbeat_at or 0)
        for location in {"", machine.location or ""} & self.suspensions.keys():
            ended_at = self.suspensions[location]
            last = max(last, self.now if ended_at is None else ended_at)
        gaps = self.gaps if self.taken_at is None else [*self.gaps, (self.taken_at, self.now)]
        among = [Gap(ended - began, self.now - ended) for began, ended in gaps]
        return self.now - last < extended_timeout(timeout, among, machine.interval)
