"""The command that shows the history of a machine."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import typer
from rich.text import Text
from shepherd_core.bmdb.machines import lookup
from shepherd_core.bmdb.wire import server
from shepherd_core.bmdb.work.history import read_history
from shepherd_core.domain.machine import WorkEvent

from shepherdctl.database import bmdb
from shepherdctl.descriptions.cures import cures
from shepherdctl.descriptions.history import Repeated, fold
from shepherdctl.descriptions.state import called
from shepherdctl.options import MachineArgument
from shepherdctl.output.formats import at, loop_name, relative
from shepherdctl.output.printing import Column, Form, Output, counted, document, ids, note, table

_STYLES = {
    WorkEvent.FINISHED: "green",
    WorkEvent.FAILED: "red",
    WorkEvent.EXPIRED: "red",
    WorkEvent.QUARANTINED: "red",
}


def history(
    machine: MachineArgument,
    limit: Annotated[
        int, typer.Option(min=1, max=1_000_000, metavar="COUNT", help="At most this many events, the newest.")
    ] = 100,
    output: Output = Form.TABLE,
) -> None:
    """
    Show the history of a machine: all work on it, newest last.

    Failures in a row with the same cause are shown as one, the last; JSON has all
    of them. The history stays when the machine is gone; then give its whole
    machine id.

    Examples:
      shepherdctl history 3f2a --limit 20
      shepherdctl history rack1-3 -o json | jq -r '.events[].cause'
    """
    with bmdb() as connection:
        machine_id, name = called(connection, machine)
        events = read_history(connection, machine_id, limit + 1)
        if not events:
            lookup.find_machine(connection, machine)  # or there is none
        now = server.now(connection)
    shown = events[:limit][::-1]
    if output is Form.JSON:
        document({"events": shown})
    else:
        note(f"machine {name}")
        print_events(fold(shown), now)
        for cure in cures(event.kind for event in shown):
            note(cure)
        if not shown:
            note("nothing has been done with this machine yet")
    if len(events) > limit:
        note(f"only the last {counted(limit, 'event')} shown, there are more: see --limit")


def print_events(shown: Sequence[Repeated], now: datetime) -> None:
    """Print events."""
    columns = (
        Column("WHEN"),
        Column("TIME", spare=1),
        Column("LOOP"),
        Column("EVENT"),
        Column("STEP"),
        Column("SESSION", spare=2),
        Column("CAUSE", prose=True),
    )
    rows = [
        (
            relative(each.event.timestamp, now),
            at(each.event.timestamp),
            loop_name(each.event.process),
            Text(each.event.event, style=_STYLES.get(each.event.event, "")),
            each.event.step,
            session,
            each.cause,
        )
        for session, each in zip(ids(each.event.session_id for each in shown), shown, strict=True)
    ]
    table(columns, rows)
