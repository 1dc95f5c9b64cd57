"""The commands that end a disagreement: adopt, forget and release machines."""

import socket
import sys
from collections.abc import Sequence
from contextlib import closing, redirect_stdout
from typing import Annotated

import typer
from shepherd_core.bmdb.listings.decommissioning import RemovalRequest
from shepherd_core.bmdb.machines import queries
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.errors import NotSupported
from shepherd_core.domain.machine import Capability, ProviderId
from shepherd_core.operator.adopt_forget import Adopt, Forget, OperatorAction, Outcome, Result
from shepherd_core.operator.release import CancelRelease, Release
from shepherd_core.operator.two_phase import TwoPhase
from shepherd_core.rules.drift import FRESH_SECONDS, DriftKind
from shepherd_core.wiring import services

from shepherdctl.commands.reconcile import SECONDS, Interval
from shepherdctl.confirm import Yes, ask, askable
from shepherdctl.database import schema_named
from shepherdctl.options import reason_given, user
from shepherdctl.output import Column, Form, Output, document, ids, note, one_of, table

DryRun = Annotated[bool, typer.Option("--dry-run", help="Look twice and tell what would be done; change nothing.")]
Machines = Annotated[
    list[str],
    typer.Argument(metavar="ID", help="Beginnings of machine ids, or whole provider ids.", show_default=False),
]
Reason = Annotated[str, typer.Option(parser=reason_given, metavar="TEXT", help="Why; it is kept with the machine.")]

_ADOPTED = (DriftKind.ADOPTABLE, DriftKind.FOREIGN, DriftKind.DUPLICATED, DriftKind.DISPUTED)


def adopt(
    machines: Annotated[
        list[str], typer.Argument(metavar="PROVIDER_ID", help="As the provider lists them.", show_default=False)
    ],
    *,
    kind: Annotated[
        str,
        typer.Option("--class", parser=one_of(*_ADOPTED), metavar="CLASS", help=f"One of {', '.join(_ADOPTED)}."),
    ] = DriftKind.ADOPTABLE,
    interval: Interval = 30,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Form.TABLE,
) -> None:
    """
    Take machines that the provider has in use into the BMDB; the loops care for them from then on.

    Two listings must agree that the BMDB lacks them, and of which class they
    are; one of another class than --class is refused. SHEPHERD_MAX_MACHINES
    is kept to. Asks if there is more than one.

    Examples:
      shepherdctl machine adopt 5f1c0c9a --dry-run
      shepherdctl machine adopt i-0abc --class foreign
    """
    askable(yes=yes or dry_run or len(machines) == 1)
    wanted = tuple(ProviderId(name) for name in dict.fromkeys(machines))
    with schema_named(), closing((repair := services.drift_repair(interval)).connection):
        remedy = Adopt(wanted, DriftKind(kind), repair.max_machines)
        verdicts = _resolve(repair, remedy, ask_for_one=False, dry_run=dry_run, yes=yes)
    _tell(verdicts, output, dry_run=dry_run)


def forget(
    machines: Machines,
    *,
    reason: Reason,
    interval: Interval = 30,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Form.TABLE,
) -> None:
    """
    Take machines out of the BMDB's care that the provider has no more.

    Two listings must agree that they vanished. One whose agent reported within
    the last hour, or that a loop works on, is refused. Its history stays, with
    what it was. Asks if there is more than one.

    Examples:
      shepherdctl machine forget 3f2a --reason "disk failure, RMA 4711" --dry-run
      shepherdctl machine forget 3f2a 81fe --reason "rack 7 was sold"
    """
    askable(yes=yes or dry_run or len(machines) == 1)
    order = RemovalRequest(user(), reason, FRESH_SECONDS)
    with schema_named(), closing((repair := services.drift_repair(interval)).connection):
        named = [queries.find_machine(repair.connection, name) for name in machines]
        remedy = Forget(tuple(dict.fromkeys(named)), order)
        verdicts = _resolve(repair, remedy, ask_for_one=False, dry_run=dry_run, yes=yes)
    _tell(verdicts, output, dry_run=dry_run)


def release(
    machines: Machines,
    *,
    reason: Reason,
    despite_heartbeat: Annotated[
        bool, typer.Option("--despite-heartbeat", help="Also if the agent reported within the last hour.")
    ] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Keep machines instead whose release was asked for and did not happen.")
    ] = False,
    interval: Interval = 30,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Form.TABLE,
) -> None:
    """
    Give machines back to the provider. Destroys what is on them, for good.

    Always asks. A machine that a loop works on is refused, and so is one whose
    agent reports, unless --despite-heartbeat says otherwise. What was
    interrupted is asked for again. Until the provider lists a machine no more
    it counts as one; then it is taken out of the BMDB, as forget does it.

    Examples:
      shepherdctl machine release i-0abc --reason "slow" --dry-run
      shepherdctl machine release 3f2a --reason "sold" --despite-heartbeat
    """
    askable(yes=yes or dry_run)
    order = RemovalRequest(user(), reason, FRESH_SECONDS, despite_heartbeat)
    with schema_named(), closing((repair := services.drift_repair(interval)).connection):
        if not cancel and Capability.RELEASE not in repair.provider.capabilities:
            message = f"the provider {repair.provider.name} cannot release machines: give them back by its own means"
            raise NotSupported(message)
        named = tuple(dict.fromkeys(queries.find_machine(repair.connection, name) for name in machines))
        remedy: OperatorAction = CancelRelease(named) if cancel else Release(named, order)
        verdicts = _resolve(repair, remedy, ask_for_one=not cancel, dry_run=dry_run, yes=yes)
    _tell(verdicts, output, dry_run=dry_run)


def _resolve(repair: TwoPhase, remedy: OperatorAction, *, ask_for_one: bool, dry_run: bool, yes: bool) -> list[Outcome]:
    """Look, tell, ask, and have it done."""
    first = repair.compare(Deadline(repair.clock, SECONDS))
    seen = remedy.evaluate(first, first)
    ready = [verdict for verdict in seen if verdict.result is Result.READY]
    if not ready and not any(verdict.result is Result.BEGUN for verdict in seen):
        return seen
    if not dry_run:
        for verdict in seen:
            note(f"{verdict.provider_id or verdict.machine_id}: {verdict.text}")
        if not yes and (len(ready) > 1 or (ready and ask_for_one)):
            ask(f"{len(ready)} machines" if len(ready) > 1 else str(ready[0].provider_id))
    deadline = Deadline(repair.clock, SECONDS + repair.interval_seconds)
    if dry_run:
        return remedy.evaluate(first, repair.compare_again(first, deadline))
    with redirect_stdout(sys.stderr):  # for the log
        return repair.carry_out(remedy, first, deadline, f"shepherdctl on {socket.gethostname()}")


def _tell(verdicts: Sequence[Outcome], output: Form, *, dry_run: bool) -> None:
    """Show what became of each machine; what was refused makes a failure of the command."""
    if output is Form.JSON:
        document({"dry_run": dry_run, "machines": [verdict.record for verdict in verdicts]})
    else:
        table(
            [Column("RESULT"), Column("PROVIDER ID"), Column("MACHINE"), Column("WHY", prose=True)],
            [
                (verdict.result, verdict.provider_id, name, verdict.text)
                for name, verdict in zip(ids(verdict.machine_id for verdict in verdicts), verdicts, strict=True)
            ],
        )
    if dry_run:
        note("dry run: nothing was changed")
    if any(verdict.result is Result.REFUSED for verdict in verdicts):
        raise typer.Exit(1)
