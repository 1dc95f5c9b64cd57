"""The command that sums up the state of the fleet."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.text import Text
from shepherd_core.bmdb.listings import provisioning
from shepherd_core.bmdb.listings.provisioning import Waiting
from shepherd_core.bmdb.machines import overview, pauses
from shepherd_core.bmdb.machines.overview import FleetCount
from shepherd_core.bmdb.recovery import budget
from shepherd_core.bmdb.wire import server
from shepherd_core.bmdb.work import ticks
from shepherd_core.bmdb.work.ticks import Tick
from shepherd_core.domain.budget import where
from shepherd_core.domain.states import State
from shepherd_core.settings.deployment import DeploymentSettings, loop_minutes
from shepherd_core.settings.functions.bmdb import BmdbSettings
from shepherd_core.wiring.settings import load

from shepherdctl.database import bmdb
from shepherdctl.descriptions.attention import EXIT_STATUS, OLD_TRANSACTION_SECONDS, attention, pace
from shepherdctl.descriptions.cures import told
from shepherdctl.output import prometheus
from shepherdctl.output.formats import did, relative, span
from shepherdctl.output.printing import Column, Form, counted, document, note, output_option, table
from shepherdctl.output.prometheus import DELAYS


class StatusForm(StrEnum):
    """The format in which the status is printed."""

    TABLE = Form.TABLE.value
    JSON = Form.JSON.value
    PROMETHEUS = "prometheus"


def status(
    *,
    output: Annotated[
        StatusForm, output_option(StatusForm, "A human-readable table, one JSON document, or metrics for Prometheus.")
    ] = StatusForm.TABLE,
) -> None:
    """
    Count the machines by state, and show where recovery is limited and what each loop did last.

    RECOVERY shows the locations and providers where fewer machines than usual
    may be interrupted in an hour, because so many are dead that the fault is
    probably not in them; REASON has the figures, and WAITING how many machines
    wait for that. They are looked at meanwhile, and agents that ended are
    started. UNUSED counts the places at the provider that stay unused because
    SHEPHERD_MAX_MACHINES is reached. LAST TICK is when the last recorded
    invocation of a loop ended, and DID what it counted. A transaction that has
    been open for ten minutes is shown with its pid: PostgreSQL keeps all dead
    rows for it, which slows every claim. Members of pg_read_all_stats see those
    of all users, others only their own.

    Exit status: 0 nothing needs attention, 3 something does, 1 failure, 2 wrong
    usage. What needs attention: a machine in quarantine, limited recovery, a
    loop whose last tick failed or is late, drift, and an old transaction.
    Set SHEPHERD_LOOP_MINUTES if the loops do not run every minute.

    Examples:
      shepherdctl status
      shepherdctl status -o json | jq '.budgets[]'
      shepherdctl status -o json | jq '.ticks[] | select(.outcome != "Succeeded")'
      shepherdctl status -o prometheus | grep attention
    """
    (settings,) = load(BmdbSettings)
    (deployment,) = load(DeploymentSettings)
    with bmdb(settings) as connection:
        limited_user = server.limited_user(connection)
        found: dict[str, Any] = {
            "machines": overview.fleet_counts(connection),
            "budgets": [asdict(each) for each in budget.shown_budgets(connection)],
            "waiting": provisioning.waiting(connection),
            "pauses": len(pauses.pauses_in_force(connection)),
            "oldest_transaction": server.oldest_transaction(connection, OLD_TRANSACTION_SECONDS),
            "sees_all_transactions": limited_user is None,
            "ticks": ticks.last_ticks(connection),
        }
        now = server.now(connection)
    needed = list(attention(found, loop_minutes(deployment.loop_minutes), now))
    if output is StatusForm.JSON:
        shown = ("provider", "state", "machines", *DELAYS)
        counts = [{name: getattr(each, name) for name in shown} for each in found["machines"]]
        document({**found, "machines": counts, "attention": needed})
    elif output is StatusForm.PROMETHEUS:
        sys.stdout.write(prometheus.text(found, len(needed), now))
    else:
        _print(found, now, limited_user)
        for each in needed:
            note(f"needs attention: {each}")
    if needed:
        raise typer.Exit(EXIT_STATUS)


def _print(found: Mapping[str, Any], now: datetime, limited_user: str | None) -> None:
    """Print *found*; *limited_user* does not see all transactions."""
    _print_counts(found["machines"])
    _print_budgets(found["budgets"], now)
    _print_waiting(found["waiting"], now)
    _print_ticks(found["ticks"], now)
    if paused := found["pauses"]:
        note(f"{counted(paused, 'pause')} in force: see shepherdctl pauses")
    if limited_user is not None:
        note(
            "open transactions of other users are not shown; an administrator can change that: "
            f'GRANT pg_read_all_stats TO "{limited_user}"'
        )


def _print_counts(counts: Sequence[FleetCount]) -> None:
    """Print a line for each provider, with a column for each state that occurs."""
    columns = [
        Column("PROVIDER"),
        Column("MACHINES", number=True),
        *(Column(name.replace("_", " ").upper(), number=True) for name in (*State, *DELAYS)),
    ]
    rows = []
    for provider in sorted({count.provider for count in counts}):
        of_it = {count.state: count for count in counts if count.provider == provider}
        machines = [of_it[state].machines if state in of_it else None for state in State]
        styled = [
            Text(str(number), "red") if state is State.UNHEALTHY and number else number
            for state, number in zip(State, machines, strict=True)
        ]
        totals = [sum(getattr(count, name) for count in of_it.values()) or None for name in DELAYS]
        rows.append((provider, sum(number or 0 for number in machines), *styled, *totals))
    table(columns, rows)
    if not rows:
        note("there are no machines")


def _print_budgets(budgets: Sequence[Mapping[str, Any]], now: datetime) -> None:
    """Print where fewer machines than usual may be interrupted, and who waits for that."""
    table(
        [
            Column("RECOVERY"),
            Column("SINCE"),
            Column("PROVIDER"),
            Column("SCOPE", prose=True),
            Column("WAITING", number=True),
            Column("REASON", prose=True),
        ],
        [
            (
                Text(pace(one["per_hour"]), "red"),
                relative(one["began_at"], now),
                one["provider"],
                where(one["location"]),
                one["waiting"],
                one["reason"],
            )
            for one in budgets
        ],
    )


def _print_waiting(waiting: Sequence[Waiting], now: datetime) -> None:
    """Print how many places at the provider stay unused because of the limit of machines."""
    table(
        [Column("UNUSED", number=True), Column("PROVIDER"), Column("REASON", prose=True), Column("SEEN")],
        [
            (
                one.waiting,
                one.provider,
                f"the limit of {counted(one.max_machines, 'machine')} is reached",
                relative(one.seen_at, now),
            )
            for one in waiting
        ],
    )


def _print_ticks(last: Sequence[Tick], now: datetime) -> None:
    """Print the last tick of each loop."""
    table(
        [
            Column("LAST TICK"),
            Column("LOOP"),
            Column("PROVIDER"),
            Column("TOOK", spare=1),
            Column("OUTCOME"),
            Column("DID", prose=True),
        ],
        [
            (
                relative(one.ended_at, now),
                one.loop.capitalize(),
                one.provider,
                None if one.outcome == "Expired" else span(one.seconds),
                one.outcome if one.outcome == "Succeeded" else Text(one.outcome, "red"),
                told(one.kind, one.cause) or ", ".join(did(one.counts)),
            )
            for one in last
        ],
    )
