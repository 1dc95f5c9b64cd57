"""The command that shows the history of a machine."""

from contextlib import suppress
from typing import Annotated, Any
from uuid import UUID

import typer
from rich.text import Text
from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.machines import queries
from shepherd_core.domain.machine import WorkEvent

from shepherdctl.database import bmdb
from shepherdctl.formats import relative
from shepherdctl.options import MachineArgument
from shepherdctl.output import Column, Form, Output, counted, document, ids, note, table

_EVENT_STYLES = {
    WorkEvent.FINISHED: "green",
    WorkEvent.FAILED: "red",
    WorkEvent.EXPIRED: "red",
    WorkEvent.QUARANTINED: "red",
}


def history(
    machine: MachineArgument,
    limit: Annotated[
        int, typer.Option(min=1, max=1_000_000, metavar="COUNT", help="Events to show at most: the newest.")
    ] = 100,
    output: Output = Form.TABLE,
) -> None:
    """
    Show the audit trail of a machine: all work on it, newest last.

    It outlives the machine; one that is gone is named by its whole id.

    Examples:
      shepherdctl history 3f2a --limit 20
      shepherdctl history rack1-3 -o json | jq -r '.[].failed_cause'
    """
    with bmdb() as connection:
        events = _events(connection, machine, limit + 1)
        now = queries.now(connection)
    shown = events[:limit][::-1]
    if output is Form.JSON:
        document(shown)
    else:
        columns = (
            Column("WHEN"),
            Column("TIME (UTC)", spare=1),
            Column("PROCESS"),
            Column("EVENT"),
            Column("STEP"),
            Column("SESSION", spare=2),
            Column("CAUSE", prose=True),
        )
        rows = [
            (
                relative(event["timestamp"], now),
                f"{event['timestamp']:%Y-%m-%d %H:%M:%S}",
                event["process"],
                Text(event["event"], style=_EVENT_STYLES.get(event["event"], "")),
                event["step"],
                session,
                event["failed_cause"],
            )
            for session, event in zip(ids(event["session_id"] for event in shown), shown, strict=True)
        ]
        table(columns, rows)
        if not shown:
            note("nothing has been done with this machine yet")
    if len(events) > limit:
        note(f"only the last {counted(limit, 'event')} shown, there are more: see --limit")


def _events(connection: Connection, name: str, limit: int) -> list[dict[str, Any]]:
    """Return the newest events first, also of a machine that is gone if *name* is its whole id."""
    with suppress(ValueError):
        if events := queries.history(connection, UUID(name), limit):
            return events
    return queries.history(connection, queries.find_machine(connection, name), limit)
