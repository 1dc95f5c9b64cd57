"""The command that adds machines at the provider to the BMDB."""

from contextlib import closing
from typing import Annotated

import typer
from shepherd_core.domain.machine import ProviderId
from shepherd_core.operator.adopt_forget import Adopt
from shepherd_core.rules.drift import DriftKind
from shepherd_core.wiring import operators

from shepherdctl import actions
from shepherdctl.confirm import Yes, carry_out_confirmed, require_terminal
from shepherdctl.database import explain_schema_mismatch
from shepherdctl.options import DryRun, current_user
from shepherdctl.output.outcomes import print_outcomes
from shepherdctl.output.printing import Form, Output, one_of

_ADOPTABLE = tuple(kind for kind in DriftKind if kind is not DriftKind.VANISHED)


def adopt(
    machines: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PROVIDER_ID", help="Machines, by their ids in the provider's listing.", show_default=False
        ),
    ] = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="All machines of the class.")] = False,
    kind: Annotated[
        str,
        typer.Option(
            "--class",
            parser=one_of(*_ADOPTABLE),
            metavar="CLASS",
            help=f"One of {', '.join(_ADOPTABLE)}.",
        ),
    ] = DriftKind.ADOPTABLE,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Form.TABLE,
) -> None:
    """
    Add machines that are in use at the provider to the BMDB; the loops then work on them.

    Always asks for confirmation. Machines of another class of drift than --class
    are refused. SHEPHERD_MAX_MACHINES applies. After the BMDB was restored from a
    backup, the machines that were created since are foreign.

    Examples:
      shepherdctl machine adopt 5f1c0c9a --dry-run
      shepherdctl machine adopt i-0abc --class foreign
      shepherdctl machine adopt --all --class foreign --dry-run
    """
    if every == bool(machines):
        message = "name machines, or give --all."
        raise typer.BadParameter(message)
    require_terminal(yes=yes or dry_run)
    with explain_schema_mismatch(), closing((repair := operators.drift_repair()).connection):
        comparison = actions.compare(repair)
        wanted = comparison.unknown(DriftKind(kind)) if every else tuple(map(ProviderId, dict.fromkeys(machines or ())))
        action = Adopt(wanted, DriftKind(kind), repair.max_machines, current_user())
        outcomes = carry_out_confirmed(repair, action, comparison, dry_run=dry_run, yes=yes)
    print_outcomes(outcomes, output, dry_run=dry_run)
