"""The pages that list machines: filters from the address, a page at a time, and downloads."""

from __future__ import annotations

import io
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from uuid import UUID

import typer
from shepherd_core.bmdb.machines import pauses
from shepherd_core.bmdb.machines.search import Search, search
from shepherd_core.bmdb.wire import server
from shepherd_core.domain import labels
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.domain.errors.kinds import FailureKind
from shepherd_core.domain.machine import LONGEST_TEXT
from shepherd_core.domain.states import State

from shepherdctl.console.pages.fleet import STATES
from shepherdctl.descriptions import commands
from shepherdctl.descriptions.state import Observer, with_pauses
from shepherdctl.options import PROVIDERS
from shepherdctl.output.formats import duration, iso
from shepherdctl.output.json_fields import VERSION
from shepherdctl.output.printing import plain, spreadsheet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.bmdb.machines.search import FoundMachine, FoundPart

    from shepherdctl.console.bmdb_reader import BmdbReader

PAGE = 100
_DOWNLOAD_PAGE = 1_000
_SECONDS = 1.0
"""A search that has not filled its page by then shows what it found; the next page continues it."""
AGES = ("heartbeat_older", "heartbeat_younger", "state_older", "state_younger")
FILTERS = ("state", "provider", "location", "label", "paused", "text", "cause", *AGES)
"""As parameters of the address."""
_NEWEST_FIRST = "created"
"""As the parameter ``sort`` of the address."""
_SEVERAL = ("state", "provider", "location", "label", "cause")
"""Filters that may have several values."""
_COLUMNS = (
    "machine_id",
    "provider",
    "provider_id",
    "address",
    "location",
    "labels",
    "provider_status",
    "state",
    "paused",
    "being_worked_on",
    "backing_off",
    "created_at",
    "agent_started_at",
    "heartbeat_at",
)


class FilterInvalid(ShepherdError):
    """An address with a filter that does not exist, or with a value that it cannot have."""


class PageEmpty(ShepherdError):
    """The list ends before this page."""


@dataclass(frozen=True, slots=True)
class Query:
    """The query in the address of the page."""

    search: Search
    after: UUID | None
    newest_first: bool = False
    """The order of the machines; otherwise it is that of their ids."""

    @classmethod
    def parse(cls, parameters: Iterable[tuple[str, str]]) -> Query:
        """
        Return the query of an address; a parameter without a value is left out.

        Raises:
            FilterInvalid: the address is wrong.
        """
        given: dict[str, list[str]] = {}
        for name, value in parameters:
            if value.strip():
                given.setdefault(name, []).append(_short(name, value))
        if unknown := sorted(given.keys() - {*FILTERS, "sort", "after"}):
            message = f"there is no filter {unknown[0]!r}; the filters are {', '.join(FILTERS)}"
            raise FilterInvalid(message)
        if several := next((name for name in given if len(given[name]) > 1 and name not in _SEVERAL), None):
            message = f"{several} may be given once"
            raise FilterInvalid(message)
        one = {name: values[0] for name, values in given.items()}
        paused = one.get("paused") and _one_of("paused", one["paused"], ("yes", "no"))
        wanted = Search(
            states=tuple(State(_one_of("state", each, STATES)) for each in given.get("state", ())),
            providers=tuple(_one_of("provider", each, PROVIDERS) for each in given.get("provider", ())),
            locations=tuple(given.get("location", ())),
            labels=tuple(map(_label, given.get("label", ()))),
            paused=None if paused is None else paused == "yes",
            text=one.get("text"),
            kinds=tuple(FailureKind(_one_of("cause", each, tuple(FailureKind))) for each in given.get("cause", ())),
            heartbeat_older=_seconds(one, "heartbeat_older"),
            heartbeat_younger=_seconds(one, "heartbeat_younger"),
            state_older=_seconds(one, "state_older"),
            state_younger=_seconds(one, "state_younger"),
        )
        try:
            after = UUID(one["after"]) if "after" in one else None
        except ValueError as error:
            message = f"after must be a machine id, not {one['after']!r}"
            raise FilterInvalid(message) from error
        return cls(wanted, after, "sort" in one and _one_of("sort", one["sort"], (_NEWEST_FIRST,)) == _NEWEST_FIRST)

    @property
    def filters(self) -> dict[str, Sequence[str]]:
        """The values of each filter, as text."""
        wanted = self.search
        values: dict[str, tuple[object, ...]] = {
            "state": wanted.states,
            "provider": wanted.providers,
            "location": wanted.locations,
            "label": wanted.labels,
            "paused": () if wanted.paused is None else ("yes" if wanted.paused else "no",),
            "text": (wanted.text,),
            "cause": wanted.kinds,
            **{name: (seconds and f"{seconds:.0f}s",) for name in AGES for seconds in (getattr(wanted, name),)},
        }
        return {name: [str(value) for value in values[name] if value] for name in FILTERS}

    def address(self, after: UUID | None = None) -> str:
        """Return the query part of the address of the page after *after*; None: of the first page."""
        given: dict[str, object] = {name: values for name, values in self.filters.items() if values}
        given |= {"sort": _NEWEST_FIRST} if self.newest_first else {}
        given |= {} if after is None else {"after": after}
        return urlencode(given, doseq=True)

    def run(self, connection: Connection, after: UUID | None, limit: int) -> FoundPart:
        """Return at most *limit* of the machines after *after* that match; see ``search``."""
        return search(connection, self.search, after, limit, newest_first=self.newest_first)


