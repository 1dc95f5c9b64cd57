"""The outcomes of an operator action on machines."""

from collections.abc import Sequence

import typer
from shepherd_core.operator.adopt_forget import ActionOutcome, ActionResult

from shepherdctl.output.printing import Column, Form, document, ids, note, table


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
