"""The command that explains which loop would claim a machine."""

from collections.abc import Sequence
from datetime import datetime

from rich.text import Text
from shepherd_core.bmdb.recovery import explain
from shepherd_core.bmdb.recovery.explain import Block, Verdict
from shepherd_core.settings.functions.bmdb import BmdbSettings
from shepherd_core.wiring.settings import load

from shepherdctl.database import bmdb
from shepherdctl.descriptions.cures import cures
from shepherdctl.descriptions.state import observe_machine
from shepherdctl.options import MachineArgument
from shepherdctl.output.formats import in_full, loop_name, relative
from shepherdctl.output.printing import Column, Form, Output, document, note, table


def why(machine: MachineArgument, output: Output = Form.TABLE) -> None:
    """
    Show for each loop whether it would claim the machine now and, if not, why.

    REASON is the first thing that blocks it, ENDS when that ends, CHECKED AGAIN
    when the loop considers the machine next if nothing else happens. The loops
    decide by the same rules. The lines below the table say what to do about each
    failure in REASON.

    Examples:
      shepherdctl machine why 3f2a
      shepherdctl machine why 3f2a -o json | jq -r '.loops[].blocked_by'
    """
    (settings,) = load(BmdbSettings)
    with bmdb(settings) as connection:
        found, observer = observe_machine(connection, machine)
        verdicts = explain.why(connection, found.machine_id)
    if output is Form.JSON:
        document(
            {
                "machine_id": found.machine_id,
                "provider_id": found.provider_id,
                "loops": [plain(verdict) for verdict in verdicts],
            }
        )
        return
    note(f"machine {in_full(found.provider_id, found.machine_id)}")
    print_verdicts(verdicts, observer.now)
    for cure in cures(verdict.kind for verdict in verdicts):
        note(cure)


def print_verdicts(verdicts: Sequence[Verdict], now: datetime) -> None:
    """Print a line for each loop."""
    table(
        [Column("LOOP"), Column("ELIGIBLE"), Column("REASON", prose=True), Column("ENDS"), Column("CHECKED AGAIN")],
        [
            (
                loop_name(verdict.process),
                Text("yes", "green") if verdict.eligible else "no",
                verdict.because,
                # A machine that is not due is merely checked again: nothing is about to end.
                (verdict.until and verdict.blocked_by is not Block.NOT_DUE and relative(verdict.until, now)) or None,
                "at the next run" if verdict.eligible else verdict.next_at and relative(verdict.next_at, now),
            )
            for verdict in verdicts
        ],
    )


def plain(verdict: Verdict) -> dict[str, object]:
    """Return a verdict for a JSON document."""
    return {
        "loop": loop_name(verdict.process).lower(),
        "eligible": verdict.eligible,
        "blocked_by": verdict.blocked_by,
        "kind": verdict.kind,
        "reason": verdict.because,
        "until": verdict.until,
        "next_at": verdict.next_at,
    }
