"""Showing something again and again on a terminal, until the operator has seen enough."""

import sys
from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import Console
from shepherd_core.domain.clock import SystemClock

from shepherdctl.output.formats import duration, span
from shepherdctl.output.printing import note

WatchOption = Annotated[
    float | None,
    typer.Option("--watch", parser=duration, metavar="TIME", help="Show it again at this interval, until Ctrl-C."),
]


def watch(seconds: float, show: Callable[[int], Callable[[], None]], *, table: bool) -> None:
    """
    Read and show something every *seconds*; does not return.

    *show* reads it, for a terminal with so many lines, and returns what prints it: nothing is cleared before that.

    Raises:
        BadParameter: there is no terminal, or it is not shown as a *table*.
    """
    if not (table and sys.stdout.isatty()):
        message = "--watch needs a terminal and shows a table."
        raise typer.BadParameter(message)
    while True:
        console = Console()
        print_it = show(console.height)
        console.clear()
        print_it()
        note(f"updated every {span(seconds)}; stop with Ctrl-C")
        SystemClock().sleep(seconds)
