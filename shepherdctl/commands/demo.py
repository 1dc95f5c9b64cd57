"""`shepherdctl demo` and `shepherdctl simulate`: Shepherd in a simulated environment, on this computer."""

from __future__ import annotations

import json
import math
import shlex
import signal
import webbrowser
from contextlib import ExitStack, nullcontext
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.live import Live

from shepherdctl.formats import loop_name
from shepherdctl.live_view import FAULTS, LiveView, watch
from shepherdctl.output import Form, Output, counted, note
from simulator.providers import SimulatedProvider, machine_source

if TYPE_CHECKING:
    from simulator.environment.environment import Environment
    from simulator.environment.status import MachineStatus

_Provider = Annotated[SimulatedProvider, typer.Option(help="The provider of the machines; all of them are simulated.")]
_Speed = Annotated[float, typer.Option(min=1, max=120, help="Minutes of fleet time that pass in a minute.")]
_Seed = Annotated[int, typer.Option(help="Seed of all chance: ids, and which events are delivered twice.")]
_OUTAGE_MINUTES = 15
_RELAYED_SECONDS = 240
"""Fleet time between two heartbeats of a fleet with relays: the default of a deployment."""
_NEXT = """
Try next:
  make demo PROVIDER=redfish                       servers of your own, with BMCs
  .venv/bin/shepherdctl simulate --machines 100    a larger fleet: see docs/simulator.md
  docs/deployment.md                               how to deploy it
"""


def demo(
    machines: Annotated[int, typer.Option(min=3, max=50, help="Machines to create.")] = 10,
    provider: _Provider = "equinix",
    speed: _Speed = 60,
    seed: _Seed = 0,
    console: Annotated[
        bool, typer.Option("--console", help="Open the fleet in a browser, and keep it until Ctrl-C.")
    ] = False,
    picture: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Draw the run into this file, as SVG, if nothing went wrong.")
    ] = None,
) -> None:
    """
    Watch a fleet come up, two machines break and recover, and an outage that reboots none.

    First the machines are created and their agents started. Then two of them
    break, and the Recoverer brings them back. Then the agent API has an outage:
    recovery is suspended, and no machine is rebooted.

    The real functions run against a simulated provider, simulated machines with
    real SSH, and a real PostgreSQL, all on this computer. Takes about a minute.
    Exit status 1: something went wrong, and the end says what.
    """
    from simulator.environment.environment import Environment, EnvironmentSettings  # noqa: PLC0415
    from simulator.environment.status import machine_statuses, report, violated_invariants  # noqa: PLC0415 - slow to import

    terminal = Console()
    terminal.print(
        f"{machines} {machine_source(provider).kind}; a second here is {speed / 60:g} min of fleet time.",
        highlight=False,
        soft_wrap=True,
    )
    view = _view(terminal)
    settings = EnvironmentSettings(machines=machines, provider=provider, speed=speed, seed=seed)
    with Environment(settings, view.on_invocation, view.on_power_change) as environment, ExitStack() as stack:
        if console:
            _open_console(stack, environment)
        shown: list[str] = []
        with view.live or nullcontext():
            problems = _scenes(environment, view, shown)
            environment.schedules.close()
            view.refresh(environment, machine_statuses(environment))
        problems += violated_invariants(environment)
        summary = report(environment)
        problems += [
            f"{name} failed {counts['failed']} times"
            for name, counts in summary["functions"].items()
            if "failed" in counts
        ]
        _print_summary(terminal, summary)
        if environment.faulted:
            _print_history(terminal, environment, next(reversed(environment.faulted)))
        if not problems:
            terminal.print("\nWhat you saw:", highlight=False)
            for line in shown:
                terminal.print(f"  - {line}", highlight=False, soft_wrap=True)
        _conclude(terminal, problems, environment.folder / "functions.log", "Everything worked.")
        terminal.print(_NEXT, highlight=False, soft_wrap=True)
        if picture is not None:
            view.draw(environment, machine_statuses(environment), picture)
        if console:
            note("The console stays open: stop it with Ctrl-C.")
            signal.pause()


def _open_console(stack: ExitStack, environment: Environment) -> None:
    """Serve the console of *environment* until *stack* ends, and open it in the browser."""
    from shepherdctl.console.server import background  # noqa: PLC0415 - its libraries are an extra

    address = stack.enter_context(background(environment.bmdb_settings)).address_with_token
    note(f"The console is at {address}")
    webbrowser.open(address)


