"""The command that shows the drift between provider, BMDB and heartbeats."""

import typer

from shepherdctl.descriptions.drift import find_drift
from shepherdctl.output.printing import Column, Form, Output, counted, document, ids, note, table

DRIFT_FOUND = 3
"""The exit status if there is drift."""


def reconcile(*, output: Output = Form.TABLE) -> None:
    """
    Show the drift between provider, BMDB and heartbeats, with the operator action that repairs it.

    Reads the provider's listing and the BMDB with the settings of the Provisioner,
    and changes nothing.

    Exit status: 0 no drift, 3 drift, 1 failure, 2 wrong usage.

    Examples:
      shepherdctl reconcile
      shepherdctl reconcile -o json | jq '.drift[].class'
    """
    provider, rows = find_drift()
    if output is Form.JSON:
        document({"provider": provider, "drift": rows})
    else:
        names = ids(row["machine_id"] for row in rows)
        table(
            [
                Column("CLASS"),
                Column("PROVIDER ID"),
                Column("MACHINE", spare=1),
                Column("DRIFT", prose=True),
                Column("OPERATOR ACTION", prose=True),
            ],
            [
                (
                    row["class"],
                    row["provider_id"],
                    name,
                    row["description"],
                    row["operator_action"],
                )
                for name, row in zip(names, rows, strict=True)
            ],
        )
        note(f"{provider}: {counted(len(rows), 'machine')} with drift")
    if rows:
        raise typer.Exit(DRIFT_FOUND)
