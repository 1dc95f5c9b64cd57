"""`shepherdctl simulate`: a simulated fleet for a while, or until Ctrl-C."""

from __future__ import annotations

import math
import shlex
import signal
import subprocess
from contextlib import nullcontext
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from shepherd_core.domain.errors import ConfigError

from shepherdctl.options import SeedOption, SimulatedProviderOption, SpeedOption  # noqa: TC001 - typer reads them
from shepherdctl.output.live_view import LiveView, finish, live_view, watch
from shepherdctl.output.printing import Form, Output, counted, document
from shepherdctl.output.verdict import conclude, print_summary

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from simulator.environment.environment import Environment
    from simulator.environment.faults import Faults


def simulate(
    machines: Annotated[int, typer.Option(min=1, max=100_000, help="Machines at the provider.")] = 20,
    provider: SimulatedProviderOption = "redfish",
    minutes: Annotated[float, typer.Option(min=1, help="Minutes of fleet time to simulate.")] = 60,
    interval: Annotated[
        float | None,
        typer.Option(min=60, max=3600, help="Seconds of fleet time between heartbeats in the second half of the run."),
    ] = None,
    faults: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="File with the faults to inject: see docs/simulator."),
    ] = None,
    speed: SpeedOption = 60,
    seed: SeedOption = 0,
    days: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=365,
            help="Days of a fleet in memory instead, whose clock runs as fast as it can: a machine in 200 fails a day, "
            "and there is an outage a week. Of the other options, only --machines, --seed and --bill apply.",
            show_default=False,
        ),
    ] = None,
    bill: Annotated[
        bool, typer.Option("--bill", help="With --days: what a month like this costs on AWS, without the database.")
    ] = False,
    hold: Annotated[
        bool, typer.Option("--hold", help="Keep the fleet running until Ctrl-C, for shepherdctl in a second shell.")
    ] = False,
    account: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            metavar="PYTHON",
            help="Run an emulated AWS account instead, to deploy into, until Ctrl-C: docs/how-to/emulator says how. "
            "PYTHON is of an environment with ministack. No other option applies.",
        ),
    ] = None,
    output: Output = Form.TABLE,
) -> None:
    """
    Run a simulated fleet for a while, with faults, and report what happened.

    With --hold, it runs until Ctrl-C, without a report. At the beginning it
    prints the settings for a second shell, and the line to type there. When the
    file of --faults changes, its faults replace those before.

    Exit status 1: an invariant was violated (a machine lost or created twice, a
    healthy machine rebooted, work without an end). Machines that are not running
    at the end are reported, but are no failure: the faults may explain them.

    Examples:
      shepherdctl simulate --machines 50 --minutes 60 -o json
      shepherdctl simulate --machines 100 --days 30 --bill
    """
    if account is not None:
        _account(account)
        return
    if days is not None:
        _days(machines, days, seed, output, with_bill=bill)
        return
    if bill:
        message = "--bill needs --days."
        raise typer.BadParameter(message)
    from simulator.environment.environment import Environment, EnvironmentSettings  # noqa: PLC0415
    from simulator.environment.faults import Faults, load  # noqa: PLC0415 - slow to import
    from simulator.environment.status import report, violated_invariants  # noqa: PLC0415

    script = Faults() if faults is None else load(faults)
    if beyond := [fault.machine for fault in script.machines if fault.machine >= machines]:
        message = f"{faults} names machine {beyond[0]}, but there are only {machines}, counted from 0"
        raise typer.BadParameter(message)
    if hold and output is Form.JSON:
        message = "--hold and -o json exclude each other."
        raise typer.BadParameter(message)
    console = Console(stderr=output is Form.JSON)
    view = live_view(console)
    settings = EnvironmentSettings(machines=machines, provider=provider, speed=speed, seed=seed, faults=script)
    with Environment(settings, view.on_invocation, view.on_power_change) as environment:
        if hold:
            file = _print_settings(console, environment.folder, environment.operator_environment)
            _say(console, f"The fleet runs until Ctrl-C. To operate it, type in a second shell: . {file}")
        with view.live or nullcontext():
            half = environment.scaled(minutes * 30)
            follow = follower(environment, view, faults, script) if hold and faults is not None else lambda _: False
            watch(environment, view, follow, half)
            if interval is not None:
                environment.set_heartbeat_seconds(interval)
                view.say(environment, f"agents are told to report every {environment.heartbeat_seconds:g} s")
            watch(environment, view, follow, math.inf if hold else half)
            finish(environment, view)
        problems = violated_invariants(environment)
        summary = {**report(environment), "problems": problems}
        if output is Form.JSON:
            document(summary)
        else:
            print_summary(console, summary)
        verdict = (
            f"No invariant was violated; {summary['running']} of {counted(summary['machines'], 'machine')} running."
        )
        conclude(console, problems, environment.folder / "functions.log", verdict)


