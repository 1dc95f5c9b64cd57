"""The command that shows the drift between provider, BMDB and heartbeats."""

from collections.abc import Callable
from contextlib import closing
from typing import Annotated, Any

import typer
from rich.text import Text
from shepherd_core.domain.clock import Deadline
from shepherd_core.rules.drift import Comparison, Drift, DriftKind, agreed
from shepherd_core.wiring import operators

from shepherdctl import actions
from shepherdctl.database import explain_schema_mismatch
from shepherdctl.output.formats import span
from shepherdctl.output.printing import Column, Form, Output, counted, document, ids, note, table

DRIFT_FOUND = 3
"""The exit status if there is drift."""

Interval = Annotated[
    float, typer.Option(min=1, max=3_600, metavar="SECONDS", help="Minimum time between the two listings.")
]


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


def find_drift(interval: float, between: Callable[[], None]) -> tuple[str, list[dict[str, Any]]]:
    """
    Return the name of the provider, and a record of each machine that has drift in one or both of two comparisons.

    *between* is called after the first comparison; the second follows *interval* seconds later.

    Raises:
        ShepherdError: the settings are wrong, or the provider or the BMDB cannot be read.
    """
    with explain_schema_mismatch(), closing((sides := operators.drift_repair(interval)).connection):
        deadline = Deadline(sides.clock, actions.SECONDS + interval)
        first = sides.compare(deadline)
        between()
        second = sides.compare_again(first, deadline)
    return sides.provider.name, [
        {
            "class": drift.kind,
            "provider_id": drift.provider_id,
            "machine_id": drift.machine_id,
            "confirmed": confirmed,
            "description": drift.text,
            "operator_action": operator_action(drift, second) if confirmed else None,
            "repair": repair(drift, second) if confirmed else None,
        }
        for drift, confirmed in agreed(first, second)
    ]


def operator_action(drift: Drift, comparison: Comparison) -> str:
    """Return the command that repairs *drift*, or what to find out first."""
    match repair(drift, comparison):
        case None:
            return "find out why the provider does not list it"
        case "adopt":
            return _ADOPT[drift.kind].format(drift.provider_id)
        case command:
            return f"machine {command} {drift.machine_id}"


def repair(drift: Drift, comparison: Comparison) -> str | None:
    """Return the name of the command that repairs *drift*; None: no command does."""
    if drift.machine_id is None or drift.kind is DriftKind.ADOPTABLE:
        return "adopt"
    if drift.kind is DriftKind.DISPUTED:
        return None
    return "release" if comparison.has(drift.provider_id) else "forget"


_ADOPT = {
    DriftKind.ADOPTABLE: "machine adopt {}",
    DriftKind.FOREIGN: "find out who owns it; machine adopt --class foreign {}",
    DriftKind.DUPLICATED: "find out which is the copy; machine adopt --class duplicated {}, then machine release",
    DriftKind.DISPUTED: "machine adopt --class disputed {}, then machine release",
}
