"""The command that ends the backoffs of machines."""

from shepherd_core.bmdb.machines import lookup
from shepherd_core.bmdb.recovery import remediation
from shepherd_core.bmdb.wire import server
from shepherd_core.settings.functions.bmdb import OPERATOR

from shepherdctl.confirm import Yes
from shepherdctl.database import bmdb
from shepherdctl.descriptions.cures import told
from shepherdctl.options import (
    DryRun,
    LoopOption,
    MachinesArgument,
    OwnerOption,
    ReasonOption,
    current_user,
    loop_of_machines,
)
from shepherdctl.output.formats import loop_name, relative
from shepherdctl.output.printing import Column, Form, Output, counted, document, ids, note, table
from shepherdctl.selection import Selection, selecting


@selecting
def retry(
    machines: MachinesArgument = None,
    *,
    selection: Selection,
    reason: ReasonOption,
    process: LoopOption = None,
    owner: OwnerOption = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Form.TABLE,
) -> None:
    """
    End the backoffs of machines, so that the loops try again now.

    For machines whose fault was repaired. Pauses, quarantine and the grace after
    a step of recovery are not affected. Owner and reason are stored in the
    history of each machine. Asks for confirmation unless one machine is named.

    Examples:
      shepherdctl machine retry 3f2a --reason "cable replaced"
      shepherdctl machine retry 3f2a --loop recoverer --reason "BMC repaired"
      shepherdctl machine retry --cause ssh-timed-out --reason "switch repaired"
    """
    selection = selection.to_confirm(machines, yes=yes or dry_run)
    only = loop_of_machines(process)
    owner = owner or current_user()
    with bmdb(role=OPERATOR) as connection:
        found = selection.to_change(connection)
        now = server.now(connection)
        if not (yes or dry_run):
            selection.confirm(connection, found)
        rows = [
            (
                machine,
                [
                    backoff
                    for backoff in lookup.show_machine(connection, machine.machine_id).backoffs
                    if (backoff.until > now or backoff.deaths) and only in (None, backoff.process)
                ]
                if dry_run
                else remediation.retry(connection, machine.machine_id, reason=f"{owner}: {reason}", process=only),
            )
            for machine in found
        ]
    if output is Form.JSON:
        listed = [
            {"machine_id": machine.machine_id, "provider_id": machine.provider_id, "ended": ended}
            for machine, ended in rows
        ]
        document({"dry_run": dry_run, "machines": listed})
        return
    ended = [(machine, backoff) for machine, backoffs in rows for backoff in backoffs]
    table(
        [
            Column("PROVIDER ID"),
            Column("MACHINE"),
            Column("WOULD END BACKOFF OF" if dry_run else "ENDED BACKOFF OF"),
            Column("UNTIL"),
            Column("CAUSE", prose=True),
        ],
        [
            (
                machine.provider_id,
                name,
                loop_name(backoff.process),
                relative(backoff.until, now),
                told(backoff.kind, backoff.cause),
            )
            for name, (machine, backoff) in zip(ids(machine.machine_id for machine, _ in ended), ended, strict=True)
        ],
    )
    if dry_run:
        note("dry run: nothing was changed")
    if without := sum(not backoffs for _, backoffs in rows):
        note(f"no backoff is in force for {counted(without, 'machine')}: see shepherdctl machine why")
