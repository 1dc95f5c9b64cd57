"""A search for machines by filters, page by page. For operators."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from shepherd_core.bmdb.connection import sanitize_for_db

if TYPE_CHECKING:
    from uuid import UUID

    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.domain.states import State

_EXAMINED = 5_000
"""Machines that one statement examines at most: less than 0.1 s also where only the last of them matches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What machines are searched for; None matches all."""

    state: State | None = None
    provider: str | None = None
    location: str | None = None
    paused: bool | None = None
    text: str | None = None
    """
    The beginning of a machine id or of an address, or a part of a provider id or of the hardware report (such as a
    serial number).
    """


@dataclass(frozen=True, slots=True)
class Found:
    """A part of the result of a search."""

    machines: list[dict[str, Any]]
    """
    By id, as ``queries.list_machines`` returns them, each with its ``state`` and, while it is being created, its
    ``intended_provider``.
    """
    after: UUID | None
    """Where to go on; None: there are no more machines."""


def search(connection: Connection, wanted: Search, after: UUID | None, limit: int) -> Found:
    """
    Return at most *limit* of the machines after *after* that match.

    There may be fewer, also none, although others follow: one call examines 5,000 machines.
    """
    filters = asdict(wanted) | {"text": wanted.text and sanitize_for_db(wanted.text)}
    found = connection.records("search_machines", **filters, after=after, examine=_EXAMINED, limit=limit)
    if len(found) == limit:
        return Found(found, found[-1]["machine_id"])
    last = connection.run("last_examined", after=after, examine=_EXAMINED)
    return Found(found, last[0][0] if last else None)
