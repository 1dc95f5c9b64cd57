"""The command that shows the drift between provider, BMDB and heartbeats."""

import typer
from rich.text import Text

from shepherdctl.descriptions.drift import find_drift
from shepherdctl.options import Interval
from shepherdctl.output.formats import span
from shepherdctl.output.printing import Column, Form, Output, counted, document, ids, note, table

DRIFT_FOUND = 3
"""The exit status if there is drift."""


def reconcile(*, interval: Interval = 30, output: Output = Form.TABLE) -> None:
    """
    Show the drift between provider, BMDB and heartbeats, with the operator action that repairs it.

    Reads the provider's listing and the BMDB twice, with the settings of the
    Provisioner, and changes nothing. Drift is confirmed if both readings show it;
    only confirmed drift can be repaired.

    Exit status: 0 no drift, 3 drift, 1 failure, 2 wrong usage.

    Examples:
      shepherdctl reconcile
      shepherdctl reconcile --interval 120 -o json | jq '.drift[].class'
    """

    def between() -> None:
        if output is Form.TABLE:
            note(f"the second listing follows in {span(interval)}")

    provider, rows = find_drift(interval, between)
    if output is Form.JSON:
        document({"provider": provider, "interval_seconds": interval, "drift": rows})
    else:
        names = ids(row["machine_id"] for row in rows)
        table(
            [
                Column("CLASS"),
                Column("PROVIDER ID"),
                Column("MACHINE", spare=1),
                Column("CONFIRMED"),
                Column("DRIFT", prose=True),
                Column("OPERATOR ACTION", prose=True),
            ],
            [
                (
                    row["class"],
                    row["provider_id"],
                    name,
                    Text("yes", style="yellow") if row["confirmed"] else "no",
                    row["description"],
                    row["operator_action"],
                )
                for name, row in zip(names, rows, strict=True)
            ],
        )
        confirmed = sum(row["confirmed"] for row in rows)
        note(f"{provider}: {counted(len(rows), 'machine')} with drift, {confirmed} of them confirmed")
    if rows:
        raise typer.Exit(DRIFT_FOUND)
