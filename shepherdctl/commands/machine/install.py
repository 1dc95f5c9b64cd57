"""The command that requests the installation of an operating system."""

import re
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from shepherd_core.agent.installation_signature import signed
from shepherd_core.bmdb.agents import installation
from shepherd_core.bmdb.agents.installation import Installation
from shepherd_core.bmdb.machines.lookup import ShownMachine
from shepherd_core.domain.clock import SystemClock
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.domain.pb.callback_pb2 import MetropolisInstallation, OSImageRef, OSInstallationRequest
from shepherd_core.domain.states import State
from shepherd_core.settings.functions.bmdb import OPERATOR, BmdbSettings
from shepherd_core.wiring import adapters
from shepherd_core.wiring.settings import load

from shepherdctl.confirm import Yes, confirm, require_terminal
from shepherdctl.database import bmdb
from shepherdctl.descriptions.installations import image_rows, plain_image
from shepherdctl.descriptions.state import Observer, observe_machine
from shepherdctl.options import DryRun, MachineArgument
from shepherdctl.output.formats import relative
from shepherdctl.output.printing import Form, Output, document, facts, note

_LONGEST_PARAMETERS = 1 << 20
"""Bytes. The response to a heartbeat has them twice; agents accept a response of up to 4 MiB, Lambda of up to 6."""


def _image(text: str) -> str:
    try:
        parts = urlsplit(text)
        usable = parts.scheme == "https" and parts.hostname and parts.port != 0 and "@" not in parts.netloc
    except ValueError:
        usable = False
    if not usable or not re.fullmatch(r"[!-~]+", text) or "#" in text:
        message = "must be an https URL without user name or fragment."
        raise typer.BadParameter(message)
    return text


def _sha256(text: str) -> str:
    if not re.fullmatch(r"[0-9a-fA-F]{64}", text):
        message = f"{text!r} is not a SHA-256: it must be 64 hexadecimal digits."
        raise typer.BadParameter(message)
    return text.lower()


def _os_image(text: str) -> OSImageRef:
    host = r"(?P<host>[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[1-9][0-9]{0,4})?)"
    repository = r"(?P<repository>[a-z0-9]+([._/-]+[a-z0-9]+)*)"
    reference = f"{host}/{repository}(:(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}}))?@(?P<digest>sha256:[0-9a-f]{{64}})"
    found = re.fullmatch(reference, text, re.ASCII)
    if found is None:
        message = "must be HOST[:PORT]/REPOSITORY[:TAG]@sha256:DIGEST, without a scheme: https is used."
        raise typer.BadParameter(message)
    return OSImageRef(scheme="https", **{name: found[name] or "" for name in ("host", "repository", "tag", "digest")})


def _root_device(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,127}", text) or ".." in text:
        message = f"{text!r} must be the name of a disk below /dev, such as nvme0n1."
        raise typer.BadParameter(message)
    return text


