"""The command that lists machines."""

from typing import Annotated

import typer
from shepherd_core.bmdb.machines import queries
from shepherd_core.settings.functions import load

from shepherdctl.database import bmdb
from shepherdctl.options import ProviderOption
from shepherdctl.output import Column, Form, Output, counted, document, ids, note, table
from shepherdctl.state import Observer, Settings, with_state


def list_machines(
    provider: ProviderOption = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, metavar="COUNT", help="Machines to show at most.")] = 100,
    output: Output = Form.TABLE,
) -> None:
    """
    List the machines of the BMDB and their state, by machine id.

    An unhealthy machine has sent no heartbeat for longer than the heartbeat
    timeout (SHEPHERD_HEARTBEAT_TIMEOUT_SECONDS), or none at all within the
    startup timeout (SHEPHERD_STARTUP_TIMEOUT_SECONDS).
    On a terminal, ids are as short as they can be without two being alike.

    Examples:
      shepherdctl machine list --provider static
      shepherdctl machine list --limit 100000 -o json | jq -r '.[].state'
    """
    (settings,) = load(Settings)
    with bmdb(settings) as connection:
        machines = queries.list_machines(connection, provider=provider, limit=limit + 1)
        observer = Observer(queries.now(connection), settings, queries.pauses(connection))
    for machine in machines:
        machine["needs"] = machine.pop("process")
    shown = machines[:limit]
    if output is Form.JSON:
        document([with_state(machine, observer) for machine in shown])
    else:
        names = ids(machine["machine_id"] for machine in shown)
        columns = (
            Column("MACHINE"),
            Column("PROVIDER", spare=2),
            Column("PROVIDER ID"),
            Column("ADDRESS", spare=1),
            Column("LOCATION", spare=3),
            Column("STATE", prose=True),
        )
        rows = [
            (
                name,
                machine["provider"],
                machine["provider_id"],
                machine["provider_ip_address"],
                machine["provider_location"],
                observer.words(machine),
            )
            for name, machine in zip(names, shown, strict=True)
        ]
        table(columns, rows)
        if not shown:
            note("there are no machines")
    if len(machines) > limit:
        note(f"only {counted(limit, 'machine')} shown, there are more: see --limit")
