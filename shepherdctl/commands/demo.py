"""`shepherdctl demo`: Shepherd in a simulated environment, on this computer."""

from __future__ import annotations

import signal
import sys
import webbrowser
from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from shepherdctl.descriptions.cures import told
from shepherdctl.options import SeedOption, SimulatedProviderOption, SpeedOption  # noqa: TC001 - typer reads them
from shepherdctl.output.formats import loop_name
from shepherdctl.output.live_view import FAULTS, finish, live_view, watch
from shepherdctl.output.printing import note
from shepherdctl.output.verdict import conclude, print_summary
from simulator.providers import machine_source

if TYPE_CHECKING:
    from shepherdctl.output.live_view import LiveView
    from simulator.environment.environment import Environment
    from simulator.environment.status import MachineStatus

_OUTAGE_MINUTES = 15
_NEXT = """
Try next:
  {command} demo --provider latitude    machines that a provider creates, by the hour
  {command} simulate --machines 100     a larger fleet
  {command} deploy                      Shepherd in your AWS account
"""


def demo(
    machines: Annotated[int, typer.Option(min=3, max=50, help="Machines of the fleet.")] = 10,
    provider: SimulatedProviderOption = "redfish",
    speed: SpeedOption = 60,
    seed: SeedOption = 0,
    console: Annotated[
        bool, typer.Option("--console", help="Open the fleet in a browser, and keep it until Ctrl-C.")
    ] = False,
) -> None:
    """
    Watch a fleet come up, two machines break and recover, and an outage that reboots none.

    First the machines are added and their agents started. Then two of them
    break, and the Recoverer brings them back. Then the agent API has an outage:
    all machines are found alive over SSH, and none is rebooted.

    The real functions run against emulated BMCs, simulated machines with real
    SSH, and a real PostgreSQL, all on this computer. Takes about a minute.
    Exit status 1: something went wrong; the last lines say what.
    """
    from simulator.environment.environment import Environment, EnvironmentSettings  # noqa: PLC0415
    from simulator.environment.status import report, violated_invariants  # noqa: PLC0415 - slow to import

    terminal = Console()
    terminal.print(
        f"{machines} {machine_source(provider).kind}; a second here is {speed / 60:g} min of fleet time.",
        highlight=False,
        soft_wrap=True,
    )
    view = live_view(terminal)
    settings = EnvironmentSettings(machines=machines, provider=provider, speed=speed, seed=seed)
    with Environment(settings, view.on_invocation, view.on_power_change) as environment, ExitStack() as stack:
        if console:
            _open_console(stack, environment)
        shown: list[str] = []
        with view.live or nullcontext():
            problems = _scenes(environment, view, shown)
            finish(environment, view)
        problems += violated_invariants(environment)
        summary = report(environment)
        problems += [
            f"{name} failed {counts['failed']} times"
            for name, counts in summary["functions"].items()
            if "failed" in counts
        ]
        print_summary(terminal, summary)
        if environment.faulted:
            _print_history(terminal, environment, next(reversed(environment.faulted)))
        if not problems:
            terminal.print("\nWhat you saw:", highlight=False)
            for line in shown:
                terminal.print(f"  - {line}", highlight=False, soft_wrap=True)
        conclude(terminal, problems, environment.folder / "functions.log", "Everything worked.")
        terminal.print(_NEXT.format(command=sys.argv[0]), highlight=False, soft_wrap=True)
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
    shown.append(f"{machines} machines were added, and their agents started, in {environment.minutes:.0f} min")

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
    shown.append("two machines broke: one was rebooted; one answered over SSH, so only its agent was restarted")

    if problems := _outage(environment, view, limit):
        return problems
    shown.append("an outage of the agent API: the machines answered over SSH, so none was rebooted")
    return []


def _outage(environment: Environment, view: LiveView, limit: float) -> list[str]:
    """Let the agent API fail for longer than the heartbeat timeout; return what went wrong."""
    before = {name: environment.pool.reboots(name) for name in environment.pool.names()}
    environment.endpoint.outage = True
    view.say(environment, f"agent API outage of {_OUTAGE_MINUTES} min: no heartbeat arrives")
    end = environment.elapsed + environment.scaled(_OUTAGE_MINUTES * 60)
    watch(environment, view, lambda _: environment.elapsed > end, limit)
    environment.endpoint.outage = False
    view.say(environment, "the outage is over")

    def back(statuses: list[MachineStatus]) -> bool:
        return all(machine.running for machine in statuses)

    if not watch(environment, view, back, limit):
        return [f"not all agents reported again after {limit:.0f} s"]
    view.say(environment, "all agents report again")
    return [
        f"{name} was rebooted although only the agent API had failed"
        for name, count in before.items()
        if environment.pool.reboots(name) != count
    ]


def _print_history(console: Console, environment: Environment, provider_id: str) -> None:
    machine_id = next(row.machine_id for row in environment.machines() if row.provider_id == provider_id)
    fault = FAULTS[environment.faulted[provider_id]]
    console.print(
        f"\nhistory of machine {machine_id}, provider id {provider_id[:8]} ({fault}):", highlight=False, soft_wrap=True
    )
    for entry in reversed(environment.history(machine_id)):
        cause = f"  {told(entry.kind, entry.failed_cause)}" if entry.failed_cause else ""
        event = " ".join(filter(None, (entry.event, entry.step)))
        line = f"  {entry.timestamp:%H:%M:%S.%f}"[:-3] + f"  {loop_name(entry.process):<11}  {event}{cause}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)
