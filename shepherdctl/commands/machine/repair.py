"""The commands that repair drift between provider and BMDB: adopt, forget and release machines."""

from collections.abc import Sequence
from contextlib import closing
from typing import Annotated

import typer
from shepherd_core.bmdb.listings.decommissioning import RemovalRequest
from shepherd_core.domain.machine import ProviderId
from shepherd_core.operator.adopt_forget import ActionOutcome, ActionResult, Adopt, Forget, OperatorAction
from shepherd_core.operator.drift_repair import DriftRepair
from shepherd_core.rules.drift import FRESH_SECONDS, DriftKind
from shepherd_core.wiring import operators

from shepherdctl import actions
from shepherdctl.commands.fleet.reconcile import Interval
from shepherdctl.confirm import Yes, confirm, require_terminal
from shepherdctl.database import explain_schema_mismatch
from shepherdctl.options import DryRun, MachinesArgument, ReasonOption, current_user
from shepherdctl.output.printing import Column, Form, Output, document, ids, note, one_of, table
from shepherdctl.selection import Selection, selecting

DespiteHeartbeat = Annotated[
    bool, typer.Option("--despite-heartbeat", help="Do it even if the agent reported in the last two hours.")
]


def adopt(
    machines: Annotated[
        list[str],
        typer.Argument(
            metavar="PROVIDER_ID", help="Machines, by their ids in the provider's listing.", show_default=False
        ),
    ],
    *,
    kind: Annotated[
        str,
        typer.Option(
            "--class",
            parser=one_of(*actions.ADOPTABLE),
            metavar="CLASS",
            help=f"One of {', '.join(actions.ADOPTABLE)}.",
        ),
    ] = DriftKind.ADOPTABLE,
    interval: Interval = 30,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Form.TABLE,
) -> None:
    """
    Add machines that are in use at the provider to the BMDB; the loops then work on them.

    Two listings must show that the BMDB lacks them, with the same class of drift;
    machines of another class than --class are refused. SHEPHERD_MAX_MACHINES
    applies. Asks for confirmation if there is more than one machine.

    Examples:
      shepherdctl machine adopt 5f1c0c9a --dry-run
      shepherdctl machine adopt i-0abc --class foreign
    """
    require_terminal(yes=yes or dry_run or len(machines) == 1)
    wanted = tuple(ProviderId(name) for name in dict.fromkeys(machines))
    with explain_schema_mismatch(), closing((repair := operators.drift_repair(interval)).connection):
        action = Adopt(wanted, DriftKind(kind), repair.max_machines, current_user())
        outcomes = _carry_out(repair, action, ask_for_one=False, dry_run=dry_run, yes=yes)
    print_outcomes(outcomes, output, dry_run=dry_run)


@selecting
def forget(
    machines: MachinesArgument = None,
    *,
    selection: Selection,
    reason: ReasonOption,
    interval: Interval = 30,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Form.TABLE,
) -> None:
    """
    Remove from the BMDB the machines that the provider no longer has.

    They must be missing from two listings. A machine is refused if its agent
    reported in the last two hours, or if a loop works on it. Its history and a
    tombstone stay. Asks for confirmation if there is more than one machine.

    Examples:
      shepherdctl machine forget 3f2a --reason "disk failure, RMA 4711" --dry-run
      shepherdctl machine forget 3f2a 81fe --reason "rack 7 was sold"
    """
    selection = selection.to_confirm(machines, yes=yes or dry_run)
    order = RemovalRequest(current_user(), reason, FRESH_SECONDS)
    with explain_schema_mismatch(), closing((repair := operators.drift_repair(interval)).connection):
        action = Forget(selection.ids(repair.connection), order)
        outcomes = _carry_out(repair, action, ask_for_one=False, dry_run=dry_run, yes=yes)
    print_outcomes(outcomes, output, dry_run=dry_run)


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
    interval: Interval = 30,
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
    with explain_schema_mismatch(), closing((repair := operators.drift_repair(interval)).connection):
        action = actions.release(repair, selection.ids(repair.connection), order, cancel=cancel)
        outcomes = _carry_out(repair, action, ask_for_one=not cancel, dry_run=dry_run, yes=yes)
    print_outcomes(outcomes, output, dry_run=dry_run)


def _carry_out(
    repair: DriftRepair, action: OperatorAction, *, ask_for_one: bool, dry_run: bool, yes: bool
) -> list[ActionOutcome]:
    """Compare listing and BMDB, ask for confirmation, and carry out *action*."""
    first = actions.compare(repair)
    expected = action.evaluate(first, first)
    if not any(outcome.result in (ActionResult.READY, ActionResult.BEGUN) for outcome in expected):
        return expected
    if dry_run:
        return actions.dry_run(repair, action, first)
    for outcome in expected:
        note(f"{outcome.provider_id or outcome.machine_id}: {outcome.text}")
    name = actions.confirmation(expected, ask_for_one=ask_for_one)
    if name is not None and not yes:
        confirm(name)
    return actions.carry_out(repair, action, first)


def print_outcomes(outcomes: Sequence[ActionOutcome], output: Form, *, dry_run: bool) -> None:
    """Print the outcome for each machine; the command fails if one was refused."""
    if output is Form.JSON:
        document({"dry_run": dry_run, "machines": [outcome.record for outcome in outcomes]})
    else:
        table(
            [Column("RESULT"), Column("PROVIDER ID"), Column("MACHINE"), Column("REASON", prose=True)],
            [
                (outcome.result, outcome.provider_id, name, outcome.text)
                for name, outcome in zip(ids(outcome.machine_id for outcome in outcomes), outcomes, strict=True)
            ],
        )
    if dry_run:
        note("dry run: nothing was changed")
    if any(outcome.result is ActionResult.REFUSED for outcome in outcomes):
        raise typer.Exit(1)
