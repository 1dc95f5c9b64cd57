"""A complete environment: from nothing to all agents running, with the real functions, provider calls and SSH."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from bench.cost.formula import Amounts, dollars, month
from bench.cost.inputs import Inputs
from bench.results import Result, Table, median
from simulator.environment.environment import Environment, EnvironmentSettings
from simulator.lambda_.service import Invocation
from tests.support.bmdb.fleet import administrator

SPEED = 6
"""The fastest at which two processors can send the heartbeats of that many agents."""
LIMIT_SECONDS = 1800
MACHINES = 1000
"""Each has a real agent, a process of 12 MB or so."""
CREATION_SECONDS = 5
"""Between two creations, in fleet time."""
_MONTH_MINUTES = 730 * 60


@dataclass(frozen=True, kw_only=True)
class Run:
    """The observations of an environment."""

    machines: int
    speed: float
    seconds: float
    minutes: float
    """Of fleet time."""
    ticks: list[Invocation]
    calls: Mapping[tuple[str, str], int]
    """The calls of the provider, by method and path."""
    database_seconds: float
    attempts: int
    """The number of attempts to start an agent."""
    waited_minutes: tuple[float, float]
    """From the creation of a machine to its agent: median and longest."""
    heartbeats: int
    refused: int
    """Heartbeats that were throttled; agents repeat them."""
    heartbeat_seconds: float
    """The total run time of the agent API."""

    def busy(self, *functions: str) -> float:
        """Return the run time of *functions* in seconds; of all loops if none is named."""
        return sum(tick.seconds for tick in self.ticks if not functions or tick.function in functions)


def measure(*, quick: bool) -> Result:
    """Return the figures."""
    run = _run(3, 60) if quick else _run(MACHINES, SPEED)
    listings = sum(count for (method, path), count in run.calls.items() if method == "GET" and not path.endswith("}"))
    # The key is added to the project once, whatever the number of machines.
    keys = sum(count for (method, path), count in run.calls.items() if method != "GET" and path.endswith("/ssh-keys"))
    single = (sum(run.calls.values()) - listings - keys) / run.machines
    done = [tick for tick in run.ticks if not tick.throttled]
    result = Result()
    result.tables.append(
        Table(
            f"{run.machines} machines of capacity to {run.machines} agents that report, {run.speed:g} times as fast",
            ["what", "figure"],
            [
                ["seconds of the run", run.seconds],
                ["minutes of fleet time", run.minutes],
                ["minutes from creation to agent, median", run.waited_minutes[0]],
                ["minutes from creation to agent, longest", run.waited_minutes[1]],
                *([f"invocations: {name}", count] for name, count in sorted(Counter(t.function for t in done).items())),
                *(
                    [f"failed invocations: {name}, {error}", count]
                    for (name, error), count in sorted(
                        Counter((tick.function, tick.error.partition(":")[0]) for tick in done if tick.error).items()
                    )
                ),
                ["invocations throttled because the one before still ran", len(run.ticks) - len(done)],
                ["seconds of functions, without the agent API", run.busy()],
                ["attempts to start an agent, per machine", run.attempts / run.machines],
                ["heartbeats", run.heartbeats],
                ["heartbeats throttled, and sent again", run.refused],
                ["database milliseconds per machine", 1000 * run.database_seconds / run.machines],
                ["provider calls per machine, without listings and our key", single],
                ["listings, including those of keys", listings],
                *([f"calls: {method} {path}", count] for (method, path), count in sorted(run.calls.items())),
            ],
        )
    )
    result.tables += _costs(run, done)
    result.at_most("provider calls for each machine, besides listings", 2, single)
    return result


def _run(machines: int, speed: float) -> Run:
    ticks: list[Invocation] = []
    settings = EnvironmentSettings(machines=machines, provider="equinix", speed=speed, twice=0)
    with Environment(settings, ticks.append) as environment:
        admin = administrator(environment.bmdb_settings)
        end = time.monotonic() + LIMIT_SECONDS
        running = 0
        while running < machines:
            if time.monotonic() > end:
                raise RuntimeError(f"{running} of {machines} agents run after {LIMIT_SECONDS} s")
            time.sleep(0.5)
            # An agent runs if it has sent a heartbeat.
            running = admin.run("SELECT count(*) FROM machine_agent_heartbeat")[0][0]
        seconds, minutes, seen = environment.elapsed, environment.minutes, list(ticks)
        calls = Counter(environment.machine_source._server.calls)  # type: ignore[attr-defined]  # noqa: SLF001 - by method and path
        counts, at_work = Counter(environment.functions.counts), environment.functions.seconds["agent_api"]
        active = admin.run("SELECT active_time FROM pg_stat_database WHERE datname = current_database()")[0][0]
        attempts = admin.run(
            "SELECT count(*) FROM work_history WHERE process = 'ShepherdAgentStart' AND event = 'Started'"
        )[0][0]
        waited = admin.run(
            "SELECT extract(epoch FROM percentile_cont(0.5) WITHIN GROUP (ORDER BY waited))::float8, "
            "extract(epoch FROM max(waited))::float8 FROM (SELECT agent_started_at - machine_created_at AS waited "
            "FROM machines JOIN machine_agent_started USING (machine_id)) AS machine"
        )[0]
        admin.close()
    return Run(
        machines=machines,
        speed=speed,
        seconds=seconds,
        minutes=minutes,
        ticks=seen,
        calls=calls,
        database_seconds=active / 1000,
        attempts=attempts,
        waited_minutes=(waited[0] * speed / 60, waited[1] * speed / 60),
        heartbeats=counts["agent_api", "invoked"],
        refused=counts["agent_api", "throttled"],
        heartbeat_seconds=at_work,
    )


def _costs(run: Run, done: list[Invocation]) -> list[Table]:
    """Return the costs by the formula of the docs, with its assumptions and with the measured values."""
    assumed = Inputs()
    measured = replace(
        assumed,
        idle_seconds=median([tick.seconds for tick in done if tick.function == "recoverer"]),
        agent_start_seconds=run.busy("initializer") / run.attempts,
        heartbeat_wait_ms=run.heartbeat_seconds / run.heartbeats * 1000,
        heartbeat_cpu_ms=0,
    )
    # The waits between creations are billed, and shorter here.
    waits = run.machines * CREATION_SECONDS
    listings = sum(tick.function in {"provisioner", "updater"} for tick in done)
    gb_seconds = {
        "measured": run.busy("initializer") * assumed.initializer_memory_gb
        + (run.busy("provisioner", "recoverer", "updater") + waits * (1 - 1 / run.speed)) * assumed.memory_gb,
        "assumed": run.attempts * assumed.agent_start_seconds * assumed.initializer_memory_gb
        + len(done) * assumed.idle_seconds * assumed.memory_gb
        + listings * run.machines / 1000 * assumed.listing_seconds_per_thousand * assumed.memory_gb
        + waits * assumed.memory_gb,
    }
    sides = {
        name: dollars(
            Amounts(
                months=run.minutes / _MONTH_MINUTES,
                ticks=len(done),
                starts=run.attempts,
                gb_seconds=gb_seconds[name],
                requests=run.heartbeats,
                request_gb_seconds=run.heartbeats * inputs.request_ms / 1000 * inputs.api_memory_gb,
                request_gb=run.heartbeats * inputs.request_bytes / 1e9,
            ),
            inputs,
        )
        for name, inputs in (("measured", measured), ("assumed", assumed))
    }
    months = [month(run.machines, inputs) for inputs in (measured, assumed)]
    columns = [*sides.values(), *months]
    names = [name for name in months[0] if name != "database"]
    return [
        Table(
            "US dollars by the formula of docs/deployment.md, without the database; only the seconds differ",
            ["what", "this run, as measured", "as assumed", "a month, as measured", "as assumed"],
            [
                *([name, *(float(column[name]) for column in columns)] for name in names),
                ["sum", *(float(sum(column.values())) for column in columns)],
            ],
        ),
        Table(
            "Times that the formula uses",
            ["input", "measured here", "assumed"],
            [
                [name, getattr(measured, name), getattr(assumed, name)]
                for name in ("idle_seconds", "agent_start_seconds", "request_ms")
            ],
        ),
    ]
