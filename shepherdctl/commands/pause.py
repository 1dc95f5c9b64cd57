"""The commands that pause loops and resume them."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from shepherd_core.bmdb.machines import queries
from shepherd_core.domain.errors import ShepherdError

from shepherdctl import actions
from shepherdctl.database import bmdb
from shepherdctl.formats import duration, loop_name, relative, span
from shepherdctl.options import PROVIDERS, SYSTEM_OWNERS, LoopOption, OwnerOption, ReasonOption, current_user
from shepherdctl.output import Column, Form, Output, counted, document, ids, note, one_of, table


def pause(
    *,
    reason: ReasonOption,
    machines: Annotated[
        list[str] | None,
        typer.Option(
            "--machine",
            metavar="ID",
            help="One machine: the beginning of its id, or its whole provider id. May be given several times.",
        ),
    ] = None,
    process: LoopOption = None,
    provider: Annotated[
        str | None,
        typer.Option(
            parser=one_of(*PROVIDERS), metavar=f"<{'|'.join(PROVIDERS)}>", help="All machines of one provider."
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Everything. Cannot be combined.")] = False,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--for",
            parser=duration,
            metavar="TIME",
            help="End by itself after this time: 90s, 15m, 2h, 1d.",
            show_default="until resumed",
        ),
    ] = None,
    owner: OwnerOption = None,
    output: Output = Form.TABLE,
) -> None:
    """
    Pause machines, a loop, a provider, any combination of them, or everything.

    The loops claim no new work that a pause covers; work that has begun
    continues. Only --all, and --provider alone, also stop the creation of
    machines. Each machine named gets its own pause; if one cannot be paused, none
    is.

    Examples:
      shepherdctl pause --machine 3f2a --reason "mainboard is being replaced"
      shepherdctl pause --machine 3f2a --machine 81fe --reason "rack 7 moves"
      shepherdctl pause --provider equinix --for 2h --reason "maintenance"
      shepherdctl pause --loop recoverer --reason "no reboots today"
      shepherdctl pause --all --reason "heartbeats cannot be recorded"
    """
    if everything == any((machines, process, provider)):
        message = "what is to be paused? Give --machine, --loop, --provider or a combination of them, or else --all."
        raise typer.BadParameter(message)
    owner = owner or current_user()
    with bmdb() as connection:
        named = dict.fromkeys(queries.find_machine(connection, name) for name in machines or ())
        created = actions.pause(
            connection,
            tuple(named),
            process=process,
            provider=provider,
            owner=owner,
            reason=reason,
            seconds=seconds,
        )
    if output is Form.JSON:
        document(created)
        return
    lasts = "until resumed" if seconds is None else f"for {span(seconds)}"
    table(
        [Column("PAUSE"), Column("SCOPE", prose=True), Column("LASTS")],
        [(name, scope_text, lasts) for name, scope_text, _ in _described(created)],
    )
    note("work that has begun continues")


def pauses(output: Output = Form.TABLE) -> None:
    """
    List the pauses in force, oldest first.

    Shows the scope, owner, end and reason of each.

    Examples:
      shepherdctl pauses
      shepherdctl pauses -o json | jq -r '.[].owner'
    """
    with bmdb() as connection:
        found = queries.pauses(connection)
        now = queries.now(connection)
    if output is Form.JSON:
        document(found)
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
                one["owner"],
                relative(one["created_at"], now),
                "when resumed" if one["expires_at"] is None else relative(one["expires_at"], now),
                one["reason"],
            )
            for name, scope, one in _described(found)
        ],
    )
    if not found:
        note("nothing is paused")


def resume(
    pause: Annotated[
        str | None, typer.Argument(metavar="PAUSE_ID", help="The beginning of the pause's id.", show_default=False)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All pauses except those that end by themselves.")] = False,
    output: Output = Form.TABLE,
) -> None:
    """
    End a pause, or all of them.

    --all leaves out the pauses that end by themselves: of machines that the
    Provisioner set aside because the provider does not list them, and of machines
    that are being released. Name such a pause to end it sooner.

    Examples:
      shepherdctl resume 81fe
      shepherdctl resume --all
    """
    if everything == bool(pause):
        message = "what is to be resumed? Give one PAUSE_ID, as shepherdctl pauses lists them, or else --all."
        raise typer.BadParameter(message)
    with bmdb() as connection:
        found = queries.pauses(connection)
        if pause:
            chosen = [one for one in found if str(one["pause_id"]).startswith(pause.lower())]
            if len(chosen) != 1:
                message = f"{'more than one pause has' if chosen else 'no pause in force has'} an id that begins with "
                raise ShepherdError(message + repr(pause))
        else:
            chosen = [one for one in found if one["owner"] not in SYSTEM_OWNERS]
        ended = [one for one in chosen if queries.resume(connection, one["pause_id"])]
    if output is Form.JSON:
        document(ended)
    else:
        table(
            [Column("RESUMED"), Column("SCOPE", prose=True), Column("OWNER"), Column("REASON", prose=True)],
            [(name, scope, one["owner"], one["reason"]) for name, scope, one in _described(ended)],
        )
        if not ended:
            note("nothing was paused")
    if everything and len(chosen) < len(found):
        left = counted(len(found) - len(chosen), "machine")
        note(f"{left} set aside by the Provisioner or being released: see shepherdctl pauses")


def _described(pauses: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Return each pause with its id and its scope in human-readable form."""
    names, machines = ids(one["pause_id"] for one in pauses), ids(one["machine_id"] for one in pauses)
    return [
        (name, scope_in_words({**one, "machine_id": machine or None}), one)
        for name, machine, one in zip(names, machines, pauses, strict=True)
    ]


def scope_in_words(pause: Mapping[str, Any]) -> str:
    """Return the machines and loops that a pause covers, in words."""
    parts = (
        pause["machine_id"] and f"machine {pause['machine_id']}",
        pause["process"] and f"loop {loop_name(pause['process'])}",
        pause["provider"] and f"provider {pause['provider']}",
    )
    return ", ".join(filter(None, parts)) or "everything"
