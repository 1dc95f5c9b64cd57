"""The command that lists machines."""

import heapq
import sys
from collections.abc import Callable
from itertools import islice
from typing import Annotated, Any
from uuid import UUID

import typer
from rich.console import Console
from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.machines import pauses
from shepherd_core.bmdb.machines.search import FoundMachine, Search, matching
from shepherd_core.bmdb.wire import server
from shepherd_core.domain.clock import SystemClock
from shepherd_core.settings.functions.bmdb import BmdbSettings
from shepherd_core.wiring.settings import load

from shepherdctl.database import bmdb
from shepherdctl.descriptions.state import Observer, with_pauses
from shepherdctl.output.formats import duration, span
from shepherdctl.output.printing import Column, Form, Output, counted, document, ids, note, one_of, table
from shepherdctl.selection import SEVERITY, Selection, selecting

_BY_ID, _NEWEST_FIRST = "id", "created"
_PAGED = (_BY_ID, _NEWEST_FIRST)
"""Orders in which no more machines are read than are shown."""
_AROUND_THE_TABLE = 4
"""Lines of the terminal besides the machines: the title, the notes and the cursor."""


def _place(machine: FoundMachine) -> tuple[Any, ...]:
    return (machine.provider or "", machine.provider_location or "", machine.provider_id or "")


def _severity(machine: FoundMachine) -> tuple[Any, ...]:
    return SEVERITY.index(machine.state), _place(machine)


def _oldest_first(fact: str) -> Callable[[FoundMachine], tuple[Any, ...]]:
    return lambda machine: (getattr(machine, fact) is None, getattr(machine, fact))


_ORDERS: dict[str, Callable[[FoundMachine], Any]] = {
    "state": _severity,
    "state-age": _oldest_first("state_since"),
    "heartbeat": _oldest_first("agent_heartbeat_at"),
    "place": _place,
    "recoveries": lambda machine: (-machine.recoveries, _place(machine)),
}


def _machine_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError as error:
        message = f"{text!r} is not a whole machine id, as machine list -o json shows it."
        raise typer.BadParameter(message) from error


@selecting
def list_machines(
    *,
    selection: Selection,
    sort: Annotated[
        str | None,
        typer.Option(
            parser=one_of(*_ORDERS, *_PAGED),
            metavar=f"<{'|'.join((*_ORDERS, *_PAGED))}>",
            help="The order of the list. All but id and created read every machine that matches.",
            show_default=False,
        ),
    ] = None,
    after: Annotated[
        UUID | None,
        typer.Option(parser=_machine_id, metavar="ID", help="The next page: only machines that come after this one."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, metavar="COUNT", help="Machines to show at most.")] = 100,
    watch: Annotated[
        float | None,
        typer.Option(parser=duration, metavar="TIME", help="Show the list again at this interval, until Ctrl-C."),
    ] = None,
    output: Output = Form.TABLE,
) -> None:
    """
    List the machines of the BMDB and their states.

    A filter that is given several times matches any of its values; a machine
    must match all filters. If there are more machines than --limit, those with
    the lowest machine ids are shown, and --after shows the next ones. Machines
    that need attention come first (quarantined, unhealthy, needs agent), within a
    state by provider and location. Other orders (--sort): state-age (longest in
    its state first), heartbeat (oldest first), place (provider and location),
    recoveries (most often first), id, and created (newest machine first).
    RECOVERED is how often its recovery took a step or started its agent anew in
    the last 24 hours.

    A machine is unhealthy if it has sent no heartbeat for longer than the
    heartbeat timeout of the Recoverer, or none at all within its startup timeout.
    On a terminal, ids are shortened as far as they stay distinct.

    Examples:
      shepherdctl machine list --state quarantined --state unhealthy
      shepherdctl machine list --provider redfish --location rack3 --watch 5s
      shepherdctl machine list --cause ssh-timed-out --sort state-age
      shepherdctl machine list --limit 100000 -o json | jq -r '.[].state'
    """
    if after is not None and sort not in (None, *_PAGED):
        message = "--after needs --sort id or created, or no --sort."
        raise typer.BadParameter(message)
    if watch is not None and (output is Form.JSON or not sys.stdout.isatty()):
        message = "--watch needs a terminal and shows a table."
        raise typer.BadParameter(message)
    (settings,) = load(BmdbSettings)
    with bmdb(settings) as connection:
        search = selection.search(connection)
        while watch is not None:
            console = Console()
            room = min(limit, max(1, console.height - _AROUND_THE_TABLE))
            read = _read(connection, search, sort, after, room)
            console.clear()
            _show(*read, output)
            note(f"updated every {span(watch)}; stop with Ctrl-C")
            SystemClock().sleep(watch)
        _show(*_read(connection, search, sort, after, limit), output)


def _read(
    connection: Connection, search: Search, sort: str | None, after: UUID | None, limit: int
) -> tuple[list[FoundMachine], Observer, str]:
    """Return the machines to show, the observer that describes them, and a note if there are more."""
    observer = Observer(server.now(connection), pauses.pauses_in_force(connection))
    if sort is None or sort in _PAGED:
        newest_first = sort == _NEWEST_FIRST
        found = list(islice(matching(connection, search, after, page=limit + 1, newest_first=newest_first), limit + 1))
    else:
        found = heapq.nsmallest(limit + 1, matching(connection, search), key=_ORDERS[sort])
    more = ""
    if len(found) > limit:
        more = f"only {counted(limit, 'machine')} shown, there are more: see --limit"
        more += f", or --after {found[limit - 1].machine_id}" if sort is None or sort in _PAGED else ""
    return found[:limit] if sort else sorted(found[:limit], key=_severity), observer, more


def _show(machines: list[FoundMachine], observer: Observer, more: str, output: Form) -> None:
    if output is Form.JSON:
        document([with_pauses(machine, observer) for machine in machines])
    else:
        print_machines(machines, observer)
    if more:
        note(more)


def print_machines(machines: list[FoundMachine], observer: Observer) -> None:
    """Print a table of *machines*, or that there are none."""
    columns = (
        Column("MACHINE"),
        Column("PROVIDER", spare=2),
        Column("PROVIDER ID"),
        Column("ADDRESS", spare=1),
        Column("LOCATION", spare=3),
        Column("RECOVERED", spare=4, number=True),
        Column("STATE", prose=True),
    )
    facts = ("provider", "provider_id", "provider_ip_address", "provider_location")
    names = ids(machine.machine_id for machine in machines)
    table(
        columns,
        [
            (name, *(getattr(machine, fact) for fact in facts), machine.recoveries or None, observer.describe(machine))
            for name, machine in zip(names, machines, strict=True)
        ],
    )
    if not machines:
        note("there are no machines")
