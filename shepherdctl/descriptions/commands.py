"""What an operator would type next, for one machine, a list or the fleet: whole commands, to copy."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from shepherd_core.domain.errors.kinds import FailureKind
from shepherd_core.domain.states import State

from shepherdctl.options import REASON_TO_WRITE
from shepherdctl.output.formats import scope_in_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shepherd_core.bmdb.machines.lookup import ShownMachine
    from shepherd_core.bmdb.machines.search import Search

    from shepherdctl.descriptions.state import Observer

Command = tuple[str, str]
"""A command, and what it does."""

OF_FLEET: tuple[Command, ...] = (
    ("shepherdctl status", "the same in the terminal"),
    ("shepherdctl causes", "what fails across the fleet, and what to do about it"),
    ("shepherdctl reconcile", "what differs between the provider and the BMDB; asks the provider"),
)
_WHY = ("--reason", REASON_TO_WRITE)


def line(*words: object) -> str:
    """Return a command, quoted for the shell: a name from outside may be anything."""
    return shlex.join(["shepherdctl", *map(str, words)])


def of_machine(machine: ShownMachine, observer: Observer) -> list[Command]:
    """Return the commands that an operator would type next."""
    name, state, pauses = machine.machine_id, machine.state, observer.pauses_of(machine)
    logs = (line("logs", name), "what the functions logged about it in the last hour")
    if state in (State.FORGOTTEN, State.RELEASED):
        return [logs]
    commands: list[Command] = []
    if state == State.QUARANTINED:
        commands.append((line("machine", "unquarantine", name, *_WHY), "after the repair: start an agent again"))
    if machine.backing_off or any(backoff.until > observer.now for backoff in machine.backoffs):
        text = "end its backoffs, so that the loops try again now"
        commands.append((line("machine", "retry", name, *_WHY), text))
    for pause in pauses:
        scope = (
            ""
            if pause.machine_id
            else f" of {scope_in_words(None, pause.process, pause.provider, pause.location, pause.with_labels)}"
        )
        commands.append((line("resume", pause.pause_id), f"end {pause.owner}'s pause{scope}: {pause.reason}"))
    if any(backoff.kind is FailureKind.SSH_HOST_KEY_CHANGED for backoff in machine.backoffs):
        text = "if its host key changed on purpose: trust the next one"
        commands.append((line("machine", "forget-host-key", name, *_WHY), text))
    if not pauses:
        commands.append((line("pause", "--machine", name, *_WHY), "keep the loops away from it"))
    if machine.release_asked_at is not None:
        if machine.release_accepted_at is None:
            text = "cancel its release, if it has not happened"
            commands.append((line("machine", "release", name, "--cancel", *_WHY), text))
    elif machine.provider is not None:
        commands += [
            (line("machine", "reboot", name, *_WHY), "reboot it, if the provider can"),
            (line("machine", "release", name, *_WHY), "give it back to the provider: all data on it is lost"),
        ]
    return [*commands, logs]


def of_search(search: Search, filters: Mapping[str, Sequence[str]], order: str | None) -> list[Command]:
    """
    Return the commands for all machines that match *search*; *filters* are its filters as text, by name.

    There are none if a filter cannot be typed: a terminal would act on its control characters.
    """
    if not all(value.isprintable() for values in filters.values() for value in values):
        return []
    chosen = tuple(_options(filters))

    def among(*states: State) -> bool:
        return bool(chosen) and (not search.states or not set(states).isdisjoint(search.states))

    sort = () if order is None else ("--sort", order)
    commands = [(line("machine", "list", *chosen, *sort), "the same in the terminal; with -o json for programs")]
    if not chosen:
        commands.append((line("pause", "--all", *_WHY), "keep the loops away from everything"))
    elif search.paused:
        text = "end the pauses of each machine; those of a provider or a loop stay"
        commands.append((line("resume", *chosen), text))
    else:
        text = "keep the loops away from " + ("these machines, and from later ones" if search.wide else "each")
        commands.append((line("pause", *chosen, *_WHY), text))
    if among(State.NEEDS_AGENT, State.UNHEALTHY):
        text = "end their backoffs, so that the loops try again now"
        commands.append((line("machine", "retry", *chosen, *_WHY), text))
    if among(State.QUARANTINED):
        text = "after the repair: start agents again on those in quarantine"
        commands.append((line("machine", "unquarantine", *chosen, *_WHY), text))
    if among(*set(State) - {State.CREATING}):
        commands += [
            (line("machine", "reboot", *chosen, *_WHY), "reboot each, if the provider can"),
            (line("machine", "release", *chosen, *_WHY), "give each back to the provider: all data on it is lost"),
        ]
    return commands


def _options(filters: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield *filters* as options: they have the same names."""
    for name, values in filters.items():
        for value in values:
            if name == "paused":
                yield "--paused" if value == "yes" else "--not-paused"
            else:
                yield from (f"--{name.replace('_', '-')}", value)
