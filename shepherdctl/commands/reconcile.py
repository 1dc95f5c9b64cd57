"""The command that shows the drift between provider, BMDB and heartbeats."""

import shlex
from contextlib import closing

import typer
from shepherd_core.rules.drift import Comparison, Drift, DriftKind
from shepherd_core.wiring import operators

from shepherdctl import actions
from shepherdctl.database import explain_schema_mismatch
from shepherdctl.output.printing import Column, Form, Output, counted, document, ids, note, table

DRIFT_FOUND = 3
"""The exit status if there is drift."""
_ADOPT = {
    DriftKind.ADOPTABLE: "machine adopt {}",
    DriftKind.FOREIGN: "find out who owns it; machine adopt --class foreign {}",
    DriftKind.DUPLICATED: "find out which is the copy; machine adopt --class duplicated {}, then machine release",
    DriftKind.DISPUTED: "machine adopt --class disputed {}, then machine release",
    DriftKind.STRANDED: "machine adopt --class stranded {}, then machine release",
}


def reconcile(*, output: Output = Form.TABLE) -> None:
    """
    Show the drift between provider, BMDB and heartbeats, with the operator action that repairs it.

    Reads the provider's listing and the BMDB, with the settings of the
    Provisioner, and changes nothing.

    Exit status: 0 no drift, 3 drift, 1 failure, 2 wrong usage.

    Examples:
      shepherdctl reconcile
      shepherdctl reconcile -o json | jq '.drift[].class'
    """
    with explain_schema_mismatch(), closing((sides := operators.drift_repair()).connection):
        comparison = actions.compare(sides)
    provider = sides.provider.name
    rows = [
        {
            "class": drift.kind,
            "provider_id": drift.provider_id,
            "machine_id": drift.machine_id,
            "description": drift.text,
            "operator_action": _operator_action(drift, comparison),
        }
        for drift in comparison.drift.values()
    ]
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
                (row["class"], row["provider_id"], name, row["description"], row["operator_action"])
                for name, row in zip(names, rows, strict=True)
            ],
        )
        note(f"{provider}: {counted(len(rows), 'machine')} with drift")
    if rows:
        raise typer.Exit(DRIFT_FOUND)


def _operator_action(drift: Drift, comparison: Comparison) -> str:
    """Return the command that repairs *drift*, or what to find out first."""
    if drift.machine_id is None or drift.kind is DriftKind.ADOPTABLE:
        return _ADOPT[drift.kind].format(shlex.quote(drift.provider_id))
    if drift.provider_id in comparison.moved:
        new = shlex.quote(comparison.moved[drift.provider_id])
        return f"if it is the same machine: machine rebind {drift.machine_id} {new}; else machine forget"
    if drift.kind is DriftKind.DISPUTED:
        return "find out why the provider does not list it"
    return f"machine {'release' if comparison.has(drift.provider_id) else 'forget'} {drift.machine_id}"
