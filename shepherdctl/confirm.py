"""The question before a command destroys something."""

import sys
from typing import Annotated

import typer
from shepherd_core.domain.errors import ShepherdError

from shepherdctl.output import note

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask; needed where nobody can be asked.")]


def askable(*, yes: bool) -> None:
    """
    See, before anything else is done, that the question can be answered.

    Raises:
        BadParameter: it cannot be asked here, and was not answered beforehand.
    """
    if not yes and not sys.stdin.isatty():
        message = "there is no terminal to ask on: look with --dry-run, then confirm with --yes."
        raise typer.BadParameter(message)


def ask(name: str) -> None:
    """
    Wait for *name*, which says what is to be destroyed, to be typed.

    Raises:
        ShepherdError: something else was typed.
    """
    note(f"Type {name} to go on, anything else to stop:")
    if sys.stdin.readline().strip() != name:
        message = "stopped; nothing was changed"
        raise ShepherdError(message)
