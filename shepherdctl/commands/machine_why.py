"""The commands that tell why nothing happens to a machine, and let it happen."""

from typing import Annotated

import typer
from rich.text import Text
from shepherd_core.bmdb.machines import explain, queries
from shepherd_core.bmdb.machines.explain import Verdict
from shepherd_core.bmdb.recovery import remediation
from shepherd_core.bmdb.work.work import HealthTimeouts
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.domain.machine import Process
from shepherd_core.settings.functions import load

from shepherdctl.commands.machine import MachineArgument
from shepherdctl.commands.pause import OwnerOption, ProcessOption, ReasonOption, user
from shepherdctl.database import bmdb
from shepherdctl.output import Column, Form, Output, document, facts, note, table
from shepherdctl.state import Settings
from shepherdctl.times import relative

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only tell what would be ended.")]


def why(machine: MachineArgument, output: Output = Form.TABLE) -> None:
    """
    Tell for each process whether a loop would take the machine on now, and if not, why.

    The first thing that blocks it, when that ends, and when it will be tried if
    nothing else happens. Judged as the loops judge, with the timeouts
    that the environment sets (SHEPHERD_HEARTBEAT_TIMEOUT_SECONDS and
    SHEPHERD_STARTUP_TIMEOUT_SECONDS).

    Examples:
      shepherdctl machine why 3f2a
      shepherdctl machine why 3f2a -o json | jq -r '.processes[].blocked_by'
    """
    (settings,) = load(Settings)
    silence = HealthTimeouts(
        startup_timeout_seconds=settings.startup_timeout_seconds,
        heartbeat_timeout_seconds=settings.heartbeat_timeout_seconds,
    )
    with bmdb(settings) as connection:
        machine_id = queries.find_machine(connection, machine)
        verdicts, now = explain.why(connection, machine_id, silence)
    if output is Form.JSON:
        document({"machine_id": machine_id, "processes": [_plain(verdict) for verdict in verdicts]})
        return
    table(
        [Column("PROCESS"), Column("ELIGIBLE"), Column("BECAUSE", prose=True), Column("ENDS"), Column("NEXT TRY")],
        [
            (
                verdict.process,
                Text("yes", "green") if verdict.eligible else "no",
                verdict.because,
                verdict.until and relative(verdict.until, now),
                "next run" if verdict.eligible else verdict.next_at and relative(verdict.next_at, now),
            )
            for verdict in verdicts
        ],
    )


def retry(
    machine: MachineArgument,
    *,
    reason: ReasonOption,
    process: ProcessOption = None,
    owner: OwnerOption = None,
    dry_run: DryRun = False,
    output: Output = Form.TABLE,
) -> None:
    """
    Have a machine tried again now: end its backoffs in force, of one process or of all.

    For a machine whose fault was mended. Whatever else holds it up goes on:
    pauses, quarantine, time that it was given. Who did it and why is kept in its
    history.

    Examples:
      shepherdctl machine retry 3f2a --reason "cable replaced"
      shepherdctl machine retry 3f2a --process ShepherdRecovery --reason "mended"
    """
    owner = owner or user()
    with bmdb() as connection:
        machine_id = queries.find_machine(connection, machine)
        now = queries.now(connection)
        if dry_run:
            ended = [
                {name: backoff[name] for name in ("process", "until", "cause")}
                for backoff in queries.show_machine(connection, machine_id)["backoffs"]
                if backoff["until"] > now and process in (None, backoff["process"])
            ]
        else:
            chosen = Process(process) if process else None
            ended = remediation.retry(connection, machine_id, reason=f"{owner}: {reason}", process=chosen)
    if output is Form.JSON:
        document({"machine_id": machine_id, "dry_run": dry_run, "ended": ended})
        return
    table(
        [Column("WOULD END" if dry_run else "ENDED"), Column("WAS TO END"), Column("CAUSE", prose=True)],
        [(backoff["process"], relative(backoff["until"], now), backoff["cause"]) for backoff in ended],
    )
    if not ended:
        note(f"no backoff is in force for machine {machine_id}: see shepherdctl machine why")


def unquarantine(
    machine: MachineArgument,
    *,
    reason: ReasonOption,
    owner: OwnerOption = None,
    dry_run: DryRun = False,
    output: Output = Form.TABLE,
) -> None:
    """
    Give a machine in quarantine back to the loops.

    A new agent is started on it first. If that cannot be done within
    SHEPHERD_GRACE_SECONDS, its recovery begins anew, with the first step. Who did
    it and why is kept in its history.

    Examples:
      shepherdctl machine unquarantine 3f2a --reason "mainboard replaced"
    """
    owner = owner or user()
    (settings,) = load(Settings)
    with bmdb(settings) as connection:
        machine_id = queries.find_machine(connection, machine)
        now = queries.now(connection)
        if dry_run:
            found = queries.show_machine(connection, machine_id)
            was = {"quarantined_at": found["quarantined_at"], "cause": found["quarantine_cause"]}
        else:
            was = remediation.unquarantine(
                connection, machine_id, reason=f"{owner}: {reason}", grace_seconds=settings.grace_seconds
            )
    if not was.get("quarantined_at"):
        message = f"machine {machine_id} is not in quarantine: nothing was changed"
        raise ShepherdError(message)
    if output is Form.JSON:
        document({"machine_id": machine_id, "dry_run": dry_run, **was})
        return
    facts(
        [("machine", machine_id), ("in quarantine", f"since {relative(was['quarantined_at'], now)}"),
         ("because", was["cause"])]
    )  # fmt: skip
    note("dry run: nothing was changed" if dry_run else "a new agent will be started on it first")


def _plain(verdict: Verdict) -> dict[str, object]:
    return {
        "process": verdict.process,
        "eligible": verdict.eligible,
        "blocked_by": verdict.blocked_by,
        "because": verdict.because,
        "until": verdict.until,
        "next_at": verdict.next_at,
    }
