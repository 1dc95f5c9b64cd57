"""The status of a simulated environment, and the invariants that must hold in it."""

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from shepherd_core.bmdb.machines.search import FoundMachine
from shepherd_core.domain.machine import WorkEvent

from simulator.environment.environment import Environment

_FRESH_INTERVALS = 3
_ENDS = (WorkEvent.FINISHED, WorkEvent.FAILED, WorkEvent.CANCELED, WorkEvent.EXPIRED, WorkEvent.RECOVERED)
"""An agent runs if its last heartbeat is no older than so many heartbeat intervals."""


@dataclass(frozen=True)
class MachineStatus:
    """The status of one machine."""

    machine_id: UUID
    provider_id: str
    power: str
    """The actual state of the simulated machine, whatever the BMDB holds."""
    state: str
    """The state according to the BMDB, in words."""
    worked_on: bool
    """Whether a loop works on it now."""
    running: bool
    """Whether its agent was started and has reported within the last three heartbeat intervals."""
    heartbeat_age: float | None
    """Seconds of fleet time."""


def machine_statuses(environment: Environment) -> list[MachineStatus]:
    """Return every machine of the BMDB, in the order of creation."""
    now = datetime.now(UTC)
    return [
        _machine_status(environment, row, now)
        for row in sorted(environment.machines(), key=lambda row: row.machine_created_at)
    ]


def _machine_status(environment: Environment, row: FoundMachine, now: datetime) -> MachineStatus:
    provider_id = row.provider_id or ""
    power = environment.pool.state(provider_id).name.lower() if provider_id in environment.pool.names() else "nowhere"
    beat, started = row.agent_heartbeat_at, row.agent_started_at
    age = None if beat is None else (now - beat).total_seconds() * environment.settings.speed
    running = started is not None and age is not None and age <= _FRESH_INTERVALS * environment.heartbeat_seconds
    if running:
        state = "running"
    elif started is not None:
        state = "starting" if age is None else "no heartbeat"
    elif row.backing_off:
        state = "backing off"
    else:
        state = "needs agent"
    return MachineStatus(row.machine_id, provider_id, power, state, row.being_worked_on, running, age)


def violated_invariants(environment: Environment) -> list[str]:
    """
    Return the violated invariants. They must hold whatever faults are injected. Call it while no function runs.

    Each machine in use at the provider is in the BMDB, at least as a creation under way, and the reverse. A machine
    runs at most one agent. Only machines with injected faults are rebooted. All work that was started has ended once.
    """
    found = [f"the simulator itself failed: {error}" for error in environment.machine_source.errors]
    rows = environment.machines()
    begun = {str(row.machine_id) for row in rows if row.provider_id is None}
    used = {provider_id for provider_id, token in environment.machine_source.in_use().items() if token not in begun}
    there = set(environment.machine_source.names())
    known = {row.provider_id for row in rows if row.provider_id is not None}
    found += [f"{provider_id} is at the provider and not in the BMDB" for provider_id in sorted(used - known)]
    found += [f"{provider_id} is in the BMDB and not at the provider" for provider_id in sorted(known - there)]
    for provider_id, agents in environment.pool.all_agents().items():
        if len(agents) > 1:
            found.append(f"{provider_id} runs {len(agents)} agents")
        if environment.pool.reboots(provider_id) and provider_id not in environment.faulted:
            found.append(f"{provider_id} was rebooted although nothing was wrong with it")
    for row in rows:
        events = Counter((entry.process, entry.event) for entry in environment.history(row.machine_id))
        for process in {process for process, _ in events}:
            started = events[process, WorkEvent.STARTED]
            ended = sum(events[process, event] for event in _ENDS)
            if started != ended:
                found.append(f"{row.provider_id}: {process} was started {started} times and ended {ended} times")
    return found


def report(environment: Environment) -> dict[str, Any]:
    """Return a summary in the types of JSON."""
    statuses = machine_statuses(environment)
    causes: Counter[str] = Counter()
    recovered = 0
    for machine in statuses:
        history = environment.history(machine.machine_id)
        causes.update(str(entry.kind) for entry in history if entry.event == "Failed")
        recovered += sum(entry.process == "ShepherdRecovery" and entry.event == "Finished" for entry in history)
    functions: dict[str, dict[str, int]] = {}
    for (name, what), count in sorted(environment.functions.counts.items()):
        functions.setdefault(name, {})[what.replace(" ", "_")] = count
    return {
        "machines": len(statuses),
        "running": sum(machine.running for machine in statuses),
        "faulted": len(environment.faulted),
        "recoveries": recovered,
        "failures": dict(causes.most_common()),
        "heartbeats": environment.endpoint.accepted,
        "functions": functions,
        "events_delivered_twice": environment.schedules.duplicates,
        "provider_calls": environment.machine_source.calls,
        "fleet_minutes": round(environment.minutes, 1),
        "seconds": round(environment.elapsed, 1),
    }
