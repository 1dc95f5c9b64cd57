"""The selection of machines by filters, page by page. For operators."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from shepherd_core.domain.machine import ProviderId
from shepherd_core.domain.record import record
from shepherd_core.domain.states import State

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.domain.errors.kinds import FailureKind

_EXAMINED = 5_000
"""
Machines that one statement examines at most: less than 0.1 s where a fact decides that nearly none matches, about
0.3 s where the state of each has to be evaluated.
"""
_FEW_EXAMINED = 500
"""The same, if the newest come first or machines in some states are wanted: the state of each is evaluated."""
_PAGE = 1_000
MOST_IDS = _EXAMINED
"""Machine ids that a search may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """
    The filters of a search: a machine must match all; a filter that is empty or None matches all machines.

    Of several values of one filter but ``labels``, any matches. Ages are in seconds.
    """

    machine_ids: tuple[UUID, ...] = ()
    states: tuple[State, ...] = ()
    providers: tuple[str, ...] = ()
    locations: tuple[str, ...] = ()
    paused: bool | None = None
    text: str | None = None
    """
    The beginning of a machine id or of an address, or a part of a provider id or of the hardware report (such as a
    serial number).
    """
    kinds: tuple[FailureKind, ...] = ()
    """Of the machine's quarantine, or of a failure that ``failures`` counts."""
    labels: tuple[str, ...] = ()
    """As ``domain.labels.written`` returns them, but KEY alone has any value. The machine has all of them."""
    heartbeat_older: float | None = None
    """The last heartbeat is at least so old. A machine without one does not match."""
    heartbeat_younger: float | None = None
    state_older: float | None = None
    """The machine has been in its state for at least so long, as far as its facts tell (``state_since``)."""
    state_younger: float | None = None

    @property
    def wide(self) -> bool:
        """Return whether it has no other filters than those that a pause has, which also covers machines to come."""
        return self == Search(providers=self.providers, locations=self.locations, labels=self.labels)

    @property
    def simple(self) -> bool:
        """Return whether it has no other filters than states, providers and locations."""
        return self == Search(states=self.states, providers=self.providers, locations=self.locations)


@record
class FoundMachine:
    """A machine that was searched for."""

    machine_id: UUID
    machine_created_at: datetime
    provider: str | None
    intended_provider: str | None
    """While it is being created."""
    provider_id: ProviderId | None
    provider_ip_address: str | None
    provider_location: str | None
    provider_status: str | None
    labels: dict[str, str]
    """Values by key, of the provider and of operators."""
    state: State
    state_since: datetime
    agent_started_at: datetime | None
    agent_heartbeat_at: datetime | None
    needs: str | None
    """A process."""
    backing_off: bool
    backoff_until: datetime | None
    being_worked_on: bool
    pause_ids: list[UUID]
    """The pauses in force that apply to it, its own and wider ones."""
    quarantined_at: datetime | None
    recoveries: int
    """In the last day (the view ``machine_recoveries``)."""


@record
class InState:
    """How many machines are in a state, and one of them, if it was asked for."""

    state: State
    machines: int
    machine_id: UUID | None


@dataclass(frozen=True, slots=True)
class FoundPart:
    """A part of the result of a search."""

    machines: list[FoundMachine]
    """In the order of the search."""
    after: UUID | None
    """Where to go on; None: there are no more machines."""


