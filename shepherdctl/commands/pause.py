"""The commands that pause loops and resume them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, TypeVar

import typer
from shepherd_core.bmdb.machines.pauses import Pause, pauses_in_force
from shepherd_core.bmdb.machines.pauses import resume as end_pause
from shepherd_core.bmdb.machines.search import FoundMachine, matching
from shepherd_core.bmdb.wire import server
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.settings.functions.bmdb import OPERATOR

from shepherdctl import actions
from shepherdctl.completion import pause_ids
from shepherdctl.confirm import Yes, confirm, require_terminal
from shepherdctl.database import bmdb
from shepherdctl.options import (
    SYSTEM_OWNERS,
    DryRun,
    LoopOption,
    OwnerOption,
    ReasonOption,
    current_user,
    loop_of_machines,
)
from shepherdctl.output.formats import duration, in_full, relative, scope_in_words, span
from shepherdctl.output.printing import Column, Form, Output, counted, document, ids, note, table
from shepherdctl.selection import Selection, selecting

P = TypeVar("P", Pause, actions.NewPause)
_SCOPE = ("provider", "location", "with_labels")


@selecting
def pause(
    *,
    reason: ReasonOption,
    selection: Selection,
    process: LoopOption = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Pause everything; no filter and no --loop may be given.")
    ] = False,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--for",
            parser=duration,
            metavar="TIME",
            help="The pause ends by itself after this time: 90s, 15m, 2h, 1d.",
            show_default="until resumed",
        ),
    ] = None,
    owner: OwnerOption = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Form.TABLE,
) -> None:
    """
    Pause machines, a loop, a provider, any combination of them, or everything.

    The loops claim no new work that a pause covers; work that has begun
    continues. --provider, --location and --label make one pause, which also
    covers machines that are created, adopted, moved there or labeled later, and
    no longer those that lose the label. --loop provisioner, --provider alone and
    --all stop creations. With --machine or another filter, each machine that
    matches now gets its own pause; if one cannot be paused, none is. The same
    pause twice is one, with the new end. Asks for confirmation before it pauses
    machines, unless just one is named.

    Examples:
      shepherdctl pause --machine 3f2a --reason "mainboard is being replaced"
      shepherdctl pause --location rack7 --reason "it moves" --dry-run
      shepherdctl pause --label role=db --reason "the database is migrated"
      shepherdctl pause --provider equinix --for 2h --reason "maintenance"
      shepherdctl pause --loop recoverer --reason "no reboots today"
      shepherdctl pause --loop provisioner --reason "it orders servers"
      shepherdctl pause --all --reason "heartbeats cannot be recorded"
    """
    if everything == any((selection, process)):
        message = "nothing to pause: give --machine, --loop, --provider or other filters, or --all alone."
        raise typer.BadParameter(message)
    filters = selection.filters
    scopes = _scopes(selection)
    of_machines = bool(not scopes or filters.locations or filters.labels)
    if of_machines:
        loop_of_machines(process)
        selection = selection.to_confirm(yes=yes or dry_run)
    new = actions.NewPause(process=process, owner=owner or current_user(), reason=reason, seconds=seconds)
    with bmdb(role=OPERATOR) as connection:
        machines: list[FoundMachine] = []
        if of_machines:
            search = selection.search(connection)
            machines = [*matching(connection, search)] if scopes else selection.to_change(connection)
        if machines and not (yes or dry_run):
            selection.confirm(connection, machines)
        provider = filters.providers[0] if len(filters.providers) == 1 else None
        created = [replace(new, **each) for each in scopes] or [
            replace(new, machine_id=each.machine_id, provider_id=each.provider_id, provider=provider)
            for each in machines
        ]
        if not dry_run:
            created = actions.pause(connection, created)
    if output is Form.JSON:
        document({"pauses": created})
        return
    lasts = "until resumed" if seconds is None else f"for {span(seconds)}"
    table(
        [Column("PAUSE"), Column("SCOPE", prose=True), Column("LASTS")],
        [(name, scope_text, lasts) for name, scope_text, _ in _described(created)],
    )
    if scopes and of_machines:
        note(f"covers {counted(len(machines), 'machine')} now, and later ones")
    note("dry run: nothing was changed" if dry_run else "work that has begun continues")


def pauses(output: Output = Form.TABLE) -> None:
    """
    List the pauses in force, oldest first.

    Shows the scope, owner, end and reason of each.

    Examples:
      shepherdctl pauses
      shepherdctl pauses -o json | jq -r '.pauses[].owner'
    """
    with bmdb() as connection:
        found = pauses_in_force(connection)
        now = server.now(connection)
    if output is Form.JSON:
        document({"pauses": found})
        return
    table(
        [
            Column("PAUSE"),
            Column("SCOPE", prose=True),
            Column("OWNER"),
            Column("CREATED", spare=1),
            Column("ENDS"),
            Column("REASON", prose=True),
        ],
        [
            (
                name,
                scope,
                one.owner,
                relative(one.created_at, now),
                "when resumed" if one.expires_at is None else relative(one.expires_at, now),
                one.reason,
            )
            for name, scope, one in _described(found)
        ],
    )
    if not found:
        note("nothing is paused")


@selecting
def resume(
    pause: Annotated[
        str | None,
        typer.Argument(
            metavar="PAUSE_ID", help="The beginning of the pause's id.", show_default=False, autocompletion=pause_ids
        ),
    ] = None,
    *,
    selection: Selection,
    everything: Annotated[bool, typer.Option("--all", help="All pauses except those that end by themselves.")] = False,
    owner: OwnerOption = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Form.TABLE,
) -> None:
    """
    End one pause, all pauses, or the pauses of some machines.

    With --machine or another filter, ends the pauses of each machine that
    matches, and the pauses of just that location or label, but no pause of a
    provider or a loop. Asks for confirmation before it ends more than one, or
    somebody else's. Filters and --all leave out the pauses that end by
    themselves: of machines that the Provisioner set aside because the provider
    does not list them, and of machines that are being released. Name such a pause
    to end it sooner. Who ended the pause of a machine is stored in the machine's
    history. The end of any other pause is recorded nowhere but in the output of
    this command.

    Examples:
      shepherdctl resume 81fe
      shepherdctl resume --location rack7
      shepherdctl resume --all
    """
    if (everything, bool(pause), bool(selection)).count(True) != 1:
        message = "nothing to resume: give one PAUSE_ID, as shepherdctl pauses lists them, or filters, or --all."
        raise typer.BadParameter(message)
    owner = owner or current_user()
    with bmdb(role=OPERATOR) as connection:
        found = pauses_in_force(connection)
        if selection:
            scopes = _scopes(selection)
            facts = [one for one in found if one.location or one.with_labels]
            same = [one for one in facts if {name: getattr(one, name) for name in _SCOPE} in scopes]
            machines = selection.to_change(connection, none_ok=bool(same))
            covered = {machine.machine_id for machine in machines}
            found = [one for one in found if one.machine_id in covered or one in same]
        chosen = [_named(found, pause)] if pause else [one for one in found if one.owner not in SYSTEM_OWNERS]
        if not dry_run and (len(chosen) > 1 or any(one.owner != owner for one in chosen)):
            _confirm(chosen, yes=yes)
        ended = chosen if dry_run else [one for one in chosen if end_pause(connection, one.pause_id, owner)]
    if output is Form.JSON:
        document({"pauses": ended})
    else:
        table(
            [
                Column("WOULD END" if dry_run else "RESUMED"),
                Column("SCOPE", prose=True),
                Column("OWNER"),
                Column("REASON", prose=True),
            ],
            [(name, scope, one.owner, one.reason) for name, scope, one in _described(ended)],
        )
        if not ended:
            note("nothing was paused")
    if dry_run:
        note("dry run: nothing was changed")
    if not pause and len(chosen) < len(found):
        left = counted(len(found) - len(chosen), "machine")
        note(f"{left} left paused, set aside by the Provisioner or being released: see shepherdctl pauses")


def _scopes(selection: Selection) -> list[dict[str, Any]]:
    """Return what each pause covers that also covers later machines of *selection*; none: others are wanted."""
    filters = selection.filters
    if selection.names or not filters.wide:
        return []
    return [
        dict(zip(_SCOPE, (provider, location, sorted(filters.labels) or None), strict=True))
        for provider in filters.providers or (None,)
        for location in filters.locations or (None,)
    ]


def _confirm(chosen: Sequence[Pause], *, yes: bool) -> None:
    """Show these pauses, and wait until the operator confirms that they end."""
    for name, scope, one in _described(chosen):
        note(f"{name}: {scope}, by {one.owner}: {one.reason}")
    require_terminal(yes=yes)
    if not yes:
        confirm(counted(len(chosen), "pause"))


def _named(pauses: Sequence[Pause], name: str) -> Pause:
    found = [one for one in pauses if str(one.pause_id).startswith(name.lower())]
    if len(found) != 1:
        message = f"{'more than one pause has' if found else 'no pause in force has'} an id that begins with {name!r}"
        raise ShepherdError(message)
    return found[0]


def _described(pauses: Sequence[P]) -> list[tuple[str, str, P]]:
    """Return each pause with its id and its scope in human-readable form."""
    names, machines = ids(one.pause_id for one in pauses), ids(one.machine_id for one in pauses)
    return [
        (
            name,
            scope_in_words(
                machine and in_full(one.provider_id, machine), one.process, one.provider, one.location, one.with_labels
            ),
            one,
        )
        for name, machine, one in zip(names, machines, pauses, strict=True)
    ]
