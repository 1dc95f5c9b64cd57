"""The command that removes from the BMDB the machines that the provider no longer has."""

from contextlib import closing

from shepherd_core.bmdb.listings.decommissioning import RemovalRequest
from shepherd_core.operator.adopt_forget import Forget
from shepherd_core.rules.drift import FRESH_SECONDS
from shepherd_core.wiring import operators

from shepherdctl import actions
from shepherdctl.confirm import Yes, carry_out_confirmed, require_terminal
from shepherdctl.database import explain_schema_mismatch
from shepherdctl.options import DryRun, MachinesArgument, ReasonOption, current_user
from shepherdctl.output.outcomes import print_outcomes
from shepherdctl.output.printing import Form, Output
from shepherdctl.selection import Selection, selecting


@selecting
def forget(
    machines: MachinesArgument = None,
    *,
    selection: Selection,
    reason: ReasonOption,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Form.TABLE,
) -> None:
    """
    Remove from the BMDB the machines that the provider no longer has.

    Always asks for confirmation. A machine is refused if its agent reported in
    the last two hours, or if a loop works on it. Its history and a tombstone
    stay.

    Examples:
      shepherdctl machine forget 3f2a --reason "disk failure, RMA 4711" --dry-run
      shepherdctl machine forget 3f2a 81fe --reason "rack 7 was sold"
    """
    require_terminal(yes=yes or dry_run)
    selection = selection.to_confirm(machines, yes=yes or dry_run)
    order = RemovalRequest(current_user(), reason, FRESH_SECONDS)
    with explain_schema_mismatch(), closing((repair := operators.drift_repair()).connection):
        action = Forget(selection.ids(repair.connection), order)
        outcomes = carry_out_confirmed(repair, action, actions.compare(repair), dry_run=dry_run, yes=yes)
    print_outcomes(outcomes, output, dry_run=dry_run)
