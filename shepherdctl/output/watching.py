"""Showing something again and again on a terminal, until the operator has seen enough."""

import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text
from shepherd_core.domain.clock import SystemClock

from shepherdctl.output.formats import duration, span
from shepherdctl.output.printing import counted, note

WatchOption = Annotated[
    float | None,
    typer.Option("--watch", parser=duration, metavar="TIME", help="Show it again at this interval, until Ctrl-C."),
]


def watch(seconds: float, show: Callable[[int], Callable[[], None]], *, table: bool) -> None:
    """
    Read and show something every *seconds*; does not return.

    *show* reads it, for a terminal with so many lines, and returns what prints it: nothing is cleared before that.
    Of more lines than the terminal has, the first are shown.

    Raises:
        BadParameter: there is no terminal, or it is not shown as a *table*.
    """
    if not (table and sys.stdout.isatty()):
        message = "--watch needs a terminal and shows a table."
        raise typer.BadParameter(message)
    while True:
        console = Console()
        print_it = show(console.height)
        screen = Screen()
        with redirect_stdout(screen), redirect_stderr(screen):
            print_it()
        shown, left = screen.first(console.width, console.height - 2)
        console.clear()
        sys.stdout.write(shown)
        more = f"{counted(left, 'more line')}; " if left else ""
        note(f"{more}updated every {span(seconds)}; stop with Ctrl-C")
        SystemClock().sleep(seconds)


class Screen(StringIO):
    """Keeps what is printed for a terminal."""

    def isatty(self) -> bool:
        """Return true: it decides about colours and widths."""
        return True

    def first(self, width: int, height: int) -> tuple[str, int]:
        """Return the lines that fit on a terminal, a long one over several of its own, and how many are left out."""
        lines = self.getvalue().splitlines(keepends=True)
        for number, line in enumerate(lines):
            height -= max(1, -(-Text.from_ansi(line).cell_len // width))
            if height < 0:
                return "".join(lines[:number]), len(lines) - number
        return "".join(lines), 0