def search(
    connection: Connection, wanted: Search, after: UUID | None, limit: int, *, newest_first: bool = False
) -> FoundPart:
    """
    Return at most *limit* of the machines after *after* that match, by id or *newest_first*.

    There may be fewer, also none, although others follow: one call examines 5,000
    machines, or 500 of the newest.
    """
    assert len(wanted.machine_ids) <= MOST_IDS
    if newest_first:
        return _newest(connection, wanted, after, limit)
    examine = _FEW_EXAMINED if wanted.states and not wanted.machine_ids else _EXAMINED
    bounds = {"after": after, "examine": examine, "limit": limit}
    found = connection.fetch(FoundMachine, "search_machines", **_filters(wanted), **bounds)
    if len(found) == limit:
        return FoundPart(found, found[-1].machine_id)
    if wanted.machine_ids:
        return FoundPart(found, None)
    last = next(iter(connection.fetch(UUID, "last_examined", after=after, examine=examine)), None)
    if last is None or not wanted.states:
        return FoundPart(found, last)
    # They are few: all of them are found at once.
    most = limit - len(found) if wanted.simple else _EXAMINED
    chosen = _chosen(connection, wanted, last, most)
    if not chosen:
        return FoundPart(found, None)
    more = search(connection, replace(wanted, machine_ids=chosen), None, limit - len(found))
    full = more.after is not None and len(found) + len(more.machines) == limit
    goes_on = more.after if full else chosen[-1] if len(chosen) == most else None
    return FoundPart(found + more.machines, goes_on)


def in_states(
    connection: Connection, wanted: Search, states: Sequence[State], limit: int, after: UUID | None = None
) -> list[InState]:
    """
    Return how many machines after *after* are in each state, with the first *limit* in each of *states*, by id.

    Of the filters only providers and locations count. Reads the facts of the whole fleet once.
    """
    filters = {name: value for name, value in _filters(wanted).items() if name in ("providers", "locations")}
    return connection.fetch(InState, "machines_in_states", **filters, states=list(states), after=after, limit=limit)


def matching(
    connection: Connection,
    wanted: Search | None = None,
    after: UUID | None = None,
    *,
    page: int = _PAGE,
    newest_first: bool = False,
) -> Iterator[FoundMachine]:
    """
    Yield the machines after *after* that match, or all that there are, in an order of ``search``.

    Reads *page* of them at a time, at most 1,000, and no more than the caller takes.
    """
    while True:
        found = search(connection, wanted or Search(), after, min(page, _PAGE), newest_first=newest_first)
        yield from found.machines
        after = found.after
        if after is None:
            return


def _newest(connection: Connection, wanted: Search, after: UUID | None, limit: int) -> FoundPart:
    """Return what ``search`` does, the newest machines first."""
    if (
        wanted.states
        and not wanted.machine_ids
        and len(chosen := _chosen(connection, wanted, None, _EXAMINED)) < _EXAMINED
    ):
        if not chosen:
            return FoundPart([], None)
        wanted = replace(wanted, machine_ids=chosen)
    examined = wanted.machine_ids
    if not examined:
        examined = tuple(connection.fetch(UUID, "newest_machines", after=after, examine=_FEW_EXAMINED))
    if not examined:
        return FoundPart([], None)
    filters, bounds = (
        _filters(replace(wanted, machine_ids=examined)),
        {"examine": len(examined), "limit": len(examined)},
    )
    found = connection.fetch(FoundMachine, "search_machines", **filters, **bounds, after=None)
    found.sort(key=lambda machine: (machine.machine_created_at, machine.machine_id), reverse=True)
    if wanted.machine_ids and after is not None:
        places = {machine.machine_id: place for place, machine in enumerate(found, 1)}
        found = found[places.get(after, len(found)) :]
    if len(found) >= limit:
        return FoundPart(found[:limit], found[limit - 1].machine_id)
    goes_on = not wanted.machine_ids and len(examined) == _FEW_EXAMINED
    return FoundPart(found, examined[-1] if goes_on else None)


def _chosen(connection: Connection, wanted: Search, after: UUID | None, limit: int) -> tuple[UUID, ...]:
    """Return at most *limit* machines after *after* in the states that are wanted, by id."""
    found = in_states(connection, wanted, wanted.states, limit, after)
    return tuple(each.machine_id for each in found if each.machine_id is not None)[:limit]


def _filters(wanted: Search) -> dict[str, Any]:
    """Return the parameters of the statement: null for each filter that is not used."""
    return {
        name: None if value in ((), "") else list(value) if isinstance(value, tuple) else value
        for name, value in asdict(wanted).items()
    }
