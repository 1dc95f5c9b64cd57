"""The pages that list machines: filters from the address, a page at a time, and downloads."""

from __future__ import annotations

import io
import json
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from uuid import UUID

from shepherd_core.bmdb.machines import queries
from shepherd_core.bmdb.machines.search import Search, search
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.domain.states import State

from shepherdctl.console.fleet import STATES
from shepherdctl.formats import iso
from shepherdctl.options import PROVIDERS
from shepherdctl.output import plain, spreadsheet
from shepherdctl.state import Observer, with_state

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shepherd_core.bmdb.connection import Connection

    from shepherdctl.console.store import Store

PAGE = 100
_DOWNLOAD_PAGE = 1_000
_SECONDS = 1.0
"""A search that found too little by then shows what it has; the next page goes on."""
_LONGEST = 128
_COLUMNS = (
    "machine_id",
    "provider",
    "provider_id",
    "provider_ip_address",
    "provider_location",
    "provider_status",
    "state",
    "paused",
    "being_worked_on",
    "backing_off",
    "machine_created_at",
    "agent_started_at",
    "agent_heartbeat_at",
)


class FilterInvalid(ShepherdError):
    """An address with a filter that does not exist, or with a value that it cannot have."""


@dataclass(frozen=True, slots=True)
class Query:
    """What the address of the page asks for."""

    search: Search
    after: UUID | None

    @classmethod
    def parse(cls, parameters: Mapping[str, str]) -> Query:
        """
        Return the query of an address; a parameter without a value is left out.

        Raises:
            FilterInvalid: the address is wrong.
        """
        given = {name: value for name, value in parameters.items() if value}
        known = {"state", "provider", "location", "paused", "text", "after"}
        if unknown := sorted(given.keys() - known):
            message = f"there is no filter {unknown[0]!r}; the filters are {', '.join(sorted(known - {'after'}))}"
            raise FilterInvalid(message)
        state = _one_of(given, "state", STATES)
        paused = _one_of(given, "paused", ("yes", "no"))
        wanted = Search(
            state=None if state is None else State(state),
            provider=_one_of(given, "provider", PROVIDERS),
            location=_short(given, "location"),
            paused=None if paused is None else paused == "yes",
            text=_short(given, "text"),
        )
        try:
            after = UUID(given["after"]) if "after" in given else None
        except ValueError as error:
            message = f"after must be a machine id, not {given['after']!r}"
            raise FilterInvalid(message) from error
        return cls(wanted, after)

    def address(self, after: UUID | None = None) -> str:
        """Return the query part of the address of the page after *after*; None: of the first page."""
        given = {name: value for name, value in asdict(self.search).items() if value is not None}
        if self.search.paused is not None:
            given["paused"] = "yes" if self.search.paused else "no"
        if after is not None:
            given["after"] = str(after)
        return urlencode(given)


def page(connection: Connection, query: Query) -> dict[str, Any]:
    """Return what one page shows."""
    observer = Observer(queries.now(connection), queries.pauses(connection))
    found: list[dict[str, Any]] = []
    after, ends = query.after, time.monotonic() + _SECONDS
    while True:
        part = search(connection, query.search, after, PAGE - len(found))
        found += part.machines
        after = part.after
        if after is None or len(found) == PAGE or time.monotonic() > ends:
            break
    for machine in found:
        machine["needs"] = machine.pop("process")
    return {
        "now": observer.now,
        "query": query,
        "filters": {**asdict(query.search), "paused": {True: "yes", False: "no", None: ""}[query.search.paused]},
        "machines": [(machine, observer.state(machine), observer.describe(machine).plain) for machine in found],
        "next": None if after is None else query.address(after),
        "cut": len(found) < PAGE and after is not None,
        "first": query.address(),
        "states": STATES,
        "providers": PROVIDERS,
    }


def csv(store: Store, query: Query) -> Iterator[str]:
    """Yield all machines that match, as CSV."""
    titles: tuple[str, ...] = _COLUMNS
    for machines in _all(store, query):
        text = io.StringIO(newline="")
        rows = [
            ["" if machine[name] is None else str(plain(machine[name])) for name in _COLUMNS] for machine in machines
        ]
        spreadsheet(titles, rows, text)
        yield text.getvalue()
        titles = ()


def json_lines(store: Store, query: Query) -> Iterator[str]:
    """Yield all machines that match, as one JSON document: a list of records, as ``machine list -o json``."""
    separator = "[\n"
    for machines in _all(store, query):
        for machine in machines:
            yield separator + json.dumps(plain(machine))
            separator = ",\n"
    yield "[]\n" if separator == "[\n" else "\n]\n"


def file_name(connection: Connection, kind: str) -> str:
    """Return the name of a download."""
    return f"machines-{iso(queries.now(connection))[:19].replace(':', '')}Z.{kind}"


def _all(store: Store, query: Query) -> Iterator[list[dict[str, Any]]]:
    """Yield the machines that match, part by part; the first part comes even if it is empty, for the titles."""
    after = query.after
    while True:

        def part(connection: Connection, after: UUID | None = after) -> tuple[list[dict[str, Any]], UUID | None]:
            observer = Observer(queries.now(connection), queries.pauses(connection))
            found = search(connection, query.search, after, _DOWNLOAD_PAGE)
            for machine in found.machines:
                machine["needs"] = machine.pop("process")
            return [with_state(machine, observer) for machine in found.machines], found.after

        machines, after = store.read(part)
        yield machines
        if after is None:
            return


def _one_of(given: Mapping[str, str], name: str, values: tuple[str, ...]) -> str | None:
    value = given.get(name)
    if value is not None and value not in values:
        message = f"{name} must be one of {', '.join(values)}, not {value[:_LONGEST]!r}"
        raise FilterInvalid(message)
    return value


def _short(given: Mapping[str, str], name: str) -> str | None:
    value = given.get(name)
    if value is not None and len(value) > _LONGEST:
        message = f"{name} may have {_LONGEST} characters at most"
        raise FilterInvalid(message)
    return value