def _days(machines: int, days: int, seed: int, output: Form, *, with_bill: bool) -> None:
    from simulator.cost.formula import bill  # noqa: PLC0415 - slow to import
    from simulator.cost.inputs import PRICES_OF, Inputs  # noqa: PLC0415
    from simulator.month import month  # noqa: PLC0415

    console = Console(stderr=output is Form.JSON)

    def say(day: float, text: str) -> None:
        console.print(f"day {day:6.2f}  {text}", highlight=False, soft_wrap=True)

    did = month.simulate(machines, days, seed, say)
    costs = bill(did.activity(Inputs()), Inputs()) if with_bill else {}
    harmed = did.recoveries_of_healthy_machines
    problems = [f"{counted(harmed, 'step')} interrupted a machine whose agent ran"] if harmed else []
    summary = {**did.summary, "problems": problems}
    if output is Form.JSON:
        document({**summary, "dollars_a_month": costs})
    else:
        print_summary(console, summary)
        if costs:
            console.print(f"\nUS dollars a month (prices of {PRICES_OF})", highlight=False)
            for what, dollars in {**costs, "sum": sum(costs.values())}.items():
                console.print(f"{what:>22}  {dollars:8.2f}", highlight=False)
    conclude(console, problems, None, f"No healthy machine was interrupted in {days} days.")


def follower(environment: Environment, view: LiveView, file: Path, script: Faults) -> Callable[[object], bool]:
    """Return a condition that never holds, and changes the faults, *script* at first, as *file* does."""
    from simulator.environment.faults import parse  # noqa: PLC0415 - slow to import

    content = b""

    def follow(_: object) -> bool:
        nonlocal content, script
        changed = file.read_bytes()
        if changed != content:
            content = changed
            try:
                wanted = parse(changed, str(file))
                if wanted != script:
                    environment.change_faults(wanted)
                    view.say(environment, f"injects {file} again", "fault")
                script = wanted
            except ConfigError as error:
                view.say(environment, str(error), "fault")
        return False

    return follow


def _account(python: Path) -> None:
    from shepherdctl.deployment.template import runtime  # noqa: PLC0415 - slow to import
    from simulator.account.account import Account  # noqa: PLC0415 - the same

    version = 'import sys; print("python%d.%d" % sys.version_info[:2])'
    told = subprocess.run([python, "-c", version], capture_output=True, text=True, check=False)  # noqa: S603 - as asked
    found = told.stdout.strip() or "no Python"
    if found != runtime():
        message = f"{python} is {found}, and the emulator runs the functions with it: it must be {runtime()}"
        raise typer.BadParameter(message, param_hint="--account")
    console = Console()
    with Account(python.absolute()) as account:
        file = _print_settings(console, account.folder, account.environment)
        _say(console, "The account is there until Ctrl-C. To deploy into it, type in a second shell:")
        _say(console, f". {file}\nshepherdctl deploy {account.answers}")
        signal.pause()


def _print_settings(console: Console, folder: Path, environment: Mapping[str, str]) -> Path:
    """Print the settings with which ``shepherdctl`` works in a second shell; return the file that has them, too."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    file = folder / "settings.sh"
    unfinished = file.with_suffix(".part")
    unfinished.write_text("\n".join([*lines, ""]), encoding="utf-8")
    unfinished.replace(file)
    _say(console, "\n".join([*lines, ""]))
    return file


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
