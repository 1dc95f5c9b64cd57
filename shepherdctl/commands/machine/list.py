"""The command that lists machines."""

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Annotated, Any
from uuid import UUID

import typer
from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.machines import pauses
from shepherd_core.bmdb.machines.search import MOST_IDS, FoundMachine, Search, in_states, matching
from shepherd_core.bmdb.wire import server
from shepherd_core.domain import labels
from shepherd_core.domain.states import State
from shepherd_core.settings.functions.bmdb import BmdbSettings
from shepherd_core.wiring.settings import load

from shepherdctl.database import bmdb
from shepherdctl.descriptions.state import Observer, with_pauses
from shepherdctl.output import watching
from shepherdctl.output.formats import natural
from shepherdctl.output.printing import Column, Form, Output, counted, document, ids, note, one_of, table
from shepherdctl.output.watching import WatchOption
from shepherdctl.selection import SEVERITY, Selection, selecting

_BY_ID, _NEWEST_FIRST = "id", "created"
_PAGED = (_BY_ID, _NEWEST_FIRST)
"""Orders in which no more machines are read than are shown."""
_SHOWN = 100
"""Machines in a table, unless told otherwise."""
_MANY = 1_000
"""Machines of one state that are read to show the first of them in the order of their places."""
_STEADY = (State.RUNNING, State.INSTALLED)
"""States in which most machines are."""
_AROUND_THE_TABLE = 6
"""Lines of the terminal besides the machines: the title, the notes, each perhaps on two, and the cursor."""


def _place(machine: FoundMachine) -> tuple[Any, ...]:
    return (machine.provider or "", natural(machine.provider_location), natural(machine.provider_id))


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


_COLUMNS = {
    "machine": Column("MACHINE"),
    "provider": Column("PROVIDER", spare=2),
    "provider-id": Column("PROVIDER ID"),
    "address": Column("ADDRESS", spare=1),
    "location": Column("LOCATION", spare=3),
    "labels": Column("LABELS", spare=5),
    "recovered": Column("RECOVERED", spare=4, number=True),
    "state": Column("STATE", prose=True),
}


def _columns(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if wrong := [name for name in names if name not in _COLUMNS]:
        message = f"{wrong[0]!r} is not one of {', '.join(_COLUMNS)}."
        raise typer.BadParameter(message)
    return names


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
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1_000_000,
            metavar="COUNT",
            help="Machines to show at most.",
            show_default="100, or as many as fit; in JSON all",
        ),
    ] = None,
    columns: Annotated[
        str,
        typer.Option(metavar="NAMES", help=f"Only these columns: {','.join(_COLUMNS)}."),
    ] = ",".join(_COLUMNS),
    watch: WatchOption = None,
    output: Output = Form.TABLE,
) -> None:
    """
    List the machines of the BMDB and their states.

    A filter that is given several times matches any of its values; a machine
    must match all filters. Of the whole fleet, machines that need attention come
    first (quarantined, failed, unhealthy, needs agent), within a state by
    provider and location; what is not shown is counted by state. With --sort id
    or created, --after shows the next page. Other orders (--sort): state-age
    (longest in its state first), heartbeat (oldest first), place (provider and
    location), recoveries (most often first), id, and created (newest machine
    first). RECOVERED is how often its recovery took a step or restarted its
    agent in the last 24 hours.

    A machine is unhealthy if it has sent no heartbeat for longer than the
    heartbeat timeout of the Recoverer, or none at all within its startup timeout.
    On a terminal, ids are shortened as far as they stay distinct.

    Examples:
      shepherdctl machine list --state quarantined --state unhealthy
      shepherdctl machine list --provider redfish --location rack3 --watch 5s
      shepherdctl machine list --cause ssh-timed-out --sort state-age
      shepherdctl machine list --columns provider-id,address,state --limit 1000
      shepherdctl machine list -o json | jq -r '.machines[].state'
    """
    if after is not None and sort not in _PAGED:
        message = "--after needs --sort id or created."
        raise typer.BadParameter(message)
    shown = _columns(columns)
    (settings,) = load(BmdbSettings)
    with bmdb(settings) as connection:
        search = selection.search(connection)

        def show(lines: int) -> Callable[[], None]:
            room = max(1, lines - _AROUND_THE_TABLE)
            read = _read(connection, search, sort, after, room if limit is None else min(limit, room))
            return partial(_show, *read, output, shown, short=True)

        if watch is not None:
            watching.watch(watch, show, table=output is Form.TABLE)
        most = limit or (None if output is Form.JSON else _SHOWN)
        _show(*_read(connection, search, sort, after, most), output, shown)


