"""The page of one machine."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from shepherd_core.bmdb.agents import installation
from shepherd_core.bmdb.agents.hardware import hardware_report
from shepherd_core.bmdb.machines import lookup
from shepherd_core.bmdb.machines.pauses import pauses_in_force
from shepherd_core.bmdb.recovery import explain
from shepherd_core.bmdb.recovery.explain import Block
from shepherd_core.bmdb.wire import server
from shepherd_core.bmdb.work.history import HistoryEvent, read_history

from shepherdctl.console.pages import charts
from shepherdctl.descriptions import commands, hardware, installations
from shepherdctl.descriptions.cures import cures
from shepherdctl.descriptions.history import fold
from shepherdctl.descriptions.machine import rows
from shepherdctl.descriptions.state import Observer
from shepherdctl.output.formats import loop_name
from shepherdctl.output.printing import columns

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.bmdb.machines.lookup import ShownMachine

EVENTS = 200
DAYS = {"1": 1, "7": 7, "30": 30}
"""The lengths of the timeline, by the value in the address."""


def machine(connection: Connection, machine_id: UUID, days: str | None) -> dict[str, Any]:
    """
    Return the template's context for a machine; the timeline goes back *days*, a key of DAYS, if given.

    Raises:
        MachineUnknown: there is no such machine.
    """
    found = lookup.show_machine(connection, machine_id)
    observer = Observer(server.now(connection), pauses_in_force(connection))
    verdicts, now = explain.why(connection, machine_id), observer.now
    report = hardware_report(connection, machine_id)
    requested = installations.plain(installation.load(connection, machine_id))
    history = read_history(connection, machine_id, EVENTS)[::-1]
    sent = None if report is None else hardware.plain(report.raw, report.reported_at)
    told, moments = rows(found, observer, requested, None), columns(found).items()
    return {
        "now": now,
        "machine": found,
        "state": found.state,
        "described": observer.describe(found).plain,
        "facts": [(name, str(value)) for name, value in told if value is not None],
        "times": [(name.replace("_", " "), value) for name, value in moments if isinstance(value, datetime)],
        "verdicts": [
            (
                loop_name(verdict.process),
                verdict,
                None if verdict.blocked_by is Block.NOT_DUE else verdict.until,
            )
            for verdict in verdicts
        ],
        "hardware": [] if sent is None else hardware.rows(sent, observer.now),
        "timeline": charts.timeline(found, history, _since(found, history, days, now), now),
        "days": days,
        "history": [
            {"event": each.event, "loop": loop_name(each.event.process), "cause": each.cause}
            for each in reversed(fold(history))
        ],
        "cut": len(history) == EVENTS,
        "cures": cures(each.kind for each in history),
        "commands": commands.of_machine(found, observer),
    }


def _since(found: ShownMachine, history: Sequence[HistoryEvent], days: str | None, now: datetime) -> datetime:
    """Return where the timeline begins: *days* ago, or at the first event, at least an hour ago."""
    if days is not None:
        return now - timedelta(days=DAYS[days])
    first: datetime = history[0].timestamp if history else found.machine_created_at
    return min(first, now - timedelta(hours=1))
