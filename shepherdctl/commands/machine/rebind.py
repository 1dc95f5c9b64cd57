"""The command that records a machine's new id at the provider."""

from contextlib import closing
from typing import Annotated

import typer
from shepherd_core.bmdb.machines import lookup
from shepherd_core.domain.machine import ProviderId
from shepherd_core.operator.adopt_forget import Rebind
from shepherd_core.wiring import operators

from shepherdctl import actions
from shepherdctl.confirm import Yes, carry_out_confirmed, require_terminal
from shepherdctl.database import explain_schema_mismatch
from shepherdctl.options import DryRun, MachineArgument, current_user
from shepherdctl.output.outcomes import print_outcomes
from shepherdctl.output.printing import Form, Output


def rebind(
    machine: MachineArgument,
    provider_id: Annotated[str, typer.Argument(metavar="NEW_ID", help="As the provider lists it.", show_default=False)],
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Form.TABLE,
) -> None:
    """
    Record that a machine has another id at the provider now.

    It keeps its machine id, agent, host key and history. Refused if the provider
    still has the machine under its old id, or if the new id belongs to another
    machine. Always asks for confirmation.

    Examples:
      shepherdctl machine rebind rack1-3 rack2-7 --dry-run
      shepherdctl machine rebind 3f2a 2481356
    """
    require_terminal(yes=yes or dry_run)
    with explain_schema_mismatch(), closing((repair := operators.drift_repair()).connection):
        machine_id = lookup.find_machine(repair.connection, machine)
        action = Rebind(machine_id, ProviderId(provider_id), current_user())
        outcomes = carry_out_confirmed(repair, action, actions.compare(repair), dry_run=dry_run, yes=yes)
    print_outcomes(outcomes, output, dry_run=dry_run)
