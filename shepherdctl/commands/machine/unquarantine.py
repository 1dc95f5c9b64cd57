"""The command that ends the quarantine of machines."""

from typing import Any

from shepherd_core.bmdb.machines import lookup
from shepherd_core.bmdb.recovery import remediation
from shepherd_core.bmdb.wire import server
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.domain.states import State
from shepherd_core.settings.functions.bmdb import OPERATOR

from shepherdctl.confirm import Yes
from shepherdctl.database import bmdb
from shepherdctl.options import DryRun, MachinesArgument, OwnerOption, ReasonOption, current_user
from shepherdctl.output.formats import in_full, relative
from shepherdctl.output.printing import Column, Form, Output, document, ids, note, table
from shepherdctl.selection import Selection, selecting


@selecting
def unquarantine(
    machines: MachinesArgument = None,
    *,
    selection: Selection,
    reason: ReasonOption,
    owner: OwnerOption = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Form.TABLE,
) -> None:
    """
    Take machines out of quarantine.

    The Initializer then starts a new agent on each. If it cannot do so within
    the grace of the Recoverer, the remediation policy starts over with the
    first step, unless a look over SSH finds an agent or an installation.
    Owner and reason are stored in the history of each machine. Filters select
    only machines in quarantine; a machine that is named must be in quarantine.
    Asks for confirmation unless one machine is named.

    Examples:
      shepherdctl machine unquarantine 3f2a --reason "mainboard replaced"
      shepherdctl machine unquarantine --location rack7 --reason "power is back"
    """
    selection = selection.to_confirm(machines, yes=yes or dry_run).of_state(State.QUARANTINED)
    owner = owner or current_user()
    ended: list[dict[str, Any]] = []
    others: list[str] = []
    with bmdb(role=OPERATOR) as connection:
        found = selection.to_change(connection)
        now = server.now(connection)
        if not (yes or dry_run):
            selection.confirm(connection, found)
        for machine_id in (machine.machine_id for machine in found):
            shown = lookup.show_machine(connection, machine_id)
            if shown.quarantined_at and (
                dry_run or remediation.unquarantine(connection, machine_id, reason=f"{owner}: {reason}")
            ):
                quarantine = {"quarantined_at": shown.quarantined_at, "cause": shown.quarantine_cause}
                ended.append({"machine_id": machine_id, "provider_id": shown.provider_id, **quarantine})
            else:
                others.append(
                    f"machine {in_full(shown.provider_id, machine_id)} is not in quarantine: nothing was changed"
                )
    if ended and output is Form.JSON:
        document({"dry_run": dry_run, "machines": ended})
    elif ended:
        rows = zip(ids(one["machine_id"] for one in ended), ended, strict=True)
        table(
            [Column("PROVIDER ID"), Column("MACHINE"), Column("QUARANTINED"), Column("CAUSE", prose=True)],
            [(one["provider_id"], name, relative(one["quarantined_at"], now), one["cause"]) for name, one in rows],
        )
        note("dry run: nothing was changed" if dry_run else "the Initializer starts an agent on them next")
    if others:
        raise ShepherdError("\n".join(others))
