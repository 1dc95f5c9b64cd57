"""The command that serves the web console."""

import webbrowser
from typing import Annotated

import typer
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.settings.functions.bmdb import BmdbSettings
from shepherd_core.wiring.settings import load

from shepherdctl.output.printing import note


def console(
    page: Annotated[
        str, typer.Argument(metavar="[PAGE]", help="Page to open, as a colleague sent it.", show_default=False)
    ] = "/",
    *,
    port: Annotated[
        int, typer.Option(min=0, max=65_535, metavar="PORT", help="Port on 127.0.0.1.", show_default="any free one")
    ] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open it in the browser.")] = True,
) -> None:
    """
    Show the fleet in a browser on this computer, until Ctrl-C.

    The pages show the fleet, its machines, why the loops work on each of them or
    do not, and the work in progress, with the commands for what they show, to
    copy. They read the BMDB with your settings, as the other commands do, and
    change nothing.

    Only a browser on this computer that has the token can open them. The token
    is part of the printed address, and is valid until the command ends.

    Examples:
      shepherdctl console
      shepherdctl console --port 8765 --no-browser
      shepherdctl console '/machines?state=unhealthy&location=rack03'
    """
    try:
        from shepherdctl.console import server  # noqa: PLC0415 - its libraries are an extra
    except ImportError as error:
        message = f"the console's libraries are not installed ({error.name}): run make .venv/.ready in a checkout"
        raise ShepherdError(message) from error
    (settings,) = load(BmdbSettings)
    try:
        with server.console(settings, port) as (serving, listening, access):
            address = access.opening(page)
            note(f"The console is at {address}\nStop it with Ctrl-C.")
            if browser:
                webbrowser.open(address)
            serving.run(sockets=[listening])
    except OSError as error:
        message = f"cannot listen on port {port} of 127.0.0.1: {error.strerror}. Choose another with --port."
        raise ShepherdError(message) from error
