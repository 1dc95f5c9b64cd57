"""The status of a simulated environment, and the invariants that must hold in it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uuid import UUID

    from simulator.environment.environment import World

_FRESH_SECONDS = 180
"""An agent runs if its last heartbeat is no older than this, in fleet time: three heartbeat intervals."""


@dataclass(frozen=True)
class Sight:
    """The status of one machine."""

    machine_id: UUID
    provider_id: str
    power: str
    """The actual state of the simulated machine, whatever the BMDB holds."""
    state: str
    """The state according to the BMDB, in words."""
    running: bool
    """Whether its agent was started and has reported within the last three heartbeat intervals."""
    heartbeat_age: float | None
    """Seconds of fleet time."""


def look(world: World) -> list[Sight]:
    """Return every machine of the BMDB, in the order of creation."""
    now = datetime.now(UTC)
    return [_sight(world, row, now) for row in sorted(world.machines(), key=lambda row: row["machine_created_at"])]


def _sight(world: World, row: dict[str, Any], now: datetime) -> Sight:
    provider_id = row["provider_id"] or ""
    power = world.park.state(provider_id).name.lower() if provider_id in world.park.names() else "nowhere"
    beat, started = row["agent_heartbeat_at"], row["agent_started_at"]
    age = None if beat is None else (now - beat).total_seconds() * world.settings.speed
    running = started is not None and age is not None and age <= _FRESH_SECONDS
    if row["being_worked_on"]:
        state = "being worked on"
    elif running:
        state = "agent running"
    elif started is not None:
        state = "agent started" if age is None else "agent unhealthy"
    elif row["backing_off"]:
        state = "backing off"
    else:
        state = "needs its agent"
    return Sight(row["machine_id"], provider_id, power, state, running, age)


def problems(world: World) -> list[str]:
    """
    Return the violated invariants, which hold whatever faults are injected; call it while no function runs.

    Each machine in use at the provider is in the BMDB, at least as a creation under way, and the reverse. A machine
    runs at most one agent. Only machines with injected faults are rebooted. All work that was started has ended once.
    """
    found = [f"the simulator itself failed: {error}" for error in world.supply.errors]
    rows = world.machines()
    begun = {str(row["machine_id"]) for row in rows if row["provider_id"] is None}
    used = {provider_id for provider_id, token in world.supply.in_use().items() if token not in begun}
    there = set(world.supply.names())
    known = {row["provider_id"] for row in rows} - {None}
    found += [f"{provider_id} is at the provider and not in the BMDB" for provider_id in sorted(used - known)]
    found += [f"{provider_id} is in the BMDB and not at the provider" for provider_id in sorted(known - there)]
    for provider_id, agents in world.park.all_agents().items():
        if len(agents) > 1:
            found.append(f"{provider_id} runs {len(agents)} agents")
        if world.park.reboots(provider_id) and provider_id not in world.harmed:
            found.append(f"{provider_id} was rebooted although nothing was wrong with it")
    for row in rows:
        events = Counter((entry["process"], entry["event"]) for entry in world.history(row["machine_id"]))
        for process in {process for process, _ in events}:
            started = events[process, "Started"]
            ended = sum(events[process, event] for event in ("Finished", "Failed", "Canceled", "Expired", "Recovered"))
            if started != ended:
                found.append(f"{row['provider_id']}: {started} work by {process} was started and {ended} ended")
    return found


def report(world: World) -> dict[str, Any]:
    """Return a summary in terms that JSON has."""
    sights = look(world)
    causes: Counter[str] = Counter()
    recovered = 0
    for sight in sights:
        history = world.history(sight.machine_id)
        causes.update(entry["failed_cause"].split(":")[0] for entry in history if entry["event"] == "Failed")
        recovered += sum(entry["process"] == "ShepherdRecovery" and entry["event"] == "Finished" for entry in history)
    functions: dict[str, dict[str, int]] = {}
    for (name, what), count in sorted(world.functions.counts.items()):
        functions.setdefault(name, {})[what.replace(" ", "_")] = count
    return {
        "machines": len(sights),
        "running": sum(sight.running for sight in sights),
        "harmed": len(world.harmed),
        "recoveries": recovered,
        "failures": dict(causes.most_common()),
        "functions": functions,
        "events_delivered_twice": world.schedules.duplicates,
        "provider_calls": world.supply.calls,
        "fleet_minutes": round(world.minutes, 1),
        "seconds": round(world.elapsed, 1),
    }
