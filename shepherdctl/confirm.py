"""The confirmation before a command destroys something."""

import sys
from typing import Annotated

import typer
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.operator.adopt_forget import ActionOutcome, ActionResult, OperatorAction
from shepherd_core.operator.drift_repair import DriftRepair
from shepherd_core.rules.drift import Comparison

from shepherdctl import actions
from shepherdctl.output.formats import in_full
from shepherdctl.output.printing import note

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask; required without a terminal.")]


def require_terminal(*, yes: bool) -> None:
    """
    Check, before anything else is done, that the operator can be asked.

    Raises:
        BadParameter: there is no terminal, and --yes was not given.
    """
    if not yes and not sys.stdin.isatty():
        message = "there is no terminal to ask on: check with --dry-run, then confirm with --yes."
        raise typer.BadParameter(message)


def confirm(name: str) -> None:
    """
    Wait until the operator types *name*, which says what is to be destroyed.

    Raises:
        ShepherdError: something else was typed.
    """
    note(f"Type {name} to continue, anything else to stop:")
    if sys.stdin.readline().strip() != name:
        message = "stopped; nothing was changed"
        raise ShepherdError(message)


def carry_out_confirmed(
    repair: DriftRepair, action: OperatorAction, comparison: Comparison, *, dry_run: bool, yes: bool
) -> list[ActionOutcome]:
    """Show what *action* would do by this *comparison*, ask for confirmation, and carry it out."""
    expected = action.evaluate(comparison)
    if dry_run or not any(outcome.result in (ActionResult.READY, ActionResult.BEGUN) for outcome in expected):
        return expected
    for outcome in expected:
        note(f"{in_full(outcome.provider_id, outcome.machine_id)}: {outcome.text}")
    ready = [outcome for outcome in expected if outcome.result is ActionResult.READY]
    if ready and not yes:
        confirm(str(ready[0].provider_id) if len(ready) == 1 else f"{len(ready)} machines")
    return actions.carry_out(repair, action, expected)
