"""The summary and the verdict at the end of a simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console


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


def conclude(console: Console, problems: list[str], log: Path | None, verdict: str) -> None:
    """Print the verdict; with *problems*, print them and the last errors of the log, if any, and fail the command."""
    if not problems:
        console.print(f"\n{verdict}", style="green", highlight=False)
        return
    console.print("\nSomething went wrong:", style="red")
    for problem in problems:
        console.print(f"  - {problem}", highlight=False, markup=False, soft_wrap=True)
    lines = log.read_text().splitlines() if log else []
    errors = [line for line in lines if '"level":"ERROR"' in line or "Traceback" in line]
    for line in errors[-3:]:
        console.print(line[:2000], highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit(1)
