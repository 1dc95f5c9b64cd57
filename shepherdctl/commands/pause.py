"""The commands that put machines on hold, and end that."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from shepherd_core.bmdb.machines import queries
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.domain.machine import Process

from shepherdctl.database import bmdb
from shepherdctl.formats import duration, relative, span
from shepherdctl.options import OUR_OWNERS, PROVIDERS, OwnerOption, ProcessOption, ReasonOption, user
from shepherdctl.output import Column, Form, Output, counted, document, ids, note, one_of, table


def pause(
    *,
    reason: ReasonOption,
    machines: Annotated[
        list[str] | None,
        typer.Option(
            "--machine",
            metavar="ID",
            help="One machine: the beginning of its id, or its whole provider id. May be given more than once.",
        ),
    ] = None,
    process: ProcessOption = None,
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
    Put machines, a process, a provider, any combination of them, or everything on hold.

    No loop takes on new work that a pause covers. Work that is under way goes
    on. Creating machines stops with --all and with --provider alone. Each
    machine that is named gets a pause of its own, or none does.

    Examples:
      shepherdctl pause --machine 3f2a --reason "mainboard is being replaced"
      shepherdctl pause --machine 3f2a --machine 81fe --reason "rack 7 moves"
      shepherdctl pause --provider equinix --for 2h --reason "maintenance"
      shepherdctl pause --process ShepherdRecovery --reason "no reboots today"
      shepherdctl pause --all --reason "heartbeats cannot be recorded"
    """
    if everything == any((machines, process, provider)):
        message = "say what to pause: --machine, --process, --provider or a combination of them, or else --all."
        raise typer.BadParameter(message)
    scope: dict[str, Any] = {"process": Process(process) if process else None, "provider": provider}
    owner = owner or user()
    with bmdb() as connection:
        named = dict.fromkeys(queries.find_machine(connection, name) for name in machines or ())

        def unit() -> list[dict[str, Any]]:
            return [
                {
                    "pause_id": queries.pause(
                        connection, owner=owner, reason=reason, machine_id=machine_id, seconds=seconds, **scope
                    ),
                    "machine_id": machine_id,
                    **scope,
                    "owner": owner,
                    "reason": reason,
                    "seconds": seconds,
                }
                for machine_id in named or (None,)
            ]

        made = connection.transact(unit)
    if output is Form.JSON:
        document(made)
        return
    ends = "until it is resumed" if seconds is None else f"for {span(seconds)}"
    table(
        [Column("PAUSE"), Column("COVERS", prose=True), Column("HOLDS")],
        [(name, covered, ends) for name, covered, _ in _named(made)],
    )
    note("work that is under way goes on")


def pauses(output: Output = Form.TABLE) -> None:
    """
    List the pauses in force, oldest first.

    What each covers, who made it, when it ends, and why.

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
            Column("COVERS", prose=True),
            Column("OWNER"),
            Column("BEGUN", spare=1),
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
            for name, scope, one in _named(found)
        ],
    )
    if not found:
        note("nothing is paused")


def resume(
    pause: Annotated[
        str | None, typer.Argument(metavar="PAUSE_ID", help="The beginning of the pause's id.", show_default=False)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All pauses but those that end by themselves.")] = False,
    output: Output = Form.TABLE,
) -> None:
    """
    End a pause, or all of them.

    Machines that the Provisioner set aside, because the provider does not list
    them, stay so with --all, and so do those that are being released. That ends
    by itself; name the pause to end it sooner.

    Examples:
      shepherdctl resume 81fe
      shepherdctl resume --all
    """
    if everything == bool(pause):
        message = "say what to resume: one PAUSE_ID, as shepherdctl pauses lists them, or else --all."
        raise typer.BadParameter(message)
    with bmdb() as connection:
        found = queries.pauses(connection)
        if pause:
            chosen = [one for one in found if str(one["pause_id"]).startswith(pause.lower())]
            if len(chosen) != 1:
                message = f"{'more than one pause has' if chosen else 'no pause in force has'} an id that begins with "
                raise ShepherdError(message + repr(pause))
        else:
            chosen = [one for one in found if one["owner"] not in OUR_OWNERS]
        ended = [one for one in chosen if queries.resume(connection, one["pause_id"])]
    if output is Form.JSON:
        document(ended)
    else:
        table(
            [Column("RESUMED"), Column("COVERED", prose=True), Column("OWNER"), Column("REASON", prose=True)],
            [(name, scope, one["owner"], one["reason"]) for name, scope, one in _named(ended)],
        )
        if not ended:
            note("nothing was paused")
    if everything and len(chosen) < len(found):
        left = counted(len(found) - len(chosen), "machine")
        note(f"{left} set aside by the Provisioner or being released: see shepherdctl pauses")


def _named(pauses: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Return for each pause its id and what it covers, as people are shown them, and the pause."""
    names, machines = ids(one["pause_id"] for one in pauses), ids(one["machine_id"] for one in pauses)
    return [
        (name, _scope({**one, "machine_id": machine or None}), one)
        for name, machine, one in zip(names, machines, pauses, strict=True)
    ]


def _scope(pause: Mapping[str, Any]) -> str:
    """Return what a pause covers, in words."""
    parts = [f"{scope} {pause[key]}" for scope, key in _SCOPES if pause[key] is not None]
    return ", ".join(parts) or "everything"


_SCOPES = (("machine", "machine_id"), ("process", "process"), ("provider", "provider"))
