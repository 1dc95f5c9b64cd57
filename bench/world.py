"""A whole world: from nothing to all agents running, through the real functions, provider calls and SSH sessions."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from bench.fleet import driver
from bench.results import Result, Table
from simulator.world import Settings, World

if TYPE_CHECKING:
    from simulator.lambda_service import Invocation

SPEED = 10
LIMIT_SECONDS = 1800
MACHINES = 200
"""Each has a real agent, a process of 12 MB or so."""


def measure(*, quick: bool) -> Result:
    """Return the figures."""
    machines = 3 if quick else MACHINES
    ticks: list[Invocation] = []
    settings = Settings(machines=machines, speed=60 if quick else SPEED, twice=0)
    with World(settings, ticks.append) as world:
        admin = driver(world.bmdb_settings)
        end = time.monotonic() + LIMIT_SECONDS
        running = 0
        while running < machines:
            if time.monotonic() > end:
                raise RuntimeError(f"{running} of {machines} agents run after {LIMIT_SECONDS} s")
            time.sleep(0.5)
            # Its heartbeat says that an agent runs.
            running = admin.run("SELECT count(*) FROM machine_agent_heartbeat")[0][0]
        seconds, minutes = world.elapsed, world.minutes
        calls = world.supply._server.calls  # type: ignore[attr-defined]  # noqa: SLF001 - by method and path
        active = admin.run("SELECT active_time FROM pg_stat_database WHERE datname = current_database()")[0][0]
        admin.close()
    done = list(ticks)
    loops = Counter(tick.function for tick in done)
    busy = sum(tick.seconds for tick in done)
    listings = sum(count for (method, path), count in calls.items() if method == "GET" and not path.endswith("}"))
    single = sum(calls.values()) - listings
    result = Result()
    result.tables.append(
        Table(
            f"{machines} machines of capacity to {machines} agents that report, {settings.speed:g} times as fast",
            ["what", "figure"],
            [
                ["seconds here", seconds],
                ["minutes of the fleet", minutes],
                *([f"ticks: {name}", count] for name, count in sorted(loops.items())),
                ["ticks that failed", sum(tick.error is not None for tick in done)],
                ["ticks that were throttled, because the one before still ran", sum(tick.throttled for tick in done)],
                ["seconds of functions, agents' API left out", busy],
                ["milliseconds of the database for each machine", active / machines],
                ["provider calls for each machine, listings left out", single / machines],
                ["listings", listings],
                *([f"calls: {method} {path}", count] for (method, path), count in sorted(calls.items())),
            ],
        )
    )
    result.at_most("provider calls for each machine, besides listings", 2, single / machines)
    return result
