"""A pager for what is longer than the terminal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

import click
from rich.console import Console

from shepherdctl.output.watching import Screen


@contextmanager
def paged() -> Iterator[None]:
    """Show what is printed to standard output, at the end; with PAGER, else less, if the terminal has fewer lines."""
    if not sys.stdout.isatty():
        yield
        return
    screen = Screen()
    try:
        with redirect_stdout(screen):
            yield
    finally:
        terminal = Console()
        if screen.first(terminal.width, terminal.height - 1)[1]:
            click.echo_via_pager(screen.getvalue().removesuffix("\n"), color=True)
        else:
            sys.stdout.write(screen.getvalue())