def page(connection: Connection, query: Query) -> dict[str, Any]:
    """
    Return the context of the template for one page.

    Raises:
        PageEmpty: the list ends before it.
    """
    observer = Observer(server.now(connection), pauses.pauses_in_force(connection))
    found: list[FoundMachine] = []
    after, ends = query.after, time.monotonic() + _SECONDS
    while True:
        part = query.run(connection, after, PAGE - len(found))
        found += part.machines
        after = part.after
        if after is None or len(found) == PAGE or time.monotonic() > ends:
            break
    if query.after is not None and not found and after is None:
        raise PageEmpty
    return {
        "now": observer.now,
        "query": query,
        "filters": query.filters,
        "machines": [
            (machine, machine.state, observer.describe(machine).plain, ", ".join(labels.written(machine.labels)))
            for machine in found
        ],
        "next": None if after is None else query.address(after),
        "cut": len(found) < PAGE and after is not None,
        "first": query.address(),
        "commands": commands.of_search(query.search, query.filters, _NEWEST_FIRST if query.newest_first else None),
        "states": STATES,
        "kinds": tuple(FailureKind),
        "providers": PROVIDERS,
    }


def csv(bmdb: BmdbReader, query: Query) -> Iterator[str]:
    """Yield all machines that match, as CSV."""
    titles: tuple[str, ...] = _COLUMNS
    for machines in _all(bmdb, query):
        text = io.StringIO(newline="")
        rows = [
            ["" if machine[name] is None else str(plain(machine[name])) for name in _COLUMNS]
            for machine in ({**each, "labels": ", ".join(labels.written(each["labels"]))} for each in machines)
        ]
        spreadsheet(titles, rows, text)
        yield text.getvalue()
        titles = ()


def json_lines(bmdb: BmdbReader, query: Query) -> Iterator[str]:
    """Yield all machines that match, as the JSON document of ``machine list -o json``."""
    yield f'{{"version": {VERSION}, "machines": ['
    separator = "\n"
    for machines in _all(bmdb, query):
        for machine in machines:
            yield separator + json.dumps(plain(machine))
            separator = ",\n"
    yield "\n]}\n"


def file_name(connection: Connection, kind: str) -> str:
    """Return the name of a download."""
    return f"machines-{iso(server.now(connection))[:19].replace(':', '')}Z.{kind}"


def _all(bmdb: BmdbReader, query: Query) -> Iterator[list[dict[str, Any]]]:
    """Yield the machines that match, part by part; the first part comes even if it is empty, for the titles."""
    after = query.after
    while True:

        def part(connection: Connection, after: UUID | None = after) -> tuple[list[dict[str, Any]], UUID | None]:
            observer = Observer(server.now(connection), pauses.pauses_in_force(connection))
            found = query.run(connection, after, _DOWNLOAD_PAGE)
            return [with_pauses(machine, observer) for machine in found.machines], found.after

        machines, after = bmdb.read(part)
        yield machines
        if after is None:
            return


def _one_of(name: str, value: str, values: Sequence[str]) -> str:
    if value not in values:
        message = f"{name} must be one of {', '.join(values)}, not {value!r}"
        raise FilterInvalid(message)
    return value


def _label(value: str) -> str:
    try:
        labels.read(value)
    except ValueError as error:
        raise FilterInvalid(str(error)) from error
    return value


def _seconds(given: Mapping[str, str], name: str) -> float | None:
    try:
        return duration(given[name]) if name in given else None
    except typer.BadParameter as error:
        message = f"{name}: {error.message}"
        raise FilterInvalid(message) from error


def _short(name: str, value: str) -> str:
    if len(value) > LONGEST_TEXT:
        message = f"{name} may have {LONGEST_TEXT} characters at most"
        raise FilterInvalid(message)
    return value
