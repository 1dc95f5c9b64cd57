"""The command that lists machines."""

from collections.abc import Iterator
from typing import Annotated, Any

import typer
from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.machines import queries
from shepherd_core.domain.states import State
from shepherd_core.settings.functions import BmdbSettings
from shepherd_core.wiring.settings import load

from shepherdctl.database import bmdb
from shepherdctl.options import LocationOption, ProviderOption
from shepherdctl.output import Column, Form, Output, counted, document, ids, note, one_of, table
from shepherdctl.state import Observer, with_state

_SEVERITY = (
    State.QUARANTINED,
    State.UNHEALTHY,
    State.NEEDS_AGENT,
    State.STARTING,
    State.CREATING,
    State.RUNNING,
    State.INSTALLED,
)
"""The states of machines in the BMDB, those that need attention first."""
_PAGE = 1_000
"""Machines that one statement reads when they are filtered by state, which no index knows."""


def list_machines(
    provider: ProviderOption = None,
    location: LocationOption = None,
    states: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            parser=one_of(*_SEVERITY),
            metavar="STATE",
            help=f"Only this state: {', '.join(_SEVERITY)}. May be given several times.",
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, metavar="COUNT", help="Machines to show at most.")] = 100,
    output: Output = Form.TABLE,
) -> None:
    """
    List the machines of the BMDB and their states.

    Machines that need attention come first (quarantined, unhealthy, needs agent),
    within a state by provider and location. If there are more machines than
    --limit, those with the lowest machine ids are shown.

    A machine is unhealthy if it has sent no heartbeat for longer than the
    heartbeat timeout of the Recoverer, or none at all within its startup timeout.
    On a terminal, ids are shortened as far as they stay distinct.

    Examples:
      shepherdctl machine list --state quarantined --state unhealthy
      shepherdctl machine list --provider redfish --location rack3
      shepherdctl machine list --limit 100000 -o json | jq -r '.[].state'
    """
    (settings,) = load(BmdbSettings)
    found: list[dict[str, Any]] = []
    with bmdb(settings) as connection:
        observer = Observer(queries.now(connection), queries.pauses(connection))
        page = max(limit + 1, _PAGE) if states else limit + 1
        for machine in _machines(connection, page, provider, location):
            machine["needs"] = machine.pop("process")
            if not states or observer.state(machine) in states:
                found.append(machine)
            if len(found) > limit:
                break
    shown = sorted(found[:limit], key=lambda machine: _order(machine, observer))
    if output is Form.JSON:
        document([with_state(machine, observer) for machine in shown])
    else:
        _print(shown, observer)
    if len(found) > limit:
        note(f"only {counted(limit, 'machine')} shown, there are more: see --limit")


def _machines(
    connection: Connection, page: int, provider: str | None, location: str | None
) -> Iterator[dict[str, Any]]:
    """Yield the machines by id, reading *page* of them at a time."""
    after = None
    while found := queries.list_machines(connection, provider=provider, location=location, after=after, limit=page):
        yield from found
        after = found[-1]["machine_id"]


def _order(machine: dict[str, Any], observer: Observer) -> tuple[int, list[str]]:
    place = [machine[name] or "" for name in ("provider", "provider_location", "provider_id")]
    return _SEVERITY.index(observer.state(machine)), place


def _print(machines: list[dict[str, Any]], observer: Observer) -> None:
    columns = (
        Column("MACHINE"),
        Column("PROVIDER", spare=2),
        Column("PROVIDER ID"),
        Column("ADDRESS", spare=1),
        Column("LOCATION", spare=3),
        Column("STATE", prose=True),
    )
    facts = ("provider", "provider_id", "provider_ip_address", "provider_location")
    names = ids(machine["machine_id"] for machine in machines)
    table(
        columns,
        [
            (name, *(machine[fact] for fact in facts), observer.describe(machine))
            for name, machine in zip(names, machines, strict=True)
        ],
    )
    if not machines:
        note("there are no machines")
