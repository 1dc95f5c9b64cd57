"""The command that sums up the state of the fleet."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.text import Text
from shepherd_core.bmdb.listings import provisioning
from shepherd_core.bmdb.machines import queries
from shepherd_core.bmdb.recovery import overrides, suspension
from shepherd_core.bmdb.work import ticks
from shepherd_core.domain.states import State
from shepherd_core.rules.circuit_breaker import where
from shepherd_core.settings.functions import BmdbSettings
from shepherd_core.telemetry import Metric
from shepherd_core.wiring.settings import load

from shepherdctl.commands.timings import show
from shepherdctl.database import bmdb
from shepherdctl.formats import relative, span
from shepherdctl.output import Column, Form, Output, counted, document, note, table

OLD_TRANSACTION_SECONDS = 600.0


def status(
    *,
    timings: Annotated[
        bool,
        typer.Option(
            "--timings", help="Show instead how long machines take to boot and agents to start and to report."
        ),
    ] = False,
    output: Output = Form.TABLE,
) -> None:
    """
    Count the machines by state, and show where recovery is suspended and what each loop did last.

    Recovery is suspended for a location or a whole provider while so many
    machines are unhealthy at once that an outage on Shepherd's side is more
    likely; the figures behind the decision are the REASON. Suspensions that ended
    in the last day are shown too, because the heartbeat timeout starts over at
    their end, and so are overrides (shepherdctl recovery). WAITING counts the
    places at the provider that stay unused because SHEPHERD_MAX_MACHINES is
    reached. LAST TICK is when the last recorded invocation of a loop ended, and
    DID what it counted. A transaction that has been open for ten minutes is shown
    with its pid: PostgreSQL keeps all dead rows for it, which slows every claim.
    Those of other users are shown only to members of pg_read_all_stats.

    With --timings: the median (P50) and the 99th percentile (P99) of the last 30
    days, from at most 20,000 rows of the history, and which settings are shorter.

    Examples:
      shepherdctl status
      shepherdctl status -o json | jq '.suspensions[] | select(.ended_at == null)'
      shepherdctl status -o json | jq '.ticks[] | select(.outcome != "Succeeded")'
      shepherdctl status --timings
    """
    (settings,) = load(BmdbSettings)
    with bmdb(settings) as connection:
        if timings:
            show(connection, output)
            return
        counts = queries.count_machines(connection)
        suspensions = suspension.suspensions(connection)
        overridden = overrides.overrides(connection)
        waiting = provisioning.waiting(connection)
        paused = queries.pauses(connection)
        oldest = queries.oldest_transaction(connection, OLD_TRANSACTION_SECONDS)
        user, sees_transactions = queries.sees_transactions(connection)
        last = ticks.last_ticks(connection)
        now = queries.now(connection)
    if output is Form.JSON:
        document(
            {
                "machines": counts,
                "suspensions": suspensions,
                "overrides": overridden,
                "waiting": waiting,
                "pauses": len(paused),
                "oldest_transaction": oldest,
                "sees_all_transactions": sees_transactions,
                "ticks": last,
            }
        )
        return
    _print_counts(counts)
    _print_suspensions(suspensions, now)
    _print_overrides(overridden, now)
    _print_waiting(waiting, now)
    _print_ticks(last, now)
    if paused:
        note(f"{counted(len(paused), 'pause')} in force: see shepherdctl pauses")
    if oldest:
        note(old_transaction(oldest))
    if not sees_transactions:
        note(
            "open transactions of other users are not shown; an administrator can change that: "
            f'GRANT pg_read_all_stats TO "{user}"'
        )


def old_transaction(found: Mapping[str, Any]) -> str:
    """Return what to do about a transaction that slows the BMDB."""
    lasted = span(found["seconds"])
    if found["kind"] == "prepared":
        name = f"{found['application']!r} of {found['owner']}"
        return f"the transaction {name} was prepared {lasted} ago, and slows every claim"
    by = f" ({found['application']})" if found["application"] else ""
    return (
        f"a transaction of {found['owner']}{by} has been open for {lasted}, and slows every claim; "
        f"an administrator ends it with SELECT pg_terminate_backend({found['pid']})"
    )


def _print_counts(counts: Sequence[Mapping[str, Any]]) -> None:
    """Print a line for each provider, with a column for each state that occurs."""
    delays = ("being_worked_on", "backing_off", "paused")
    columns = [
        Column("PROVIDER"),
        Column("MACHINES", number=True),
        *(Column(name.replace("_", " ").upper(), number=True) for name in (*State, *delays)),
    ]
    rows = []
    for provider in sorted({count["provider"] for count in counts}):
        of_it = {count["state"]: count for count in counts if count["provider"] == provider}
        machines = [of_it[state]["machines"] if state in of_it else None for state in State]
        styled = [
            Text(str(number), "red") if state is State.UNHEALTHY and number else number
            for state, number in zip(State, machines, strict=True)
        ]
        totals = [sum(count[name] for count in of_it.values()) or None for name in delays]
        rows.append((provider, sum(number or 0 for number in machines), *styled, *totals))
    table(columns, rows)
    if not rows:
        note("there are no machines")


def _print_suspensions(suspensions: Sequence[Mapping[str, Any]], now: datetime) -> None:
    """Print where recovery is suspended, or was in the last day."""
    table(
        [Column("SUSPENSION"), Column("PROVIDER"), Column("SCOPE", prose=True), Column("REASON", prose=True)],
        [
            (
                Text(f"recovery suspended for {span((now - one['suspended_at']).total_seconds())}", "red")
                if one["ended_at"] is None
                else f"ended {relative(one['ended_at'], now)}",
                one["provider"],
                where(one["location"]),
                one["reason"],
            )
            for one in suspensions
        ],
    )


def _print_waiting(waiting: Sequence[Mapping[str, Any]], now: datetime) -> None:
    """Print how many places at the provider stay unused because of the limit of machines."""
    table(
        [Column("WAITING", number=True), Column("PROVIDER"), Column("REASON", prose=True), Column("SEEN")],
        [
            (
                one["waiting"],
                one["provider"],
                f"the limit of {counted(one['max_machines'], 'machine')} is reached",
                relative(one["seen_at"], now),
            )
            for one in waiting
        ],
    )


def _print_overrides(overridden: Sequence[Mapping[str, Any]], now: datetime) -> None:
    """Print the overrides in force."""
    table(
        [
            Column("OVERRIDE"),
            Column("PROVIDER"),
            Column("SCOPE", prose=True),
            Column("USED"),
            Column("OWNER"),
            Column("REASON", prose=True),
        ],
        [
            (
                f"ends {relative(one['expires_at'], now)}",
                one["provider"],
                where(one["location"]),
                f"{one['used']} of {one['machines']}" + (", all" if one["used"] >= one["machines"] else ""),
                one["owner"],
                one["reason"],
            )
            for one in overridden
        ],
    )


def _print_ticks(last: Sequence[Mapping[str, Any]], now: datetime) -> None:
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
                relative(one["ended_at"], now),
                one["loop"].capitalize(),
                one["provider"],
                None if one["outcome"] == "Expired" else span(one["seconds"]),
                one["outcome"] if one["outcome"] == "Succeeded" else Text(one["outcome"], "red"),
                one["cause"] or ", ".join(did(one["counts"])),
            )
            for one in last
        ],
    )


def did(counts: Mapping[str, float]) -> Iterator[str]:
    """Yield what is not 0, in the order of the metrics."""
    for metric in Metric:
        if count := counts.get(metric.value):
            words = metric.value.removesuffix("_seconds").replace("_", " ")
            yield f"{words} {span(count)}" if metric.unit == "Seconds" else f"{count:g} {words}"
