"""The command that ends the backoffs of a machine."""

from typing import Annotated

import typer
from shepherd_core.bmdb.machines import queries
from shepherd_core.bmdb.recovery import remediation
from shepherd_core.domain.machine import Process

from shepherdctl.database import bmdb
from shepherdctl.formats import relative
from shepherdctl.options import MachineArgument, OwnerOption, ProcessOption, ReasonOption, user
from shepherdctl.output import Column, Form, Output, document, note, table

_DryRun = Annotated[bool, typer.Option("--dry-run", help="Only tell what would be ended.")]


def retry(
    machine: MachineArgument,
    *,
    reason: ReasonOption,
    process: ProcessOption = None,
    owner: OwnerOption = None,
    dry_run: _DryRun = False,
    output: Output = Form.TABLE,
) -> None:
    """
    Have a machine tried again now: end its backoffs in force, of one process or of all.

    For a machine whose fault was mended. Whatever else holds it up goes on:
    pauses, quarantine, time that it was given. Who did it and why is kept in its
    history.

    Examples:
      shepherdctl machine retry 3f2a --reason "cable replaced"
      shepherdctl machine retry 3f2a --process ShepherdRecovery --reason "mended"
    """
    owner = owner or user()
    with bmdb() as connection:
        machine_id = queries.find_machine(connection, machine)
        now = queries.now(connection)
        if dry_run:
            ended = [
                {name: backoff[name] for name in ("process", "until", "cause")}
                for backoff in queries.show_machine(connection, machine_id)["backoffs"]
                if backoff["until"] > now and process in (None, backoff["process"])
            ]
        else:
            chosen = Process(process) if process else None
            ended = remediation.retry(connection, machine_id, reason=f"{owner}: {reason}", process=chosen)
    if output is Form.JSON:
        document({"machine_id": machine_id, "dry_run": dry_run, "ended": ended})
        return
    table(
        [Column("WOULD END" if dry_run else "ENDED"), Column("WAS TO END"), Column("CAUSE", prose=True)],
        [(backoff["process"], relative(backoff["until"], now), backoff["cause"]) for backoff in ended],
    )
    if not ended:
        note(f"no backoff is in force for machine {machine_id}: see shepherdctl machine why")
