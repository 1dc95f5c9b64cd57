"""
The machines that a command shows or changes: the same filters for all commands.

A command that takes a ``selection`` and is decorated with ``selecting`` gets the options of ``Selection.of``.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import wraps
from typing import Annotated, Any, Self
from uuid import UUID

import typer
from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.machines import lookup, overview, pauses
from shepherd_core.bmdb.machines.search import MOST_IDS, FoundMachine, Search, matching
from shepherd_core.bmdb.wire import server
from shepherd_core.domain import labels
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.domain.errors.kinds import FailureKind
from shepherd_core.domain.machine import LONGEST_TEXT
from shepherd_core.domain.states import State

from shepherdctl.completion import location_names, machine_names
from shepherdctl.confirm import confirm, require_terminal
from shepherdctl.descriptions.state import Observer
from shepherdctl.options import MACHINE_NAME, PROVIDERS
from shepherdctl.output.formats import duration, in_full
from shepherdctl.output.printing import counted, note, one_of

SEVERITY = (
    State.QUARANTINED,
    State.FAILED,
    State.UNHEALTHY,
    State.NEEDS_AGENT,
    State.STARTING,
    State.CREATING,
    State.RUNNING,
    State.INSTALLED,
)
"""The states of machines in the BMDB, those that need attention first."""
_MOST_CHANGED = 1_000
"""Machines that one command changes at most."""
_MOST_SHOWN = 20
_PANEL = "Filters: which machines"


def _short(text: str) -> str:
    """
    Return a filter's text.

    Raises:
        BadParameter: it is blank or too long.
    """
    if not text.strip() or len(text) > LONGEST_TEXT:
        message = f"{text[:LONGEST_TEXT]!r} is not a filter: it must have 1 to {LONGEST_TEXT} characters."
        raise typer.BadParameter(message)
    return text


def _label(text: str) -> str:
    """
    Return a filter by a label.

    Raises:
        BadParameter: it is not one.
    """
    try:
        labels.read(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}.") from error
    return text


def _several(
    metavar: str,
    text: str,
    *names: str,
    parser: Callable[[str], object],
    complete: Callable[[str], list[str]] | None = None,
) -> Any:
    return typer.Option(
        *names,
        parser=parser,
        metavar=metavar,
        help=f"{text} May be given several times.",
        rich_help_panel=_PANEL,
        autocompletion=complete,
    )


def _age(name: str, text: str) -> Any:
    return typer.Option(name, parser=duration, metavar="TIME", help=text, rich_help_panel=_PANEL)


def check_locations(connection: Connection, names: Sequence[str]) -> None:
    """
    Check that machines are at the locations of these *names*.

    Raises:
        ShepherdError: none is at one of them; names those that were probably meant.
    """
    known = overview.locations(connection) if names else []
    for name in names:
        if name not in known:
            alike = [repr(each) for each in get_close_matches(name, known)]
            message = f"no machine is at {name!r}{': did you mean ' if alike else ''}{' or '.join(alike)}"
            raise ShepherdError(f"{message}{'?' if alike else ''}")


@dataclass(frozen=True, slots=True)
class Selection:
    """Machines, selected by names and filters; a machine must match all of them."""

    names: tuple[str, ...]
    """Beginnings of machine ids, or provider ids."""
    filters: Search
    """A search without machine ids."""

    @classmethod
    def of(
        cls,
        *,
        named: Annotated[
            list[str] | None,
            _several("ID", f"{MACHINE_NAME.capitalize()}.", "--machine", parser=str, complete=machine_names),
        ] = None,
        states: Annotated[
            list[str] | None,
            _several("STATE", f"One of {', '.join(SEVERITY)}.", "--state", parser=one_of(*SEVERITY)),
        ] = None,
        providers: Annotated[
            list[str] | None,
            _several(f"<{'|'.join(PROVIDERS)}>", "Of this provider.", "--provider", parser=one_of(*PROVIDERS)),
        ] = None,
        locations: Annotated[
            list[str] | None,
            _several(
                "NAME",
                "At this location, as the provider names it.",
                "--location",
                parser=_short,
                complete=location_names,
            ),
        ] = None,
        with_labels: Annotated[
            list[str] | None,
            _several(
                "KEY[=VALUE]",
                "With this label; KEY alone: whatever its value. With each of them, if several are given.",
                "--label",
                parser=_label,
            ),
        ] = None,
        paused: Annotated[
            bool | None,
            typer.Option(
                "--paused/--not-paused",
                help="Only paused machines, or only those that are not.",
                rich_help_panel=_PANEL,
            ),
        ] = None,
        text: Annotated[
            str | None,
            typer.Option(
                "--text",
                parser=_short,
                metavar="TEXT",
                help="The beginning of an id or of an address, or a part of a provider id or of the hardware report.",
                rich_help_panel=_PANEL,
            ),
        ] = None,
        causes: Annotated[
            list[str] | None,
            _several(
                "KIND",
                "The kind of the last failure or of the quarantine, such as ssh-timed-out.",
                "--cause",
                parser=one_of(*FailureKind),
            ),
        ] = None,
        heartbeat_older: Annotated[
            float | None, _age("--heartbeat-older", "The last heartbeat is older than this: 90s, 15m, 2h, 1d.")
        ] = None,
        heartbeat_younger: Annotated[
            float | None, _age("--heartbeat-younger", "The last heartbeat is younger than this.")
        ] = None,
        state_older: Annotated[float | None, _age("--state-older", "In its state for longer than this.")] = None,
        state_younger: Annotated[float | None, _age("--state-younger", "In its state for less than this.")] = None,
    ) -> Self:
        """Return the selection that the options of a command make."""
        return cls(
            tuple(named or ()),
            Search(
                states=tuple(State(name) for name in states or ()),
                providers=tuple(providers or ()),
                locations=tuple(locations or ()),
                labels=tuple(with_labels or ()),
                paused=paused,
                text=text,
                kinds=tuple(FailureKind(name) for name in causes or ()),
                heartbeat_older=heartbeat_older,
                heartbeat_younger=heartbeat_younger,
                state_older=state_older,
                state_younger=state_younger,
            ),
        )

    def __bool__(self) -> bool:
        """Return whether anything was given."""
        return bool(self.names) or self.filters != Search()

    def to_confirm(self, names: Sequence[str] | None = None, *, yes: bool) -> Self:
        """
        Return this selection with *names* added, for a command that changes machines. *yes*: the command does not ask.

        Raises:
            BadParameter: nothing was given, which would select every machine; or there is no terminal to ask on.
        """
        chosen = replace(self, names=(*self.names, *(names or ())))
        if not chosen:
            message = "no machines selected: give ids, or filters such as --state or --cause."
            raise typer.BadParameter(message)
        require_terminal(yes=yes or not chosen.asks)
        return chosen

    def search(self, connection: Connection, *, none_ok: bool = False) -> Search:
        """
        Return the search for these machines. *none_ok*: there may be none at a location.

        Raises:
            MachineUnknown: a name stands for no machine, or for several.
            ShepherdError: there are too many names, or no machine is at one of the locations.
        """
        if len(self.names) > MOST_IDS:
            message = f"{len(self.names)} machines are named, but at most {MOST_IDS} can be: use filters"
            raise ShepherdError(message)
        if not none_ok:
            check_locations(connection, self.filters.locations)
        named = dict.fromkeys(lookup.find_machine(connection, name) for name in self.names)
        return replace(self.filters, machine_ids=tuple(named))

    def of_state(self, state: State) -> Self:
        """
        Return the machines of this selection in *state*; machines that are named stay, whatever their state.

        Raises:
            BadParameter: the filters are for other states.
        """
        if self.names:
            return self
        if self.filters.states and state not in self.filters.states:
            message = f"this command is for machines in the state {state}: leave out --state."
            raise typer.BadParameter(message)
        return replace(self, filters=replace(self.filters, states=(state,)))

    def to_change(self, connection: Connection, *, none_ok: bool = False) -> list[FoundMachine]:
        """
        Return the machines that match, named ones in the order of their names.

        Raises:
            MachineUnknown: as ``search``.
            ShepherdError: none matches, unless *none_ok*; or more than 1,000.
        """
        search = self.search(connection, none_ok=none_ok)
        found: list[FoundMachine] = []
        for machine in matching(connection, search):
            found.append(machine)
            if len(found) > _MOST_CHANGED:
                message = f"more than {_MOST_CHANGED} machines match: add filters, or pause the provider"
                raise ShepherdError(message)
        if not (found or none_ok):
            message = "no machine matches: nothing was changed"
            raise ShepherdError(message)
        order = {machine_id: place for place, machine_id in enumerate(search.machine_ids)}
        return sorted(found, key=lambda machine: order.get(machine.machine_id, 0))

    def ids(self, connection: Connection, *, none_ok: bool = False) -> tuple[UUID, ...]:
        """Return the ids of the machines that match, without filters even if they are gone. Raises as ``to_change``."""
        search = self.search(connection, none_ok=none_ok)
        if self.filters == Search():
            return search.machine_ids
        return tuple(machine.machine_id for machine in self.to_change(connection, none_ok=none_ok))

    def confirm(self, connection: Connection, machines: Sequence[FoundMachine]) -> None:
        """
        Wait until the operator confirms a change of *machines*, unless exactly one machine was named.

        Raises:
            ShepherdError: something else was typed.
        """
        if not self.asks:
            return
        observer = Observer(server.now(connection), pauses.pauses_in_force(connection))
        for machine in machines[:_MOST_SHOWN]:
            note(f"{in_full(machine.provider_id, machine.machine_id)}: {observer.describe(machine)}")
        if len(machines) > _MOST_SHOWN:
            note(f"and {len(machines) - _MOST_SHOWN} more: shepherdctl machine list shows them, with the same filters")
        confirm(counted(len(machines), "machine"))

    @property
    def asks(self) -> bool:
        """Whether a command asks before it changes these machines: there may be more than one."""
        return len(set(self.names)) != 1


def selecting(command: Callable[..., None]) -> Callable[..., None]:
    """Return *command* with the options of ``Selection.of`` in the place of its argument ``selection``."""
    options = list(inspect.signature(Selection.of, eval_str=True).parameters.values())
    own = inspect.signature(command, eval_str=True)

    @wraps(command)
    def with_options(**given: Any) -> None:
        command(selection=Selection.of(**{each.name: given.pop(each.name) for each in options}), **given)

    parameters = [each.replace(kind=each.KEYWORD_ONLY) for each in own.parameters.values()]
    place = list(own.parameters).index("selection")
    parameters[place : place + 1] = options
    vars(with_options)["__signature__"] = own.replace(parameters=parameters)
    with_options.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": None}
    return with_options