def _scenes(environment: Environment, view: LiveView, shown: list[str]) -> list[str]:
    """Play the scenes in their order; add to *shown* what each one showed, and return what went wrong."""
    limit = environment.scaled(3600) + 30
    machines = environment.settings.machines

    def all_running(statuses: list[MachineStatus]) -> bool:
        return len(statuses) == machines and all(machine.running for machine in statuses)

    if not watch(environment, view, all_running, limit):
        return [f"not all machines ran their agents after {limit:.0f} s"]
    view.say(environment, f"all {machines} machines are running")
    shown.append(f"{machines} machines were created, and their agents started, in {environment.minutes:.0f} min")

    started = {name: environment.pool.runs(name) for name in environment.pool.names()}
    view.say(environment, "two machines break:")
    for name, fault in zip(environment.pool.names(), ("stop_agents", "hang"), strict=False):
        environment.inject_fault(name, fault)
        view.say(environment, f"{name[:8]}: {FAULTS[fault]}", "fault")
    view.say(environment, "(recovery begins after 10 min without a heartbeat)")

    def recovered(statuses: list[MachineStatus]) -> bool:
        again = all(environment.pool.runs(name) > started[name] for name in environment.faulted)
        return again and all_running(statuses)

    if not watch(environment, view, recovered, limit):
        return [f"not all machines were running again after {limit:.0f} s"]
    view.say(environment, "both machines are running again")
    shown.append("two machines broke: one was rebooted; one answered over SSH, so only its agent was started anew")

    if problems := _outage(environment, view, limit):
        return problems
    shown.append("an outage of the agent API: recovery was suspended, no machine rebooted")
    return []


def _outage(environment: Environment, view: LiveView, limit: float) -> list[str]:
    """Let the agent API fail for longer than the heartbeat timeout; return what went wrong."""
    before = {name: environment.pool.reboots(name) for name in environment.pool.names()}
    environment.endpoint.outage = True
    view.say(environment, f"agent API outage of {_OUTAGE_MINUTES} min: no heartbeat arrives")
    end = environment.elapsed + environment.scaled(_OUTAGE_MINUTES * 60)
    if not watch(environment, view, lambda _: view.recovery_suspended and environment.elapsed > end, limit):
        return ["the Recoverer did not suspend recovery"]
    environment.endpoint.outage = False
    view.say(environment, "the outage is over")

    def back(statuses: list[MachineStatus]) -> bool:
        return all(machine.running for machine in statuses) and not view.recovery_suspended

    if not watch(environment, view, back, limit):
        return [f"not all agents reported again after {limit:.0f} s"]
    view.say(environment, "all agents report again")
    return [
        f"{name} was rebooted although only the agent API had failed"
        for name, count in before.items()
        if environment.pool.reboots(name) != count
    ]


