"""The page of one machine."""

from __future__ import annotations

import shlex
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from shepherd_core.bmdb.agents import installation
from shepherd_core.bmdb.agents.hardware import hardware_report
from shepherd_core.bmdb.recovery import explain
from shepherd_core.bmdb.recovery.explain import Block
from shepherd_core.bmdb.work.history import read_history
from shepherd_core.domain.states import State

from shepherdctl.console.pages import charts
from shepherdctl.descriptions import hardware, installations
from shepherdctl.descriptions.cures import cures
from shepherdctl.descriptions.history import fold
from shepherdctl.descriptions.machine import rows
from shepherdctl.descriptions.state import observe_machine
from shepherdctl.output.formats import loop_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shepherd_core.bmdb.connection import Connection

    from shepherdctl.descriptions.state import Observer

EVENTS = 500
DAYS = {"1": 1, "7": 7, "30": 30}
"""The lengths of the timeline, by the value in the address."""


def machine(connection: Connection, name: str, days: str | None) -> dict[str, Any]:
    """
    Return the template's context for the machine called *name*; the timeline goes back *days*, a key of DAYS, if given.

    Raises:
        MachineUnknown: no machine is called so, or more than one.
    """
    found, observer = observe_machine(connection, name)
    machine_id = found["machine_id"]
    verdicts, now = explain.why(connection, machine_id)
    report = hardware_report(connection, machine_id)
    requested = installation.load(connection, machine_id)
    history = read_history(connection, machine_id, EVENTS)[::-1]
    found["installation"] = installations.plain(requested)
    evidence = found.pop("quarantine_evidence")
    found["quarantine_evidence"] = None if evidence is None else evidence.splitlines()
    found["hardware"] = None
    return {
        "now": now,
        "machine": found,
        "state": found["state"],
        "described": observer.describe(found).plain,
        "facts": [(name, str(value)) for name, value in rows(found, observer) if value is not None],
        "times": [(name.replace("_", " "), value) for name, value in found.items() if isinstance(value, datetime)],
        "verdicts": [
            (
                loop_name(verdict.process),
                verdict,
                None if verdict.blocked_by is Block.NOT_DUE else verdict.until,
            )
            for verdict in verdicts
        ],
        "hardware": [] if report is None else hardware.rows(hardware.plain(*report), observer.now),
        "timeline": charts.timeline(found, history, _since(found, history, days, now), now),
        "days": days,
        "history": [
            {"event": each.event, "loop": loop_name(each.event["process"]), "cause": each.cause}
            for each in reversed(fold(history))
        ],
        "cut": len(history) == EVENTS,
        "cures": cures(each["failed_cause"] for each in history),
        "commands": _commands(found, observer),
    }


def _since(found: Mapping[str, Any], history: Sequence[Mapping[str, Any]], days: str | None, now: datetime) -> datetime:
    """Return where the timeline begins: *days* ago, or at the first event, at least an hour ago."""
    if days is not None:
        return now - timedelta(days=DAYS[days])
    first: datetime = history[0]["timestamp"] if history else found["machine_created_at"]
    return min(first, now - timedelta(hours=1))


def _commands(found: Mapping[str, Any], observer: Observer) -> list[tuple[str, str, dict[str, str] | None]]:
    """Return the commands that an operator would type next, with what they do, and how the console names the change."""
    name, state = str(found["machine_id"]), found["state"]
    reason = '--reason "…"'
    commands: list[tuple[str, str, dict[str, str] | None]] = []

    def change(kind: str) -> dict[str, str]:
        return {"kind": kind, "machine": name}

    if state == State.QUARANTINED:
        text = "after the repair: start an agent again"
        commands.append((f"shepherdctl machine unquarantine {name} {reason}", text, change("unquarantine")))
    if found["backing_off"] or any(backoff["until"] > observer.now for backoff in found["backoffs"]):
        text = "end its backoffs, so that the loops try again now"
        commands.append((f"shepherdctl machine retry {name} {reason}", text, change("retry")))
    commands += [
        (
            f"shepherdctl resume {pause['pause_id']}",
            f"end the pause of {pause['owner']}: {pause['reason']}",
            {"kind": "resume", "pause": str(pause["pause_id"])},
        )
        for pause in observer.pauses_of(found)
    ]
    causes = " ".join(str(backoff["cause"]) for backoff in found["backoffs"])
    if "SshHostKeyChanged" in causes:
        commands.append(
            (
                f"shepherdctl machine forget-host-key {name} {reason}",
                "if its host key changed on purpose: trust the next one",
                None,
            )
        )
    commands.append((f"shepherdctl logs {name}", "what the functions logged about it in the last hour", None))
    if state in (State.FORGOTTEN, State.RELEASED):
        return commands
    if found["provider"] is not None:
        commands += [
            (f"shepherdctl pause --machine {name} {reason}", "keep the loops away from it", change("pause")),
            (f"shepherdctl machine reboot {name} {reason} --dry-run", "reboot it, if the provider can", None),
            (
                f"shepherdctl machine release {shlex.quote(found['provider_id'])} {reason} --dry-run",
                "give it back to the provider",
                change("release"),
            ),
        ]
    return commands
