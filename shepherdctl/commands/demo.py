"""`shepherdctl demo` and `shepherdctl simulate`: Shepherd in a world of its own, on this computer."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.live import Live

from shepherdctl.live_view import Show, until

if TYPE_CHECKING:
    from simulator.environment.environment import Environment
    from simulator.environment.status import MachineStatus

ProviderName = Literal["equinix", "redfish", "hetzner"]
_PROVIDER = typer.Option(help="Where the machines come from; all of them are simulated.")


def demo(
    machines: Annotated[
        int, typer.Option(min=3, max=50, help="Machines to take from capacity to running agents.")
    ] = 10,
    provider: Annotated[ProviderName, _PROVIDER] = "equinix",
    speed: Annotated[float, typer.Option(min=1, max=120, help="Minutes of the fleet that pass in a minute.")] = 60,
    seed: Annotated[int, typer.Option(help="What chance depends on: ids, and which events are delivered twice.")] = 0,
    picture: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Draw the run into this file, as SVG, if nothing went wrong.")
    ] = None,
) -> None:
    """
    Watch machines go from capacity to running agents, and two of them be faulted and brought back.

    Then the endpoint that the agents report to is away for a while, and
    nobody may be rebooted for that.

    The real functions run against a simulated provider, simulated machines
    with real SSH, and a real PostgreSQL, all on this computer. Takes about a
    minute. Exit status 1: something is not as it should be, and it says what.
    """
    from simulator.environment.environment import Environment, EnvironmentSettings  # noqa: PLC0415
    from simulator.environment.machine_source import MACHINE_SOURCES  # noqa: PLC0415
    from simulator.environment.status import machine_statuses, report, violated_invariants  # noqa: PLC0415 - a world takes seconds to import

    console = Console()
    console.print(
        f"{machines} {MACHINE_SOURCES[provider].kind}; a second here is {speed / 60:g} min of the fleet.",
        highlight=False,
        soft_wrap=True,
    )
    live = Live(console=console, refresh_per_second=4) if console.is_terminal else None
    show = Show(console, live)
    found: list[str] = []
    settings = EnvironmentSettings(machines=machines, provider=provider, speed=speed, seed=seed)
    with Environment(settings, on_invocation=show.events.put) as world:
        patience = world.scaled(3600) + 30
        with live or nullcontext():
            if not until(world, show, lambda s: len(s) == machines and all(each.running for each in s), patience):
                found.append(f"not all machines ran their agents after {patience:.0f} s")
            else:
                show.say(world, f"{'':<11}  all {machines} machines run their agents")
                for victim, fault in zip(world.pool.names(), ("stop_agents", "hang"), strict=False):
                    world.inject_fault(victim, fault)
                    show.say(world, f"{'':<11}  fault: {fault} on {victim[:8]}")
                show.say(world, f"{'':<11}  (the Recoverer gives them 10 min to report)")
                rebooted = {"stop_agents": False, "hang": False}

                def recovered(statuses: list[MachineStatus]) -> bool:
                    rebooted.update({fault: world.pool.reboots(name) > 0 for name, fault in world.faulted.items()})
                    return all(rebooted.values()) and all(machine.running for machine in statuses)

                if not until(world, show, recovered, patience):
                    found.append(f"not all machines were back after {patience:.0f} s")
                else:
                    show.say(world, f"{'':<11}  both are back")
                    found += _outage(world, show, patience)
            world.schedules.close()
            show.refresh(world, machine_statuses(world))
        found += violated_invariants(world)
        summary = report(world)
        found += [
            f"{name} failed {counts['failed']} times"
            for name, counts in summary["functions"].items()
            if "failed" in counts
        ]
        _summarize(console, summary)
        if world.faulted:
            _tell_history(console, world, next(reversed(world.faulted)))
        _conclude(console, found, world.folder / "functions.log", "Everything is as it should be.")
        if picture is not None:
            show.draw(world, machine_statuses(world), picture)


def _outage(world: Environment, show: Show, patience: float) -> list[str]:
    """Let the agents be heard by nobody, for longer than any may be silent; return what went wrong."""
    rebooted = {name: world.pool.reboots(name) for name in world.pool.names()}
    world.endpoint.outage = True
    show.say(world, f"{'':<11}  outage: nobody hears the agents")
    end = world.elapsed + world.scaled(900)
    if not until(world, show, lambda _: show.recovery_suspended and world.elapsed > end, patience):
        return ["the Recoverer did not hold back"]
    world.endpoint.outage = False
    show.say(world, f"{'':<11}  the outage is over")
    if not until(
        world, show, lambda statuses: all(each.running for each in statuses) and not show.recovery_suspended, patience
    ):
        return [f"not all agents were heard again after {patience:.0f} s"]
    show.say(world, f"{'':<11}  all agents are heard again")
    return [
        f"{name} was rebooted although it was only our ears that failed"
        for name, count in rebooted.items()
        if world.pool.reboots(name) != count
    ]


def simulate(
    machines: Annotated[int, typer.Option(min=1, max=100_000, help="Machines of the provider.")] = 20,
    provider: Annotated[ProviderName, _PROVIDER] = "equinix",
    minutes: Annotated[float, typer.Option(min=1, help="Minutes of the fleet to simulate.")] = 60,
    faults: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="What is to go wrong; see docs/simulator.md.")
    ] = None,
    speed: Annotated[float, typer.Option(min=1, max=120, help="Minutes of the fleet that pass in a minute.")] = 60,
    seed: Annotated[int, typer.Option(help="What chance depends on: ids, and which events are delivered twice.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """
    Run a world of any size for a while, with faults, and report what came of it.

    Exit status 1: a promise was broken (a machine lost or doubled, a healthy
    machine rebooted, work that never ended). Machines that are not running in
    the end are reported, and are no reason for it: look at the faults.
    """
    from simulator.environment.environment import Environment, EnvironmentSettings  # noqa: PLC0415
    from simulator.environment.faults import Faults, load  # noqa: PLC0415 - a world takes seconds to import
    from simulator.environment.status import report, violated_invariants  # noqa: PLC0415

    script = Faults() if faults is None else load(faults)
    if beyond := [fault.machine for fault in script.machines if fault.machine >= machines]:
        message = f"{faults} harms machine {beyond[0]}, but there are only {machines}, counted from 0"
        raise typer.BadParameter(message)
    console = Console(stderr=as_json)
    live = Live(console=console, refresh_per_second=4) if console.is_terminal else None
    show = Show(console, live)
    settings = EnvironmentSettings(machines=machines, provider=provider, speed=speed, seed=seed, faults=script)
    with Environment(settings, on_invocation=show.events.put) as world:
        with live or nullcontext():
            until(world, show, lambda _: False, world.scaled(minutes * 60))
            world.schedules.close()
        found = violated_invariants(world)
        summary = {**report(world), "problems": found}
        if as_json:
            typer.echo(json.dumps(summary, indent=2))
        else:
            _summarize(console, summary)
        verdict = f"No promise was broken; {summary['running']} of {summary['machines']} machines run their agents."
        _conclude(console, found, world.folder / "functions.log", verdict)


def _summarize(console: Console, summary: dict[str, object]) -> None:
    console.print()
    for key, value in summary.items():
        if key != "problems":
            text = ", ".join(f"{k} {_flat(v)}" for k, v in value.items()) if isinstance(value, dict) else value
            text = "none" if text == "" else text
            console.print(f"{key.replace('_', ' '):>22}  {text}", highlight=False, soft_wrap=True)


def _flat(value: object) -> str:
    return "(" + ", ".join(f"{k} {v}" for k, v in value.items()) + ")" if isinstance(value, dict) else str(value)


def _tell_history(console: Console, world: Environment, provider_id: str) -> None:
    machine_id = next(row["machine_id"] for row in world.machines() if row["provider_id"] == provider_id)
    fault = world.faulted[provider_id]
    console.print(
        f"\nhistory of machine {machine_id}, provider id {provider_id[:8]} ({fault}):", highlight=False, soft_wrap=True
    )
    for entry in reversed(world.history(machine_id)):
        cause = f"  {entry['failed_cause']}" if entry["failed_cause"] else ""
        event = " ".join(filter(None, (entry["event"], entry["step"])))
        line = f"  {entry['timestamp']:%H:%M:%S.%f}"[:-3] + f"  {entry['process']:<18}  {event}{cause}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _conclude(console: Console, found: list[str], log: Path, verdict: str) -> None:
    if not found:
        console.print(f"\n{verdict}", style="green", highlight=False)
        return
    console.print("\nNot as it should be:", style="red")
    for problem in found:
        console.print(f"  - {problem}", highlight=False, markup=False, soft_wrap=True)
    errors = [line for line in log.read_text().splitlines() if '"level":"ERROR"' in line or "Traceback" in line]
    for line in errors[-3:]:
        console.print(line[:2000], highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit(1)