def _read(
    connection: Connection, search: Search, sort: str | None, after: UUID | None, limit: int | None
) -> tuple[list[FoundMachine], Observer, str]:
    """Return the machines to show, the observer that describes them, and a note if there are more."""
    observer = Observer(server.now(connection), pauses.pauses_in_force(connection))
    room = None if limit is None else limit + 1
    if sort is None:
        found, counts = _worst_first(connection, search, room)
    elif sort in _PAGED:
        counts = None
        page = {} if room is None else {"page": room}
        found = list(islice(matching(connection, search, after, newest_first=sort == _NEWEST_FIRST, **page), room))
    else:
        counts, key = None, _ORDERS[sort]
        machines = matching(connection, search)
        found = sorted(machines, key=key) if room is None else heapq.nsmallest(room, machines, key=key)
    more = ""
    if limit is not None and len(found) > limit:
        del found[limit:]
        rest = Counter(counts) - Counter(machine.state for machine in found)
        states = ", ".join(f"{rest[state]} {state.replace('_', ' ')}" for state in SEVERITY if rest[state])
        more = f"only {counted(limit, 'machine')} shown; not shown: {states or 'more'}: see --limit"
        more += f", or --after {found[-1].machine_id}" if sort in _PAGED else ""
    return found, observer, more


def _worst_first(
    connection: Connection, search: Search, room: int | None
) -> tuple[list[FoundMachine], Mapping[State, int] | None]:
    """
    Return at most *room* machines that match, in the order of their states, and how many match in each state.

    The numbers are None if they would take a search of the whole fleet. Of a state with thousands of machines, those
    with the lowest ids are returned.
    """
    most = min(room + _MANY, MOST_IDS) if search.simple and room is not None else MOST_IDS
    states = [each for each in SEVERITY if each in (search.states or SEVERITY)]
    counts: Counter[State] = Counter()
    named: defaultdict[State, list[UUID]] = defaultdict(list)
    for each in in_states(connection, search, [state for state in states if state not in _STEADY], most):
        counts[each.state] = each.machines
        if each.machine_id is not None:
            named[each.state].append(each.machine_id)
    found: list[FoundMachine] = []
    for state in (each for each in states if counts[each]):
        left = None if room is None else room - len(found)
        if left == 0:
            break
        wanted = replace(search, states=(state,))
        if not search.machine_ids and (most < MOST_IDS or len(named[state]) == counts[state]):
            wanted = replace(wanted, machine_ids=tuple(named[state]))
        machines = matching(connection, wanted, page=MOST_IDS if left is None else left)
        if left is None:
            found += sorted(machines, key=_place)
        elif (search.simple and counts[state] > _MANY) or state in _STEADY:
            found += sorted(islice(machines, left), key=_place)
        else:
            found += heapq.nsmallest(left, machines, key=_place)
    return found, {state: counts[state] for state in states} if search.simple else None


def _show(
    machines: list[FoundMachine],
    observer: Observer,
    more: str,
    output: Form,
    columns: tuple[str, ...],
    *,
    short: bool = False,
) -> None:
    if output is Form.JSON:
        document({"machines": [with_pauses(machine, observer) for machine in machines]})
    else:
        _print(machines, observer, columns, short=short)
    if more:
        note(more)


def _print(machines: list[FoundMachine], observer: Observer, columns: tuple[str, ...], *, short: bool) -> None:
    """Print a table of *machines*, or that there are none."""
    rows = [
        {
            "machine": short,
            "provider": machine.provider,
            "provider-id": machine.provider_id,
            "address": machine.provider_ip_address,
            "location": machine.provider_location,
            "labels": ", ".join(labels.written(machine.labels)),
            "recovered": machine.recoveries or None,
            "state": observer.describe(machine),
        }
        for short, machine in zip(ids(machine.machine_id for machine in machines), machines, strict=True)
    ]
    table([_COLUMNS[name] for name in columns], [[row[name] for name in columns] for row in rows], short=short)
    if not machines:
        note("there are no machines")
