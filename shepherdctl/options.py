"""The options and arguments that several commands share."""

import getpass
from typing import Annotated, get_args

import typer
from shepherd_core.domain.machine import Process
from shepherd_core.settings.functions import ProviderChoice

from shepherdctl.output import one_of

PROVIDERS: tuple[str, ...] = get_args(ProviderChoice.model_fields["provider"].annotation)

ProviderOption = Annotated[
    str | None,
    typer.Option(
        "--provider", parser=one_of(*PROVIDERS), metavar=f"<{'|'.join(PROVIDERS)}>", help="Only this provider's."
    ),
]
MachineArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The beginning of a machine id, or a whole provider id.")
]

OUR_OWNERS = ("provisioner", "release")
"""The owners of pauses that end by themselves: of machines that were set aside, or are being released."""

PROCESSES = (Process.AGENT_START.value, Process.RECOVERY.value)
"""Those that loops work in."""


def _owner(text: str) -> str:
    if not text.strip() or text in OUR_OWNERS:
        message = f"{text!r} cannot own a pause: a name was wanted, and not that of pauses that end by themselves."
        raise typer.BadParameter(message)
    return text


def reason_given(text: str) -> str:
    """
    Return a reason that says something.

    Raises:
        BadParameter: it is blank.
    """
    if not text.strip():
        message = "a reason was wanted, for whoever wonders."
        raise typer.BadParameter(message)
    return text


ReasonOption = Annotated[
    str, typer.Option("--reason", parser=reason_given, metavar="TEXT", help="Why; others will read it.")
]
OwnerOption = Annotated[
    str | None,
    typer.Option("--owner", parser=_owner, metavar="NAME", help="Whom to ask about it.", show_default="you"),
]
ProcessOption = Annotated[
    str | None,
    typer.Option(
        "--process", parser=one_of(*PROCESSES), metavar="NAME", help=f"One process: {' or '.join(PROCESSES)}."
    ),
]


def user() -> str:
    """
    Return who runs this.

    Raises:
        BadParameter: nobody knows.
    """
    try:
        return _owner(getpass.getuser())
    except (OSError, KeyError, ImportError) as error:  # which one depends on the version of Python
        message = "the operating system does not say who you are: say it with --owner."
        raise typer.BadParameter(message) from error
