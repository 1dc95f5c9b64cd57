"""The options and arguments that several commands share."""

import getpass
from typing import Annotated

import typer
from shepherd_core.domain.machine import Process
from shepherd_core.settings.functions.specs import PAUSED_AS, PROCESS_OF_LOOP
from shepherd_core.settings.providers import names

from shepherdctl.completion import location_names, machine_names
from shepherdctl.output.formats import loop_name
from shepherdctl.output.printing import OneOf, one_of
from simulator.providers import SimulatedProvider

PROVIDERS = names()
SYSTEM_OWNERS = ("provisioner", "release")
"""Owners of pauses that end by themselves: of machines that were set aside or are being released."""
MACHINE_NAME = "its id or provider id, the beginning of one, or its address, in any case"
"""The form of a name of a machine."""
REASON_TO_WRITE = "…"
"""Stands in commands that are shown, for the reason that an operator has to write."""


def owner_name(text: str) -> str:
    """
    Return the owner of a pause or of an action.

    Raises:
        BadParameter: it is blank or reserved.
    """
    if not text.strip() or text in SYSTEM_OWNERS:
        message = f"{text!r} cannot be an owner: give a name other than {' and '.join(SYSTEM_OWNERS)}."
        raise typer.BadParameter(message)
    return text


def reason_text(text: str) -> str:
    """
    Return a reason.

    Raises:
        BadParameter: it is blank, or still to be written.
    """
    if text.strip() in {"", REASON_TO_WRITE}:
        message = f"{text!r} is not a reason: say why, for others to read."
        raise typer.BadParameter(message)
    return text


def current_user() -> str:
    """
    Return the user that runs this command.

    Raises:
        BadParameter: the operating system does not know.
    """
    try:
        return owner_name(getpass.getuser())
    except (OSError, KeyError, ImportError) as error:  # which one depends on the version of Python
        message = "the operating system does not say who you are: use --owner."
        raise typer.BadParameter(message) from error


ProviderOption = Annotated[
    str | None,
    typer.Option(
        "--provider", parser=one_of(*PROVIDERS), metavar=f"<{'|'.join(PROVIDERS)}>", help="Only this provider."
    ),
]
LocationOption = Annotated[
    str | None,
    typer.Option(
        "--location",
        metavar="NAME",
        help="Only this location, as the provider names it.",
        autocompletion=location_names,
    ),
]
MachineArgument = Annotated[
    str,
    typer.Argument(metavar="ID", help=f"A machine: {MACHINE_NAME}.", autocompletion=machine_names),
]
MachinesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID", help="Short for --machine ID.", show_default=False, autocompletion=machine_names),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")]
ReasonOption = Annotated[
    str, typer.Option("--reason", parser=reason_text, metavar="TEXT", help="Why; it is stored for others to read.")
]
OptionalReason = Annotated[
    str | None,
    typer.Option("--reason", parser=reason_text, metavar="TEXT", help="Why; it is stored for others to read."),
]
OwnerOption = Annotated[
    str | None,
    typer.Option("--owner", parser=owner_name, metavar="NAME", help="Who to ask about it.", show_default="you"),
]
LoopOption = Annotated[
    str | None,
    typer.Option(
        "--loop",
        parser=OneOf(tuple(PAUSED_AS), PAUSED_AS.__getitem__),
        metavar=f"<{'|'.join(PAUSED_AS)}>",
        help="Only this loop.",
    ),
]
"""As a pause of the loop is stored."""


def loop_of_machines(process: str | None) -> Process | None:
    """
    Return the process that a loop carries out on single machines.

    Raises:
        BadParameter: it works on no single machine.
    """
    if process is not None and process not in PROCESS_OF_LOOP.values():
        message = f"the {loop_name(process)} works on no single machine: leave out --loop, or the machines."
        raise typer.BadParameter(message)
    return None if process is None else Process(process)


DespiteHeartbeat = Annotated[
    bool, typer.Option("--despite-heartbeat", help="Do it even if the agent reported in the last two hours.")
]
SimulatedProviderOption = Annotated[
    SimulatedProvider, typer.Option("--provider", help="The provider of the machines; all of them are simulated.")
]
SpeedOption = Annotated[
    float, typer.Option("--speed", min=1, max=120, help="Minutes of fleet time that pass in a minute.")
]
SeedOption = Annotated[
    int, typer.Option("--seed", help="Seed of the random choices: ids, and which events are delivered twice.")
]
