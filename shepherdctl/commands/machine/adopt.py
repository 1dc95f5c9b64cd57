"""The command that adds machines at the provider to the BMDB."""

from contextlib import closing
from typing import Annotated

import typer
from shepherd_core.domain.machine import ProviderId
from shepherd_core.operator.adopt_forget import Adopt
from shepherd_core.rules.drift import DriftKind
from shepherd_core.wiring import operators

from shepherdctl.confirm import Yes, carry_out_confirmed, require_terminal
from shepherdctl.database import explain_schema_mismatch
from shepherdctl.options import DryRun, current_user
from shepherdctl.output.outcomes import print_outcomes
from shepherdctl.output.printing import Form, Output, one_of

_ADOPTABLE = (DriftKind.ADOPTABLE, DriftKind.FOREIGN, DriftKind.DUPLICATED, DriftKind.DISPUTED)


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
    are refused. SHEPHERD_MAX_MACHINES applies.

    Examples:
      shepherdctl machine adopt 5f1c0c9a --dry-run
      shepherdctl machine adopt i-0abc --class foreign
    """
    require_terminal(yes=yes or dry_run)
    wanted = tuple(ProviderId(name) for name in dict.fromkeys(machines))
    with explain_schema_mismatch(), closing((repair := operators.drift_repair()).connection):
        action = Adopt(wanted, DriftKind(kind), repair.max_machines, current_user())
        outcomes = carry_out_confirmed(repair, action, dry_run=dry_run, yes=yes)
    print_outcomes(outcomes, output, dry_run=dry_run)
