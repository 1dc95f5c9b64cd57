"""The command that tells how the fleet is, and what is held up."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.text import Text
from shepherd_core.bmdb.listings import provisioning
from shepherd_core.bmdb.machines import queries
from shepherd_core.bmdb.recovery import overrides, suspension
from shepherd_core.bmdb.work.work import HealthTimeouts
from shepherd_core.domain.states import State
from shepherd_core.rules.circuit_breaker import where
from shepherd_core.settings.functions import load

from shepherdctl.database import bmdb
from shepherdctl.formats import relative, span
from shepherdctl.output import Column, Form, Output, counted, document, note, table
from shepherdctl.state import Settings


def status(output: Output = Form.TABLE) -> None:
    """
    Tell how many machines are in which state, where the Recoverer holds back, and what waits for the limit of machines.

    It holds back where so many machines are silent at once that the fault is
    more likely ours than theirs, and reboots none there: the figures that decided
    it are told. Holds that ended within a day are told too, since silence is
    counted from their end; and overrides, by which an operator lets some machines
    be recovered all the same (shepherdctl recovery). What waits for
    SHEPHERD_MAX_MACHINES is told as the Provisioner saw it last.

    Examples:
      shepherdctl status
      shepherdctl status -o json | jq '[.holds[] | select(.ended_at == null)]'
    """
    (settings,) = load(Settings)
    with bmdb(settings) as connection:
        silence = HealthTimeouts(
            startup_timeout_seconds=settings.startup_timeout_seconds,
            heartbeat_timeout_seconds=settings.heartbeat_timeout_seconds,
        )
        counts = queries.count_machines(connection, silence)
        held = suspension.suspensions(connection)
        overridden = overrides.overrides(connection)
        waiting = provisioning.waiting(connection)
        paused = queries.pauses(connection)
        now = queries.now(connection)
    if output is Form.JSON:
        document(
            {
                "machines": counts,
                "holds": held,
                "overrides": overridden,
                "waiting": waiting,
                "pauses": len(paused),
            }
        )
        return
    _count(counts)
    _tell(held, now)
    _tell_overrides(overridden, now)
    _tell_waiting(waiting, now)
    if paused:
        note(f"{counted(len(paused), 'pause')} in force: see shepherdctl pauses")


def _count(counts: Sequence[Mapping[str, Any]]) -> None:
    """Print a line for each provider, with those states that occur."""
    held_up = ("being_worked_on", "backing_off", "paused")
    columns = [
        Column("PROVIDER"),
        Column("MACHINES", number=True),
        *(Column(name.replace("_", " ").upper(), number=True) for name in (*State, *held_up)),
    ]
    rows = []
    for provider in sorted({count["provider"] for count in counts}):
        of_it = {count["state"]: count for count in counts if count["provider"] == provider}
        machines = [of_it[state]["machines"] if state in of_it else None for state in State]
        styled = [
            Text(str(number), "red") if state is State.UNHEALTHY and number else number
            for state, number in zip(State, machines, strict=True)
        ]
        totals = [sum(count[name] for count in of_it.values()) or None for name in held_up]
        rows.append((provider, sum(number or 0 for number in machines), *styled, *totals))
    table(columns, rows)
    if not rows:
        note("there are no machines")


def _tell(held: Sequence[Mapping[str, Any]], now: datetime) -> None:
    """Print where recovery is held back, or was."""
    table(
        [Column("RECOVERY"), Column("PROVIDER"), Column("WHERE", prose=True), Column("BECAUSE", prose=True)],
        [
            (
                Text(f"held back for {span((now - hold['suspended_at']).total_seconds())}", "red")
                if hold["ended_at"] is None
                else f"was held back until {relative(hold['ended_at'], now)}",
                hold["provider"],
                where(hold["location"]),
                hold["reason"],
            )
            for hold in held
        ],
    )


def _tell_waiting(waiting: Sequence[Mapping[str, Any]], now: datetime) -> None:
    """Print where the limit of machines keeps places at the provider unused."""
    table(
        [Column("WAITING", number=True), Column("PROVIDER"), Column("BECAUSE", prose=True), Column("SEEN")],
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


def _tell_overrides(overridden: Sequence[Mapping[str, Any]], now: datetime) -> None:
    """Print where an operator lets the Recoverer go on, and for how many machines more."""
    table(
        [
            Column("OVERRIDE"),
            Column("PROVIDER"),
            Column("WHERE", prose=True),
            Column("TAKEN"),
            Column("OWNER"),
            Column("REASON", prose=True),
        ],
        [
            (
                f"ends {relative(one['expires_at'], now)}",
                one["provider"],
                where(one["location"]),
                f"{one['used']} of {one['machines']}" + (", used up" if one["used"] >= one["machines"] else ""),
                one["owner"],
                one["reason"],
            )
            for one in overridden
        ],
    )
