"""Shared by the commands on simulated environments: options, the live view, the summary and the verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live

from shepherdctl.output.live_view import LiveView
from simulator.providers import SimulatedProvider

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

Provider = Annotated[SimulatedProvider, typer.Option(help="The provider of the machines; all of them are simulated.")]
Speed = Annotated[float, typer.Option(min=1, max=120, help="Minutes of fleet time that pass in a minute.")]
Seed = Annotated[int, typer.Option(help="Seed of the random choices: ids, and which events are delivered twice.")]


def live_view(console: Console) -> LiveView:
    """Return the view of an environment: with a table, if *console* is a terminal."""
    return LiveView(console, Live(console=console, refresh_per_second=4) if console.is_terminal else None)


def print_summary(console: Console, summary: dict[str, object]) -> None:
    """Print a report, without its problems."""
    console.print()
    for key, value in summary.items():
        if key != "problems":
            text = ", ".join(f"{k} {_flat(v)}" for k, v in value.items()) if isinstance(value, dict) else value
            text = "none" if text == "" else text
            console.print(f"{key.replace('_', ' '):>22}  {text}", highlight=False, soft_wrap=True)


def _flat(value: object) -> str:
    return "(" + ", ".join(f"{k} {v}" for k, v in value.items()) + ")" if isinstance(value, dict) else str(value)


def conclude(console: Console, problems: list[str], log: Path, verdict: str) -> None:
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
