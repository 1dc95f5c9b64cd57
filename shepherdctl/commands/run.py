"""The command that runs a loop once, in this process."""

import socket
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from datetime import datetime
from typing import Annotated, Any, cast

import typer
from shepherd_core import handlers, telemetry
from shepherd_core.domain.machine import INVALID
from shepherd_core.settings.functions.specs import LOOPS

from shepherdctl.database import explain_schema_mismatch
from shepherdctl.output.formats import at, loop_name
from shepherdctl.output.printing import Column, Form, Output, counted, document, facts, ids, note, one_of, table
from shepherdctl.output.readable_log import ReadableLog

_HEAD = ("loop", "provider", "dry_run")


def run(
    loop: Annotated[
        str,
        typer.Argument(
            parser=one_of(*LOOPS),
            metavar="LOOP",
            help=f"One of {', '.join(LOOPS)}.",
            show_default=False,
        ),
    ],
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the first work that the loop would do; change nothing.")
    ] = False,
    seconds: Annotated[
        float,
        typer.Option(
            min=1, max=86_400, metavar="SECONDS", help="Time limit of the run; work that may take longer is not begun."
        ),
    ] = 300,
    output: Output = Form.TABLE,
) -> None:
    """
    Run a loop once, in this process, with the settings of the environment.

    Does the same as one invocation of its function, and may run concurrently with
    it. The log goes to standard error, in plain text; with -o json it is JSON,
    one object on each line, and includes the metrics.

    Examples:
      shepherdctl run provisioner --dry-run
      shepherdctl run initializer --seconds 600
      shepherdctl run recoverer --dry-run -o json | jq '.plan[].machine_id'
    """
    telemetry.bind(loop=loop)
    try:
        log = sys.stderr if output is Form.JSON else ReadableLog()
        with explain_schema_mismatch(), redirect_stdout(log):
            result = handlers.run(loop, seconds, f"shepherdctl on {socket.gethostname()}", dry_run=dry_run)
    finally:
        telemetry.unbind()
    plan = result.get("plan")
    counts = {name: count for name, count in result.items() if name not in _HEAD}
    if output is Form.JSON:
        done = {name: _in_words(part) for name, part in counts.items()} if dry_run else {"counts": counts}
        document({**{name: result[name] for name in _HEAD}, **done})
    elif dry_run:
        _print_plan(plan, result)
    else:
        facts([(name.replace("_", " "), count) for name, count in counts.items()])
        if not counts:
            note("nothing was done: see the log above")


def _print_plan(plan: object, result: Mapping[str, Any]) -> None:
    """Print a plan; its form depends on the loop that made it."""
    if isinstance(plan, list):
        _print_work(plan)
        for reason in result["recovery_limited"]:
            note(f"recovery is limited: {reason}")
    elif "changes" in (named := cast("Mapping[str, Any]", plan)):
        _print_changes(named["changes"])
    else:
        _print_steps(named)


def _in_words(plan: object) -> object:
    """Return *plan*; if it is a list of machines, with their loops, and their times as datetimes."""
    if not isinstance(plan, list):
        return plan
    return [
        {
            **{name: value for name, value in work.items() if name != "process"},
            "loop": loop_name(work["process"]).lower(),
            "due_at": datetime.fromisoformat(work["due_at"]),
        }
        if isinstance(work, dict)
        else work
        for work in plan
    ]


def _print_work(plan: list[dict[str, Any]]) -> None:
    """Print the machines that a loop would claim."""
    table(
        [
            Column("MACHINE"),
            Column("PROVIDER ID"),
            Column("LOOP"),
            Column("DECISION", prose=True),
            Column("DUE SINCE"),
            Column("LAST BACKOFF"),
        ],
        [
            (
                name,
                work["provider_id"],
                loop_name(work["process"]),
                work["decision"],
                at(datetime.fromisoformat(work["due_at"])),
                None if work["last_interval_seconds"] is None else f"{work['last_interval_seconds']} s",
            )
            for name, work in zip(ids(work["machine_id"] for work in plan), plan, strict=True)
        ],
    )
    if not plan:
        note("no machine is due")


def _print_changes(changes: list[dict[str, Any]]) -> None:
    """Print the facts that the Updater would change."""
    names = ids(change["machine_id"] for change in changes)
    table(
        [
            Column("MACHINE"),
            Column("PROVIDER ID"),
            Column("FACT"),
            Column("IN THE BMDB", spare=1),
            Column("LISTED", spare=1),
        ],
        [
            (name, change["provider_id"], fact.replace("_", " "), before, after)
            for name, change in zip(names, changes, strict=True)
            for fact, (before, after) in change["changed"].items()
        ],
    )
    if not changes:
        note("there is nothing to do")


def _print_steps(plan: Mapping[str, Any]) -> None:
    """Print the steps that the Provisioner would take, and the drift that it found."""
    steps = [
        *(("remove", provided) for provided in plan["decommissioned"]),
        *(("take back", provided) for provided in plan["take_back"]),
        *(("set aside", provided) for provided in plan["set_aside"]),
        *(("complete", _merged(intent, machine)) for intent, machine in plan["complete"]),
        *(("abandon", intent) for intent in plan["abandon"]),
        *(("assimilate", machine) for machine in plan["assimilate"]),
        *(
            (
                "create again" if creation["intent"] else "create",
                _merged(creation["intent"] or {}, creation["capacity"]),
            )
            for creation in plan["create"]
        ),
    ]
    names = ids(step.get("machine_id") for _, step in steps)
    table(
        [
            Column("STEP"),
            Column("PROVIDER ID"),
            Column("RESERVATION"),
            Column("ADDRESS"),
            Column("LOCATION", spare=1),
            Column("MACHINE"),
        ],
        [
            (
                what,
                None if step.get("provider_id") == INVALID else step.get("provider_id"),
                step.get("reservation_id"),
                step.get("address"),
                step.get("location"),
                name,
            )
            for name, (what, step) in zip(names, steps, strict=True)
        ],
    )
    for drift in plan["drift"]:
        note(f"drift: {drift}")
    if not steps:
        note("there is nothing to do")
    note(f"counted towards the limit now: {counted(plan['managed'], 'machine')}")
    if plan["waiting"]:
        note(f"{counted(plan['waiting'], 'place')} at the provider unused: SHEPHERD_MAX_MACHINES is reached")


def _merged(*records: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for record in records for name, value in record.items() if value is not None}
