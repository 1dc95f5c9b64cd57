"""The commands by which an operator reboots machines."""

import socket
from collections.abc import Sequence
from contextlib import closing

from shepherd_core.bmdb.machines import pauses
from shepherd_core.bmdb.machines.search import FoundMachine
from shepherd_core.bmdb.wire import server
from shepherd_core.domain.remediation import POWER_CYCLE, REBOOT, StepKind
from shepherd_core.domain.states import State
from shepherd_core.operator.adopt_forget import ActionOutcome, ActionResult
from shepherd_core.wiring import operators

from shepherdctl import actions
from shepherdctl.confirm import Yes, confirm, require_terminal
from shepherdctl.database import explain_schema_mismatch
from shepherdctl.descriptions.state import Observer
from shepherdctl.options import DryRun, MachinesArgument, OwnerOption, ReasonOption, current_user
from shepherdctl.output.formats import in_full
from shepherdctl.output.outcomes import print_outcomes
from shepherdctl.output.printing import Form, Output, note
from shepherdctl.selection import Selection, selecting

HEALTHY = (State.STARTING, State.RUNNING, State.INSTALLED)
"""States in which a machine may be in use."""


@selecting
def reboot(
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
    Reboot machines through the provider.

    Healthy, paused and quarantined machines are rebooted, too; the confirmation
    says which are healthy. The reboot is recorded in the machine's history as an
    attempt, and counts in the remediation policy as one by the Recoverer does. A
    machine is refused if a loop works on it, or if its state changed since it was
    shown. Uses the settings of the Recoverer.

    Examples:
      shepherdctl machine reboot 3f2a --reason "kernel update"
      shepherdctl machine reboot --state unhealthy --location fra --reason "power"
    """
    _interrupt(REBOOT, selection, machines, f"{owner or current_user()}: {reason}", output, dry_run=dry_run, yes=yes)


@selecting
def power_cycle(
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
    Turn machines off and on through the provider.

    Everything else is as for machine reboot.

    Examples:
      shepherdctl machine power-cycle 3f2a --reason "it hangs"
    """
    remark = f"{owner or current_user()}: {reason}"
    _interrupt(POWER_CYCLE, selection, machines, remark, output, dry_run=dry_run, yes=yes)


def _interrupt(
    kind: StepKind,
    selection: Selection,
    names: Sequence[str] | None,
    remark: str,
    output: Form,
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    selection = selection.to_confirm(names, yes=yes or dry_run)
    with explain_schema_mismatch(), closing((step := operators.reboot(kind)).connection):
        observer = Observer(server.now(step.connection), pauses.pauses_in_force(step.connection))
        machines = selection.to_change(step.connection)
        outcomes = [step.evaluate(machine) for machine in machines]
        ready = [each for each, outcome in zip(machines, outcomes, strict=True) if outcome.result is ActionResult.READY]
        if dry_run:
            outcomes = [_with_state(*each, observer) for each in zip(outcomes, machines, strict=True)]
        elif ready:
            for machine in ready:
                note(f"{in_full(machine.provider_id, machine.machine_id)}: {observer.describe(machine)}")
            if not yes and (name := _name(ready, ask_for_one=selection.asks)):
                require_terminal(yes=False)
                confirm(name)
            with actions.told_as_done():
                outcomes = list(
                    step.carry_out(machines, observer.now, remark, f"shepherdctl on {socket.gethostname()}")
                )
    print_outcomes(outcomes, output, dry_run=dry_run)


def _with_state(outcome: ActionOutcome, machine: FoundMachine, observer: Observer) -> ActionOutcome:
    if outcome.result is not ActionResult.READY:
        return outcome
    return outcome.with_result(ActionResult.READY, f"{outcome.text}: {observer.describe(machine)}")


def _name(machines: Sequence[FoundMachine], *, ask_for_one: bool) -> str | None:
    """Return the text that must be typed before these machines are interrupted; None: no confirmation is needed."""
    healthy = sum(machine.state in HEALTHY for machine in machines)
    if len(machines) > 1:
        return f"{len(machines)} machines" + (f", {healthy} healthy" if healthy else "")
    name = str(machines[0].provider_id)
    if healthy:
        return f"healthy {name}"
    return name if ask_for_one else None
