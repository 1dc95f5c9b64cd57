"""The command that takes machines from service until they are released or forgotten."""

from collections.abc import Sequence
from contextlib import closing
from uuid import UUID

import typer
from shepherd_core.bmdb.listings.decommissioning import RemovalRequest
from shepherd_core.bmdb.machines import pauses
from shepherd_core.domain.provider import Capability
from shepherd_core.operator.adopt_forget import ActionOutcome, ActionResult, Forget, OperatorAction
from shepherd_core.operator.drift_repair import DriftRepair
from shepherd_core.operator.release import Release
from shepherd_core.rules.drift import FRESH_SECONDS, Comparison, alive
from shepherd_core.wiring import operators

from shepherdctl import actions
from shepherdctl.confirm import Yes, confirm, require_terminal
from shepherdctl.database import explain_schema_mismatch
from shepherdctl.interrupts import tell
from shepherdctl.options import DespiteHeartbeat, DryRun, MachinesArgument, ReasonOption, current_user
from shepherdctl.output.formats import in_full, span
from shepherdctl.output.outcomes import print_outcomes
from shepherdctl.output.printing import Form, Output, counted, note
from shepherdctl.selection import Selection, selecting

NOT_YET = 3
"""The exit status if a machine is not retired yet."""
_LISTS = {"static": "take its entry out of machines", "redfish": "take its entry out of machines"}


@selecting
def retire(
    machines: MachinesArgument = None,
    *,
    selection: Selection,
    reason: ReasonOption,
    despite_heartbeat: DespiteHeartbeat = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Form.TABLE,
) -> None:
    """
    Take machines out of service, step by step, until they are released or forgotten.

    Pauses them, then gives them back to the provider as release does. Where the
    provider cannot take them back, the command says what to do there, and forgets
    a machine when it is not listed any more and its agent has not reported for
    two hours. Run it again until all are done, also after an interruption; each
    run says what is next. Until a machine is released, shepherdctl resume brings
    it back.

    Exit status: 0 all are retired, 3 not yet, 1 refused or failed.

    Examples:
      shepherdctl machine retire 3f2a --reason "lease ends" --dry-run
      shepherdctl machine retire --location rack7 --reason "rack 7 was sold"
    """
    require_terminal(yes=yes or dry_run)
    selection = selection.to_confirm(machines, yes=yes or dry_run)
    order = RemovalRequest(current_user(), reason, FRESH_SECONDS, despite_heartbeat)
    with explain_schema_mismatch(), closing((repair := operators.drift_repair()).connection):
        comparison = actions.compare(repair)
        steps = [
            _step(repair, machine_id, comparison, order)
            for machine_id in selection.ids(repair.connection, none_ok=True)
        ]
        if not steps:
            note("no machine matches: nothing is left to retire")
        open_steps = [outcome for _, outcome in steps if outcome.result in (ActionResult.READY, ActionResult.BEGUN)]
        if open_steps and not dry_run:
            for outcome in open_steps:
                note(f"{in_full(outcome.provider_id, outcome.machine_id)}: {outcome.text}")
            if not yes:
                confirm(str(open_steps[0].provider_id) if len(open_steps) == 1 else f"{len(open_steps)} machines")
            _pause(repair, open_steps, order)
        outcomes = [
            outcome
            for action in dict.fromkeys(action for action, _ in steps)
            for outcome in _carried_out(
                repair, action, [outcome for its, outcome in steps if its is action], order, dry_run=dry_run
            )
        ]
    print_outcomes(outcomes, output, dry_run=dry_run)
    if not dry_run and any(outcome.result is not ActionResult.DONE for outcome in outcomes):
        raise typer.Exit(NOT_YET)


def _step(
    repair: DriftRepair, machine_id: UUID, comparison: Comparison, order: RemovalRequest
) -> tuple[type[Release | Forget] | None, ActionOutcome]:
    """Return the next action for a machine (None: an operator must act) and its expected outcome."""
    provided = comparison.machine(machine_id)
    if provided is not None and provided.asked_seconds is None:
        listed = comparison.has(provided.provider_id)
        waits = ActionOutcome(ActionResult.BEGUN, "", provided.provider_id, machine_id)
        if listed and Capability.RELEASE not in repair.provider.capabilities:
            name = repair.provider.name
            what = _LISTS.get(name, f"give it back with the tools of {name}")
            return None, waits.with_result(ActionResult.BEGUN, f"{what}, stop its agent, and run this again")
        if not listed and alive(provided):
            seconds = provided.heartbeat_seconds or 0
            left = span(FRESH_SECONDS - seconds)
            text = f"its agent reported {span(seconds)} ago: stop it, and run this again, in {left} at the earliest"
            return None, waits.with_result(ActionResult.BEGUN, text)
        action = Release if listed else Forget
    else:
        action = Forget if provided is None else Release
    (outcome,) = action((machine_id,), order).evaluate(comparison)
    return action, outcome


def _pause(repair: DriftRepair, steps: Sequence[ActionOutcome], order: RemovalRequest) -> None:
    """Pause those of these machines that have no pause until further notice."""
    paused = {
        pause.machine_id
        for pause in pauses.pauses_in_force(repair.connection)
        if pause.process is None and pause.expires_at is None
    }
    new = [step for step in steps if step.machine_id is not None and step.machine_id not in paused]
    if new:
        tell("shepherdctl pauses lists the machines that it has paused; the same command does the rest")
        reason = f"retire: {order.reason}"
        actions.pause(
            repair.connection,
            [actions.NewPause(machine_id=each.machine_id, owner=order.owner, reason=reason) for each in new],
        )
        note(f"{counted(len(new), 'machine')} paused: see shepherdctl pauses")


def _carried_out(
    repair: DriftRepair,
    kind: type[Release | Forget] | None,
    steps: Sequence[ActionOutcome],
    order: RemovalRequest,
    *,
    dry_run: bool,
) -> Sequence[ActionOutcome]:
    """Carry out one kind of action, or only evaluate it if *dry_run*, and return the outcomes."""
    begun = any(step.result in (ActionResult.READY, ActionResult.BEGUN) for step in steps)
    if dry_run or kind is None or not begun:
        return steps
    action: OperatorAction = kind(tuple(step.machine_id for step in steps if step.machine_id is not None), order)
    return actions.carry_out(repair, action, steps)
