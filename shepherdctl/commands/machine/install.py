"""The command that has an operating system installed."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from shepherd_core.bmdb.agents import installation
from shepherd_core.bmdb.agents.installation import Installation
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.domain.pb.callback_pb2 import MetropolisInstallation
from shepherd_core.domain.states import State
from shepherd_core.settings.functions import load

from shepherdctl.commands.machine.installations import image_told, public
from shepherdctl.confirm import Yes, ask, askable
from shepherdctl.database import bmdb
from shepherdctl.formats import relative
from shepherdctl.options import MachineArgument
from shepherdctl.output import Form, Output, document, facts, note
from shepherdctl.state import Observer, Settings, observed

_LONGEST_PARAMETERS = 1 << 20
"""Bytes. The request stands in the answer to a heartbeat, of which agents take 4 MiB, and Lambda gives 6."""


def _image(text: str) -> str:
    try:
        parts = urlsplit(text)
        usable = parts.scheme == "https" and parts.hostname and parts.port != 0 and "@" not in parts.netloc
    except ValueError:
        usable = False
    if not usable or not re.fullmatch(r"[!-~]+", text) or "#" in text:
        message = "an https URL was wanted, without user and fragment."
        raise typer.BadParameter(message)
    return text


def _sha256(text: str) -> str:
    if not re.fullmatch(r"[0-9a-fA-F]{64}", text):
        message = f"{text!r} is no SHA-256: 64 hexadecimal digits were wanted."
        raise typer.BadParameter(message)
    return text.lower()


def install(
    machine: MachineArgument,
    *,
    image: Annotated[
        str, typer.Option(parser=_image, metavar="URL", help="Where the machine fetches the image, over HTTPS.")
    ],
    sha256: Annotated[
        str, typer.Option(parser=_sha256, metavar="HEX", help="SHA-256 of the image, as sha256sum prints it.")
    ],
    node_parameters: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            metavar="FILE",
            help="First configuration of the new system (Metropolis' NodeParameters, serialized).",
        ),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Also when one that was asked for before has no outcome yet.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be asked for.")] = False,
    yes: Yes = False,
    output: Output = Form.TABLE,
) -> None:
    """
    Have an operating system installed on a machine. Destroys what is on it.

    The agent gets the request in the answer to its next heartbeat, runs the
    installation command that is configured on the machine, and reports how it
    went: shepherdctl machine show ID. If it fails, the loops go on caring for
    the machine; if it succeeds, they leave it alone from then on.

    Asks before it does anything, unless --yes is given. A request cannot be
    taken back, since it may be running; pauses do not hold it.

    Examples:
      sum=$(sha256sum < metropolis.img | cut -d ' ' -f 1)
      url=https://images.example.com/metropolis.img
      shepherdctl machine install 3f2a --image $url --sha256 $sum --dry-run
      shepherdctl machine install 3f2a --image $url --sha256 $sum
    """
    askable(yes=yes or dry_run)
    wanted = MetropolisInstallation(
        image_url=image, image_sha256=bytes.fromhex(sha256), node_parameters=_content(node_parameters)
    )
    (settings,) = load(Settings)
    with bmdb(settings) as connection:
        found, observer = observed(connection, machine, settings)
        machine_id = found["machine_id"]
        seen = installation.load(connection, machine_id)
        _refuse(found, seen, observer, replace=replace)
        for consequence in _consequences(found, seen, observer):
            note(consequence)
        if not (yes or dry_run):
            ask(found["provider_id"])
        if not dry_run and installation.request(connection, machine_id, wanted, seen) is None:
            message = f"meanwhile somebody else asked for an installation on machine {machine_id}, or its agent "
            raise ShepherdError(message + "reported on one: nothing was requested. See shepherdctl machine show.")
    asked = {
        "machine_id": machine_id,
        "provider": found["provider"],
        "provider_id": found["provider_id"],
        "generation": seen.next_generation,
        "replaces": seen.request.generation if seen.request and seen.pending else None,
        "image_url": public(image),
        "image_sha256": sha256,
        "node_parameters_bytes": len(wanted.node_parameters),
        "dry_run": dry_run,
    }
    if output is Form.JSON:
        document(asked)
    else:
        names = (("machine", "machine_id"), ("provider id", "provider_id"), ("generation", "generation"))
        facts([*((name, asked[key]) for name, key in names), *image_told(asked)])
    note("dry run: nothing was requested" if dry_run else _delivery(found, observer))


def _content(file: Path | None) -> bytes:
    if file is None:
        return b""
    try:
        with file.open("rb") as opened:
            content = opened.read(_LONGEST_PARAMETERS + 1)
    except OSError as error:
        message = f"{file} cannot be read: {error.strerror}."
        raise typer.BadParameter(message) from error
    if not 0 < len(content) <= _LONGEST_PARAMETERS:
        message = (
            f"{file} is empty, or longer than the {_LONGEST_PARAMETERS} bytes of node parameters that may be sent."
        )
        raise typer.BadParameter(message)
    return content


def _refuse(machine: Mapping[str, Any], seen: Installation, observer: Observer, *, replace: bool) -> None:
    """
    See that an installation may be asked for.

    Raises:
        ShepherdError: there is no machine yet, or an installation is pending.
    """
    if machine["provider"] is None:
        message = f"machine {machine['machine_id']} is not provided yet: there is nothing to install on"
        raise ShepherdError(message)
    if seen.request and seen.pending and not replace:
        message = (
            f"generation {seen.request.generation} was requested {relative(seen.request.requested_at, observer.now)}, "
            "and its outcome has not come: it may be running. --replace asks for another in its place."
        )
        raise ShepherdError(message)


def _consequences(machine: Mapping[str, Any], seen: Installation, observer: Observer) -> list[str]:
    """Return what whoever consents should know."""
    lines = [
        f"{machine['provider_id']} at {machine['provider']}, {machine['machine_id']}: {observer.words(machine)}.",
        "An installation destroys what is on it.",
    ]
    if seen.request and seen.pending:
        when = relative(seen.request.requested_at, observer.now)
        lines.append(
            f"Generation {seen.request.generation}, requested {when}, has no outcome yet. If the agent has it, it is "
            "not stopped, and this one follows."
        )
    if seen.report and seen.succeeded:
        when = relative(seen.report.reported_at, observer.now)
        lines.append(
            f"Generation {seen.report.generation} was installed {when}, and no loop cares for the machine since. With "
            "a new request they do again: if no agent reports from it, the Recoverer reboots it."
        )
    return lines


def _delivery(machine: Mapping[str, Any], observer: Observer) -> str:
    if observer.state(machine) in {State.STARTING, State.RUNNING}:
        return "the agent gets it in the answer to its next heartbeat"
    return "no agent reports from the machine now: the next one that does gets it"
