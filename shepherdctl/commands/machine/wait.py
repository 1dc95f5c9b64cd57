"""The command that waits until a machine is in a state."""

from typing import Annotated

import typer
from shepherd_core.domain.clock import SystemClock
from shepherd_core.domain.states import State

from shepherdctl.database import bmdb
from shepherdctl.descriptions.condition import EXIT_STATUS
from shepherdctl.descriptions.state import observe_machine
from shepherdctl.options import MachineArgument
from shepherdctl.output.formats import duration, in_full, span
from shepherdctl.output.printing import note, one_of

_SECONDS = 5.0
"""Between two looks at the BMDB."""


def wait(
    machine: MachineArgument,
    *,
    state: Annotated[
        str,
        typer.Option("--for", parser=one_of(*State), metavar="STATE", help=f"One of {', '.join(State)}."),
    ],
    timeout: Annotated[float, typer.Option(parser=duration, metavar="TIME", help="Give up after this time.")] = "10m",  # type: ignore[assignment]  # typer parses it
) -> None:
    """
    Wait until a machine is in a state, and tell each change on the way.

    Looks every five seconds. Exit status: 0 it is, 3 it was not within the time,
    1 failure, 2 wrong usage.

    Examples:
      shepherdctl machine wait 3f2a --for running
      shepherdctl machine wait rack1-3 --for installed --timeout 1h
    """
    clock, shown = SystemClock(), None
    end = clock.monotonic() + timeout
    with bmdb() as connection:
        while True:
            found, observer = observe_machine(connection, machine)
            if found.state != shown:
                shown = found.state
                note(f"{in_full(found.provider_id, found.machine_id)}: {observer.describe(found).plain}")
            if shown == state:
                return
            left = end - clock.monotonic()
            if left <= 0:
                note(f"it was not {state.replace('_', ' ')} within {span(timeout)}")
                raise typer.Exit(EXIT_STATUS)
            clock.sleep(min(_SECONDS, left))
