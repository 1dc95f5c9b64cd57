"""The state of a machine, described for operators and as JSON. The BMDB decides it (the view ``machine_states``)."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from rich.text import Text
from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.machines import lookup
from shepherd_core.bmdb.machines.lookup import ShownMachine
from shepherd_core.bmdb.machines.pauses import Pause, pauses_in_force
from shepherd_core.bmdb.machines.search import FoundMachine
from shepherd_core.bmdb.wire import server
from shepherd_core.domain.errors.bmdb import MachineUnknown
from shepherd_core.domain.states import State

from shepherdctl.output.formats import in_full, relative, span
from shepherdctl.output.json_fields import in_words

STYLES = {
    State.RUNNING: "green",
    State.INSTALLED: "green",
    State.UNHEALTHY: "red",
    State.FAILED: "red",
    State.QUARANTINED: "red",
    State.NEEDS_AGENT: "yellow",
}


@dataclass(frozen=True, slots=True)
class Observer:
    """The facts that a description needs besides the machine."""

    now: datetime
    """At the database."""
    pauses: Sequence[Pause]
    """Those in force."""

    def pauses_of(self, machine: FoundMachine) -> list[Pause]:
        """Return the pauses that cover the machine now, according to the BMDB."""
        return [pause for pause in self.pauses if pause.pause_id in machine.pause_ids]

    def describe(self, machine: FoundMachine) -> Text:
        """Return the state in words, with the work, backoff and pauses that delay the machine."""
        state = machine.state
        parts = [state.value.replace("_", " ") + self._detail(state, machine)]
        if machine.being_worked_on:
            parts.append("being worked on")
        if machine.backing_off and machine.backoff_until is not None:
            parts.append(f"backing off for {span((machine.backoff_until - self.now).total_seconds())}")
        if pauses := self.pauses_of(machine):
            parts.append("paused by " + ", ".join(sorted({pause.owner for pause in pauses})))
        return Text(", ".join(parts), style=STYLES.get(state, ""))

    def _detail(self, state: State, machine: FoundMachine) -> str:
        started, heartbeat = machine.agent_started_at, machine.agent_heartbeat_at
        match state:
            case State.STARTING if started is not None:
                return f", agent started {relative(started, self.now)}, no heartbeat yet"
            case State.RUNNING if heartbeat is not None:
                return f", heartbeat {relative(heartbeat, self.now)}"
            case State.UNHEALTHY if started is not None:
                return f", no heartbeat for {span((self.now - max(started, heartbeat or started)).total_seconds())}"
            case State.QUARANTINED if machine.quarantined_at is not None:
                return f" for {span((self.now - machine.quarantined_at).total_seconds())}"
            case _:
                return ""


def observe_machine(connection: Connection, name: str) -> tuple[ShownMachine, Observer]:
    """
    Return the record of the machine called *name*, and the observer that describes it.

    Raises:
        MachineUnknown: no machine matches, or more than one does.
    """
    machine = lookup.show_machine(connection, lookup.find_machine(connection, name))
    return machine, Observer(server.now(connection), pauses_in_force(connection))


def called(connection: Connection, name: str) -> tuple[UUID, str]:
    """
    Return the id of the machine called *name*, and both its names. For one that is gone, *name* is its whole id.

    Raises:
        MachineUnknown: no machine matches, or more than one does.
    """
    try:
        machine_id = lookup.find_machine(connection, name)
    except MachineUnknown:
        with suppress(ValueError):
            return UUID(name), name
        raise
    return machine_id, in_full(lookup.show_machine(connection, machine_id).provider_id, machine_id)


def with_pauses(machine: FoundMachine, observer: Observer) -> dict[str, Any]:
    """Return *machine* as JSON shows it: with the pauses that cover it."""
    pauses = observer.pauses_of(machine)
    shown = {name: value for name, value in in_words(machine).items() if name != "pause_ids"}
    return {**shown, "paused": bool(pauses), "pauses": pauses}
