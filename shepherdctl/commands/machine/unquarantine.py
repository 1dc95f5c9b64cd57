"""The command that gives a machine in quarantine back to the loops."""

from typing import Annotated

import typer
from shepherd_core.bmdb.machines import queries
from shepherd_core.bmdb.recovery import remediation
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.settings.functions import load

from shepherdctl.database import bmdb
from shepherdctl.formats import relative
from shepherdctl.options import MachineArgument, OwnerOption, ReasonOption, user
from shepherdctl.output import Form, Output, document, facts, note
from shepherdctl.state import Settings

_DryRun = Annotated[bool, typer.Option("--dry-run", help="Only tell what would be ended.")]


def unquarantine(
    machine: MachineArgument,
    *,
    reason: ReasonOption,
    owner: OwnerOption = None,
    dry_run: _DryRun = False,
    output: Output = Form.TABLE,
) -> None:
    """
    Give a machine in quarantine back to the loops.

    A new agent is started on it first. If that cannot be done within
    SHEPHERD_GRACE_SECONDS, its recovery begins anew, with the first step. Who did
    it and why is kept in its history.

    Examples:
      shepherdctl machine unquarantine 3f2a --reason "mainboard replaced"
    """
    owner = owner or user()
    (settings,) = load(Settings)
    with bmdb(settings) as connection:
        machine_id = queries.find_machine(connection, machine)
        now = queries.now(connection)
        if dry_run:
            found = queries.show_machine(connection, machine_id)
            was = {"quarantined_at": found["quarantined_at"], "cause": found["quarantine_cause"]}
        else:
            was = remediation.unquarantine(
                connection, machine_id, reason=f"{owner}: {reason}", grace_seconds=settings.grace_seconds
            )
    if not was.get("quarantined_at"):
        message = f"machine {machine_id} is not in quarantine: nothing was changed"
        raise ShepherdError(message)
    if output is Form.JSON:
        document({"machine_id": machine_id, "dry_run": dry_run, **was})
        return
    facts(
        [("machine", machine_id), ("in quarantine", f"since {relative(was['quarantined_at'], now)}"),
         ("because", was["cause"])]
    )  # fmt: skip
    note("dry run: nothing was changed" if dry_run else "a new agent will be started on it first")
