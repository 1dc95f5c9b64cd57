"""The command that ends the backoffs of a machine."""

from typing import Annotated

import typer
from shepherd_core.bmdb.machines import queries

from shepherdctl import actions
from shepherdctl.database import bmdb
from shepherdctl.formats import loop_name, relative
from shepherdctl.options import LoopOption, MachineArgument, OwnerOption, ReasonOption, current_user
from shepherdctl.output import Column, Form, Output, document, note, table


def retry(
    machine: MachineArgument,
    *,
    reason: ReasonOption,
    process: LoopOption = None,
    owner: OwnerOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would end.")] = False,
    output: Output = Form.TABLE,
) -> None:
    """
    End the backoffs of a machine, so that the loops try again now.

    For a machine whose fault was repaired. Pauses, quarantine and the grace after
    a step of recovery are not affected. Owner and reason are stored in the
    machine's history.

    Examples:
      shepherdctl machine retry 3f2a --reason "cable replaced"
      shepherdctl machine retry 3f2a --loop recoverer --reason "BMC repaired"
    """
    owner = owner or current_user()
    with bmdb() as connection:
        machine_id = queries.find_machine(connection, machine)
        now = queries.now(connection)
        ended = actions.retry(connection, machine_id, process=process, owner=owner, reason=reason, dry_run=dry_run)
    if output is Form.JSON:
        document({"machine_id": machine_id, "dry_run": dry_run, "ended": ended})
        return
    table(
        [Column("WOULD END" if dry_run else "ENDED"), Column("WAS TO END"), Column("CAUSE", prose=True)],
        [(loop_name(backoff["process"]), relative(backoff["until"], now), backoff["cause"]) for backoff in ended],
    )
    if not ended:
        note(f"no backoff is in force for machine {machine_id}: see shepherdctl machine why")
