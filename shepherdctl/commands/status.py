"""The command that sums up the state of the fleet."""

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

import typer
from rich.text import Text
from shepherd_core.bmdb.listings.provisioning import Waiting
from shepherd_core.bmdb.machines.overview import FleetCount
from shepherd_core.bmdb.recovery.budget import ShownBudget
from shepherd_core.bmdb.work.ticks import Tick
from shepherd_core.domain.budget import where
from shepherd_core.domain.states import State

from shepherdctl import fleet_status
from shepherdctl.database import bmdb
from shepherdctl.descriptions.condition import EXIT_STATUS, Condition
from shepherdctl.descriptions.conditions import FleetStatus, pace
from shepherdctl.descriptions.cures import told
from shepherdctl.output import prometheus, watching
from shepherdctl.output.conditions import described, note_pauses, print_conditions
from shepherdctl.output.formats import did, relative, span
from shepherdctl.output.printing import Column, Form, counted, document, note, output_option, table
from shepherdctl.output.prometheus import DELAYS, counts_by_state
from shepherdctl.output.watching import WatchOption

_UNWELL = (State.QUARANTINED, State.UNHEALTHY, State.NEEDS_AGENT, State.STARTING)
_WORST = 5
"""Locations that are shown."""


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
    watch: WatchOption = None,
) -> None:
    """
    Count the machines by state, and show where recovery is limited and what each loop did last.

    A line for each thing that needs attention comes first, the most urgent on
    top, with what to do about it. RECOVERY shows the locations and providers
    where fewer machines than usual may be interrupted in an hour, because so many
    are dead that the fault is probably not in them; REASON has the figures, and
    WAITING how many machines wait for that. They are looked at meanwhile, and
    agents that ended are started. WORST LOCATIONS are those with the most
    machines that are not well. UNUSED counts the places at the provider that stay
    unused because SHEPHERD_MAX_MACHINES is reached. LAST TICK is when the last
    recorded invocation of a loop ended, and DID what it counted.

    Exit status: 0 nothing needs attention, 3 something does, 1 failure, 2 wrong
    usage. docs/conditions lists the conditions. Set SHEPHERD_LOOP_MINUTES if
    the loops do not run every minute. Members of pg_read_all_stats see the
    transactions of all users, others only their own.

    Examples:
      shepherdctl status
      shepherdctl status --watch 10s
      shepherdctl status -o json | jq '.conditions[]'
      shepherdctl status -o json | jq '.ticks[] | select(.outcome != "Succeeded")'
      shepherdctl status -o prometheus | grep condition
    """
    with bmdb() as connection:

        def show(_: int) -> Callable[[], None]:
            fleet = fleet_status.read(connection)
            return partial(_print, fleet, fleet_status.judged(fleet))

        if watch is not None:
            watching.watch(watch, show, table=output is StatusForm.TABLE)
        fleet = fleet_status.read(connection)
    wrong = fleet_status.judged(fleet)
    if output is StatusForm.JSON:
        document(
            {
                "conditions": described(wrong),
                "machines": counts_by_state(fleet.machines),
                "budgets": fleet.budgets,
                "waiting": fleet.waiting,
                "pauses": fleet.pauses,
                "oldest_transaction": fleet.oldest_transaction,
                "sees_all_transactions": fleet.limited_user is None,
                "ticks": fleet.ticks,
            }
        )
    elif output is StatusForm.PROMETHEUS:
        sys.stdout.write(prometheus.text(fleet, wrong))
    else:
        _print(fleet, wrong)
    if wrong:
        raise typer.Exit(EXIT_STATUS)


def _print(fleet: FleetStatus, wrong: Sequence[Condition]) -> None:
    print_conditions(wrong, fleet.now)
    _print_counts(counts_by_state(fleet.machines))
    _print_places(fleet.machines)
    _print_budgets(fleet.budgets, fleet.now)
    _print_waiting(fleet.waiting, fleet.now)
    _print_ticks(fleet.ticks, fleet.now)
    note_pauses(fleet.pauses)
    if fleet.limited_user is not None:
        note(
            "open transactions of other users are not shown; an administrator can change that: "
            'GRANT pg_read_all_stats TO "{}"'.format(fleet.limited_user.replace('"', '""'))
        )


def _print_counts(counts: Sequence[Mapping[str, Any]]) -> None:
    """Print a line for each provider, with a column for each state that occurs."""
    columns = [
        Column("PROVIDER"),
        Column("MACHINES", number=True),
        *(Column(name.replace("_", " ").upper(), number=True) for name in (*State, *DELAYS)),
    ]
    rows = []
    for provider in sorted({each["provider"] for each in counts}):
        of_it = {each["state"]: each for each in counts if each["provider"] == provider}
        machines = [of_it[state]["machines"] if state in of_it else None for state in State]
        styled = [
            Text(str(number), "red") if state is State.UNHEALTHY and number else number
            for state, number in zip(State, machines, strict=True)
        ]
        totals = [sum(each[name] for each in of_it.values()) or None for name in DELAYS]
        rows.append((provider, sum(number or 0 for number in machines), *styled, *totals))
    table(columns, rows)
    if not rows:
        note("there are no machines")


def _print_places(counts: Sequence[FleetCount]) -> None:
    """Print the locations with the most machines that are not well; nothing if all are at one."""
    unwell: dict[tuple[str, str], Counter[State]] = defaultdict(Counter)
    totals: Counter[tuple[str, str]] = Counter()
    for each in (one for one in counts if one.location):
        place = each.provider, str(each.location)
        totals[place] += each.machines
        if each.state in _UNWELL:
            unwell[place][each.state] += each.machines
    if len(totals) < 2:  # noqa: PLR2004 - the counts above say the same
        return
    worst = sorted(unwell, key=lambda place: (-unwell[place].total(), place))
    table(
        [
            Column("WORST LOCATIONS"),
            Column("PROVIDER"),
            Column("MACHINES", number=True),
            *(Column(state.replace("_", " ").upper(), number=True) for state in _UNWELL),
        ],
        [
            (place[1], place[0], totals[place], *(unwell[place][state] or None for state in _UNWELL))
            for place in worst[:_WORST]
        ],
    )
    if len(worst) > _WORST:
        note(f"{counted(len(worst) - _WORST, 'more location')} with machines that are not well")


def _print_budgets(budgets: Sequence[ShownBudget], now: datetime) -> None:
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
                Text(pace(one.per_hour), "red"),
                relative(one.began_at, now),
                one.provider,
                where(one.location),
                one.waiting,
                one.reason,
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
