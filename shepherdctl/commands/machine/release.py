"""The command that gives machines back to the provider."""

from contextlib import closing
from typing import Annotated

import typer
from shepherd_core.bmdb.listings.decommissioning import RemovalRequest
from shepherd_core.domain.errors.provider import NotSupported
from shepherd_core.domain.provider import Capability
from shepherd_core.operator.release import CancelRelease, Release
from shepherd_core.rules.drift import FRESH_SECONDS
from shepherd_core.wiring import operators

from shepherdctl import actions
from shepherdctl.confirm import Yes, carry_out_confirmed, require_terminal
from shepherdctl.database import explain_schema_mismatch
from shepherdctl.options import DespiteHeartbeat, DryRun, MachinesArgument, ReasonOption, current_user
from shepherdctl.output.outcomes import print_outcomes
from shepherdctl.output.printing import Form, Output
from shepherdctl.selection import Selection, selecting


@selecting
def release(
    machines: MachinesArgument = None,
    *,
    selection: Selection,
    reason: ReasonOption,
    despite_heartbeat: DespiteHeartbeat = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel a release that was requested and has not happened yet.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Form.TABLE,
) -> None:
    """
    Give machines back to the provider. All data on them is lost.

    Always asks for confirmation. A machine is refused if a loop works on it, or,
    without --despite-heartbeat, if its agent reports. Run it again after an
    interruption. A machine counts as managed until the provider no longer lists
    it; then it is decommissioned, as after forget.

    Examples:
      shepherdctl machine release i-0abc --reason "slow" --dry-run
      shepherdctl machine release 3f2a --reason "sold" --despite-heartbeat
      shepherdctl machine release --state quarantined --reason "lease ends"
    """
    require_terminal(yes=yes or dry_run)
    selection = selection.to_confirm(machines, yes=yes or dry_run)
    order = RemovalRequest(current_user(), reason, FRESH_SECONDS, despite_heartbeat)
    with explain_schema_mismatch(), closing((repair := operators.drift_repair()).connection):
        machine_ids = selection.ids(repair.connection)
        if not (cancel or Capability.RELEASE in repair.provider.capabilities):
            message = f"the provider {repair.provider.name} cannot release machines: use the provider's own tools"
            raise NotSupported(message)
        action = CancelRelease(machine_ids, order) if cancel else Release(machine_ids, order)
        outcomes = carry_out_confirmed(repair, action, actions.compare(repair), dry_run=dry_run, yes=yes)
    print_outcomes(outcomes, output, dry_run=dry_run)