def install(
    machine: MachineArgument,
    *,
    image: Annotated[
        str | None,
        typer.Option(parser=_image, metavar="URL", help="HTTPS URL from which the machine downloads the image."),
    ] = None,
    sha256: Annotated[
        str | None,
        typer.Option(parser=_sha256, metavar="HEX", help="SHA-256 of the image, as sha256sum prints it."),
    ] = None,
    os_image: Annotated[
        OSImageRef | None,
        typer.Option(
            parser=_os_image,
            metavar="REFERENCE",
            help="Instead of --image: an image in an OCI registry, HOST/REPOSITORY[:TAG]@sha256:DIGEST.",
        ),
    ] = None,
    root_device: Annotated[
        str | None, typer.Option(parser=_root_device, metavar="NAME", help="Disk to install on, such as nvme0n1.")
    ] = None,
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
        bool, typer.Option("--replace", help="Request it even if an earlier request has no outcome yet.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Form.TABLE,
) -> None:
    """
    Install an operating system on a machine. All data on it is lost.

    The agent gets the request in the response to its next heartbeat, runs the
    installation command that is configured on the machine, and reports the
    outcome: see shepherdctl machine show. After a failure the loops keep working
    on the machine; after a success they leave it alone.

    Asks for confirmation, unless --yes is given. A request cannot be withdrawn,
    because it may be running. Pauses do not delay it. It is signed with the
    installation key (SHEPHERD_INSTALLATION_KEY_SOURCE), and no agent starts it
    more than a day later.

    Examples:
      sum=$(sha256sum < metropolis.img | cut -d ' ' -f 1)
      url=https://images.example.com/metropolis.img
      shepherdctl machine install 3f2a --image $url --sha256 $sum --dry-run
      shepherdctl machine install 3f2a --image $url --sha256 $sum
      shepherdctl machine install 3f2a --os-image registry.example/os@sha256:$sum
    """
    require_terminal(yes=yes or dry_run)
    if bool(image) == bool(os_image) or bool(image) != bool(sha256):
        message = "give either --image with --sha256, or --os-image."
        raise typer.BadParameter(message)
    wanted = MetropolisInstallation(
        node_parameters=_content(node_parameters),
        root_device=root_device or "",
        os_image=os_image,
        image_url=image or "",
        image_sha256=bytes.fromhex(sha256 or ""),
    )
    (settings,) = load(BmdbSettings)
    with bmdb(settings, role=OPERATOR) as connection:
        found, observer = observe_machine(connection, machine)
        machine_id = found.machine_id
        seen = installation.load(connection, machine_id)
        _refuse(found, seen, observer, replace=replace)
        sign = adapters.installation_signer()  # also for a dry run: without the key nothing could be requested
        for consequence in _consequences(found, seen, observer):
            note(consequence)
        if not (yes or dry_run):
            confirm(str(found.provider_id))

        def encode(request: OSInstallationRequest) -> bytes:
            return signed(request, machine_id, SystemClock().time_of_day(), sign)

        if not dry_run and installation.request(connection, machine_id, wanted, seen, encode) is None:
            message = f"meanwhile another installation was requested on machine {machine_id}, or its agent "
            raise ShepherdError(message + "reported an outcome: nothing was requested. See shepherdctl machine show.")
    requested = {
        "machine_id": machine_id,
        "provider": found.provider,
        "provider_id": found.provider_id,
        "generation": seen.next_generation,
        "replaces": seen.request.generation if seen.request and seen.pending else None,
        **plain_image(wanted),
        "dry_run": dry_run,
    }
    if output is Form.JSON:
        document(requested)
    else:
        names = (("machine", "machine_id"), ("provider id", "provider_id"), ("generation", "generation"))
        facts([*((name, requested[key]) for name, key in names), *image_rows(requested)])
    note("dry run: nothing was requested" if dry_run else _delivery(found))


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
        message = f"{file} is empty or too long: node parameters must be 1 to {_LONGEST_PARAMETERS} bytes."
        raise typer.BadParameter(message)
    try:
        Empty.FromString(content)  # with other content, an agent could not decode the response at all
    except DecodeError as error:
        message = (
            f"{file} is not a message in protobuf's binary form: node parameters must be a serialized NodeParameters."
        )
        raise typer.BadParameter(message) from error
    return content


def _refuse(machine: ShownMachine, seen: Installation, observer: Observer, *, replace: bool) -> None:
    """
    Check that an installation may be requested.

    Raises:
        ShepherdError: the machine is not provided yet, or an installation is pending.
    """
    if machine.provider is None:
        message = f"machine {machine.machine_id} is not provided (being created, or gone): nothing can be installed"
        raise ShepherdError(message)
    if seen.request and seen.pending and not replace:
        message = (
            f"generation {seen.request.generation} was requested {relative(seen.request.requested_at, observer.now)}, "
            "and has no outcome yet: it may be running. Use --replace to request another one."
        )
        raise ShepherdError(message)


def _consequences(machine: ShownMachine, seen: Installation, observer: Observer) -> list[str]:
    """Return the consequences that the operator should know before confirming."""
    lines = [
        f"{machine.provider_id} at {machine.provider}, {machine.machine_id}: {observer.describe(machine)}.",
        "All data on it will be lost.",
    ]
    if seen.request and seen.pending:
        when = relative(seen.request.requested_at, observer.now)
        lines.append(
            f"Generation {seen.request.generation}, requested {when}, has no outcome yet. If the agent is running "
            "it, it is not stopped, and this one follows."
        )
    if seen.report and machine.state == State.INSTALLED:
        when = relative(seen.report.reported_at, observer.now)
        lines.append(
            f"Generation {seen.report.generation} was installed {when}; since then no loop works on the machine. With "
            "a new request they do again: if no agent reports, the Recoverer reboots it."
        )
    return lines


def _delivery(machine: ShownMachine) -> str:
    if machine.state in {State.STARTING, State.RUNNING}:
        return "the agent gets the request in the response to its next heartbeat"
    return "no agent reports from the machine now; the next one that reports within a day gets the request"
