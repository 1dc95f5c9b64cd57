"""
The changes that the console offers: the actions of the commands, on one machine, pause or provider id.

Each becomes a plan, which can be run as a dry run and then for good.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shepherd_core.bmdb.listings.decommissioning import RemovalRequest
from shepherd_core.bmdb.machines import lookup, pauses
from shepherd_core.rules.drift import FRESH_SECONDS

from shepherdctl import actions
from shepherdctl.console import forms
from shepherdctl.database import bmdb
from shepherdctl.options import PROVIDERS, SYSTEM_OWNERS, process_of_loop, reason_text
from shepherdctl.output.formats import duration, loop_name, scope_in_words, span
from shepherdctl.output.printing import one_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from uuid import UUID

    from shepherd_core.settings.functions.bmdb import BmdbSettings


@dataclass(frozen=True, slots=True)
class Shown:
    """A table of what a change would do, or did."""

    heads: tuple[str, ...]
    rows: Sequence[tuple[object, ...]]
    note: str = ""
    possible: bool = True
    """Whether there is something to do."""
    typed: str | None = None
    """The text that the operator must type to confirm it; None: a button is enough."""


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """A change that is ready to be run."""

    command: str
    """The command line that does the same."""
    run: Callable[[bool], Shown]
    """Carries it out; with True, only shows what it would do."""
    two_phase: bool = False
    """Whether it asks the provider, and compares again by itself before it changes anything."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The form that an operator sent, and who it is."""

    form: Mapping[str, str]
    operator: str
    settings: BmdbSettings

    @property
    def reason(self) -> str:
        """Return why the change is made."""
        return forms.required(self.form, "reason", reason_text)

    @property
    def machine_id(self) -> UUID:
        """Return the machine."""
        return forms.required(self.form, "machine", forms.uuid)

    @property
    def order(self) -> RemovalRequest:
        """Return the request to remove the machine."""
        alive = self.form.get("despite_heartbeat") == "yes"
        return RemovalRequest(self.operator, self.reason, FRESH_SECONDS, despite_heartbeat=alive)


def command(words: str, *names: object, **options: object) -> str:
    """Return a command as an operator types it; options that are None, "" or False are left out."""
    given = [*words.split(), *map(str, names)]
    for name, value in options.items():
        if value:
            given += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return "shepherdctl " + shlex.join(given)


def pause(asked: Asked) -> ChangePlan:
    """Return the plan to pause a machine, a provider or a loop, or everything."""
    machine_id = forms.optional(asked.form, "machine", forms.uuid)
    process = forms.optional(asked.form, "loop", process_of_loop)
    provider = None if machine_id else forms.optional(asked.form, "provider", one_of(*PROVIDERS))
    seconds = forms.optional(asked.form, "for", duration)
    reason = asked.reason
    scope = scope_in_words({"machine_id": machine_id, "process": process, "provider": provider})
    shown = Shown(
        ("Scope", "Lasts"),
        [(scope, "until resumed" if seconds is None else f"for {span(seconds)}")],
        "Work that has begun continues.",
    )

    def run(dry_run: bool) -> Shown:
        with bmdb(asked.settings) as connection:
            machine_ids = [] if machine_id is None else [lookup.find_machine(connection, str(machine_id))]
            if not dry_run:
                actions.pause(
                    connection,
                    machine_ids,
                    process=process,
                    provider=provider,
                    owner=asked.operator,
                    reason=reason,
                    seconds=seconds,
                )
        return shown

    everything = not (machine_id or process or provider)
    given = {"machine": machine_id, "loop": asked.form.get("loop"), "provider": provider, "all": everything}
    return ChangePlan(command("pause", **given, **{"for": asked.form.get("for")}, reason=reason), run)


def resume(asked: Asked) -> ChangePlan:
    """Return the plan to end a pause."""
    pause_id = forms.required(asked.form, "pause", forms.uuid)

    def run(dry_run: bool) -> Shown:
        with bmdb(asked.settings) as connection:
            found = [one for one in pauses.pauses_in_force(connection) if one["pause_id"] == pause_id]
            ended = found if dry_run else [one for one in found if pauses.resume(connection, pause_id, asked.operator)]
        note = "" if ended else "This pause is not in force any more."
        if any(one["owner"] in SYSTEM_OWNERS for one in ended):
            note = "This pause ends by itself: the machine was set aside, or is being released."
        rows = [(scope_in_words(one), one["owner"], one["created_at"], one["reason"]) for one in ended]
        return Shown(("Scope", "By", "Created", "Reason"), rows, note, bool(ended))

    return ChangePlan(command("resume", pause_id), run)


def retry(asked: Asked) -> ChangePlan:
    """Return the plan to end the backoffs of a machine."""
    machine_id, reason = asked.machine_id, asked.reason
    process = forms.optional(asked.form, "loop", process_of_loop)

    def run(dry_run: bool) -> Shown:
        with bmdb(asked.settings) as connection:
            ended = actions.retry(
                connection, machine_id, process=process, owner=asked.operator, reason=reason, dry_run=dry_run
            )
        rows = [(loop_name(one["process"]), one["until"], one["cause"]) for one in ended]
        note = "" if ended else "No backoff is in force."
        return Shown(("Loop", "Was to end", "Cause"), rows, note, bool(ended))

    return ChangePlan(command("machine retry", machine_id, loop=asked.form.get("loop"), reason=reason), run)


def unquarantine(asked: Asked) -> ChangePlan:
    """Return the plan to end the quarantine of a machine."""
    machine_id, reason = asked.machine_id, asked.reason

    def run(dry_run: bool) -> Shown:
        with bmdb(asked.settings) as connection:
            ended = actions.unquarantine(connection, machine_id, owner=asked.operator, reason=reason, dry_run=dry_run)
        return Shown(("Machine", "Quarantined", "Cause"), [(machine_id, ended["quarantined_at"], ended["cause"])])

    return ChangePlan(command("machine unquarantine", machine_id, reason=reason), run)
