"""The command that shows where provider, BMDB and heartbeats disagree."""

from contextlib import closing
from typing import Annotated

import typer
from rich.text import Text
from shepherd_core.domain.clock import Deadline
from shepherd_core.rules.drift import Comparison, Drift, DriftKind, agreed
from shepherd_core.wiring import services

from shepherdctl.database import schema_named
from shepherdctl.formats import span
from shepherdctl.output import Column, Form, Output, counted, document, ids, note, table

SECONDS = 600.0
"""What two looks, or what is done after them, may take."""

DIFFERENT = 3
"""The exit status when there are differences."""

Interval = Annotated[
    float, typer.Option(min=1, max=3_600, metavar="SECONDS", help="Time between the two listings at least.")
]


def reconcile(*, interval: Interval = 30, output: Output = Form.TABLE) -> None:
    """
    Show each difference between provider, BMDB and heartbeats, with its class and the way out. Changes nothing.

    Both sides are read completely, twice, with the settings of the Provisioner.
    A difference is confirmed if both readings show it alike; nothing can be
    done about any other.

    Exit status: 0 no difference, 3 differences, 1 failed, 2 misused.

    Examples:
      shepherdctl reconcile
      shepherdctl reconcile --interval 120 -o json | jq '.differences[].class'
    """
    with schema_named(), closing((repair := services.drift_repair(interval)).connection):
        deadline = Deadline(repair.clock, SECONDS + interval)
        first = repair.compare(deadline)
        if output is Form.TABLE:
            note(f"the second listing comes in {span(interval)}")
        second = repair.compare_again(first, deadline)
    found = agreed(first, second)
    told = [
        {
            "class": difference.kind,
            "provider_id": difference.provider_id,
            "machine_id": difference.machine_id,
            "confirmed": confirmed,
            "difference": difference.text,
            "way_out": way_out(difference, second) if confirmed else None,
        }
        for difference, confirmed in found
    ]
    if output is Form.JSON:
        document({"provider": repair.provider.name, "interval_seconds": interval, "differences": told})
    else:
        names = ids(difference.machine_id for difference, _ in found)
        table(
            [
                Column("CLASS"),
                Column("PROVIDER ID"),
                Column("MACHINE", spare=1),
                Column("CONFIRMED"),
                Column("DIFFERENCE", prose=True),
                Column("WAY OUT", prose=True),
            ],
            [
                (
                    row["class"],
                    row["provider_id"],
                    name,
                    Text("yes", style="yellow") if row["confirmed"] else "no",
                    row["difference"],
                    row["way_out"],
                )
                for name, row in zip(names, told, strict=True)
            ],
        )
        note(f"{counted(len(found), 'difference')}, {sum(both for _, both in found)} of them confirmed")
    if found:
        raise typer.Exit(DIFFERENT)


def way_out(difference: Drift, look: Comparison) -> str:
    """Return what can be done about a difference, in words that can be typed."""
    name, machine_id = difference.provider_id, difference.machine_id
    if machine_id is None or difference.kind is DriftKind.ADOPTABLE:
        return _ADOPT[difference.kind].format(name)
    if difference.kind is DriftKind.DISPUTED:
        return "find out why the provider does not list it"
    return f"machine {'release' if look.has(name) else 'forget'} {machine_id}"


_ADOPT = {
    DriftKind.ADOPTABLE: "machine adopt {}",
    DriftKind.FOREIGN: "find out whose it is; machine adopt --class foreign {}",
    DriftKind.DUPLICATED: "find out which is the copy; machine adopt --class duplicated {}, then machine release",
    DriftKind.DISPUTED: "machine adopt --class disputed {}, then machine release",
}