def simulate(
    machines: Annotated[int, typer.Option(min=1, max=100_000, help="Machines at the provider.")] = 20,
    provider: _Provider = "equinix",
    minutes: Annotated[float, typer.Option(min=1, help="Minutes of fleet time to simulate.")] = 60,
    relays: Annotated[
        int, typer.Option(min=0, max=26, help="Relays, each at a location of its own, for all machines there.")
    ] = 0,
    interval: Annotated[
        float | None,
        typer.Option(min=60, max=3600, help="Seconds of fleet time between heartbeats, from the middle on."),
    ] = None,
    faults: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="File of the faults: see docs/simulator.md.")
    ] = None,
    speed: _Speed = 60,
    seed: _Seed = 0,
    hold: Annotated[
        bool, typer.Option("--hold", help="Keep the fleet until Ctrl-C, for shepherdctl in a second shell.")
    ] = False,
    output: Output = Form.TABLE,
) -> None:
    """
    Run a simulated fleet for a while, with faults, and report what happened.

    With --hold, it runs on until Ctrl-C, without a report. The settings for a
    second shell are printed at the beginning: type the line there that is shown.

    Exit status 1: an invariant was violated (a machine lost or created twice, a
    healthy machine rebooted, work without an end). Machines that are not running
    at the end are reported, but are no failure: the faults may explain them.
    """
    from simulator.environment.environment import Environment, EnvironmentSettings  # noqa: PLC0415
    from simulator.environment.faults import Faults, load  # noqa: PLC0415 - slow to import
    from simulator.environment.status import report, violated_invariants  # noqa: PLC0415

    script = Faults() if faults is None else load(faults)
    if beyond := [fault.machine for fault in script.machines if fault.machine >= machines]:
        message = f"{faults} names machine {beyond[0]}, but there are only {machines}, counted from 0"
        raise typer.BadParameter(message)
    if relays > 1 and not machine_source(provider).has_locations:
        message = f"{provider}'s simulated machines are at one location, and a location has one relay: --relays 1"
        raise typer.BadParameter(message)
    if hold and output is Form.JSON:
        message = "--hold and -o json exclude each other."
        raise typer.BadParameter(message)
    console = Console(stderr=output is Form.JSON)
    view = _view(console)
    settings = EnvironmentSettings(
        machines=machines,
        provider=provider,
        speed=speed,
        # A relay collects for two real seconds, so heartbeats must not be due every real second.
        heartbeat_seconds=_RELAYED_SECONDS if relays else 60,
        relays=relays,
        seed=seed,
        faults=script,
    )
    with Environment(settings, view.on_invocation, view.on_power_change) as environment:
        if hold:
            _print_settings(console, environment)
        with view.live or nullcontext():
            half = environment.scaled(minutes * 30)
            watch(environment, view, lambda _: False, half)
            if interval is not None:
                environment.set_heartbeat_seconds(interval)
                view.say(environment, f"agents are told to report every {environment.heartbeat_seconds:g} s")
            watch(environment, view, lambda _: False, math.inf if hold else half)
            environment.schedules.close()
        problems = violated_invariants(environment)
        summary = {**report(environment), "problems": problems}
        if output is Form.JSON:
            typer.echo(json.dumps(summary, indent=2))
        else:
            _print_summary(console, summary)
        verdict = (
            f"No invariant was violated; {summary['running']} of {counted(summary['machines'], 'machine')} running."
        )
        _conclude(console, problems, environment.folder / "functions.log", verdict)


def _print_settings(console: Console, environment: Environment) -> None:
    """Print the settings with which ``shepherdctl`` operates *environment* in a second shell, also to a file."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in environment.operator_environment.items()]
    file = environment.folder / "settings.sh"
    unfinished = file.with_suffix(".part")
    unfinished.write_text("\n".join([*lines, ""]), encoding="utf-8")
    unfinished.replace(file)
    shown = [*lines, "", f"The fleet runs until Ctrl-C. To operate it, type in a second shell: . {file}"]
    console.print("\n".join(shown), highlight=False, markup=False, soft_wrap=True)


def _view(console: Console) -> LiveView:
    return LiveView(console, Live(console=console, refresh_per_second=4) if console.is_terminal else None)


def _print_summary(console: Console, summary: dict[str, object]) -> None:
    console.print()
    for key, value in summary.items():
        if key != "problems":
            text = ", ".join(f"{k} {_flat(v)}" for k, v in value.items()) if isinstance(value, dict) else value
            text = "none" if text == "" else text
            console.print(f"{key.replace('_', ' '):>22}  {text}", highlight=False, soft_wrap=True)


def _flat(value: object) -> str:
    return "(" + ", ".join(f"{k} {v}" for k, v in value.items()) + ")" if isinstance(value, dict) else str(value)


def _print_history(console: Console, environment: Environment, provider_id: str) -> None:
    machine_id = next(row["machine_id"] for row in environment.machines() if row["provider_id"] == provider_id)
    fault = FAULTS[environment.faulted[provider_id]]
    console.print(
        f"\nhistory of machine {machine_id}, provider id {provider_id[:8]} ({fault}):", highlight=False, soft_wrap=True
    )
    for entry in reversed(environment.history(machine_id)):
        cause = f"  {entry['failed_cause']}" if entry["failed_cause"] else ""
        event = " ".join(filter(None, (entry["event"], entry["step"])))
        line = f"  {entry['timestamp']:%H:%M:%S.%f}"[:-3] + f"  {loop_name(entry['process']):<11}  {event}{cause}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _conclude(console: Console, problems: list[str], log: Path, verdict: str) -> None:
    """Print the verdict; with *problems*, print them and the last errors of the log, and fail the command."""
    if not problems:
        console.print(f"\n{verdict}", style="green", highlight=False)
        return
    console.print("\nSomething went wrong:", style="red")
    for problem in problems:
        console.print(f"  - {problem}", highlight=False, markup=False, soft_wrap=True)
    errors = [line for line in log.read_text().splitlines() if '"level":"ERROR"' in line or "Traceback" in line]
    for line in errors[-3:]:
        console.print(line[:2000], highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit(1)
