"""The state of a machine, from what the BMDB knows about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.text import Text
from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.machines import queries
from shepherd_core.domain.states import MachineFacts, State, state_of
from shepherd_core.settings.functions import BmdbSettings, GraceSettings, HealthSettings

from shepherdctl.formats import relative, span


class Settings(BmdbSettings, HealthSettings, GraceSettings):
    """What commands need that tell states."""


_STYLES = {
    State.RUNNING: "green",
    State.INSTALLED: "green",
    State.UNHEALTHY: "red",
    State.QUARANTINED: "red",
    State.NEEDS_AGENT: "yellow",
}


@dataclass(frozen=True, slots=True)
class Observer:
    """What a state is judged by besides the machine itself."""

    now: datetime
    """At the database."""
    silence: HealthSettings
    pauses: Sequence[Mapping[str, Any]]
    """Those in force, as ``queries.pauses`` returns them."""

    def state(self, machine: Mapping[str, Any]) -> State:
        """Return the state of a record of ``queries.list_machines`` or ``show_machine``."""
        return state_of(
            _facts(machine),
            self.now,
            heartbeat_timeout_seconds=self.silence.heartbeat_timeout_seconds,
            startup_timeout_seconds=self.silence.startup_timeout_seconds,
        )

    def pauses_of(self, machine: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Return the pauses that keep loops away from the machine now, as the BMDB judged that."""
        return [pause for pause in self.pauses if pause["pause_id"] in machine["pause_ids"]]

    def words(self, machine: Mapping[str, Any]) -> Text:
        """Return the state, and what holds the machine up, in words."""
        state = self.state(machine)
        parts = [self._words(state, machine)]
        if machine["being_worked_on"]:
            parts.append("being worked on")
        if machine["backing_off"]:
            parts.append(f"backing off for {span((machine['backoff_until'] - self.now).total_seconds())}")
        if pauses := self.pauses_of(machine):
            parts.append("paused by " + ", ".join(sorted({pause["owner"] for pause in pauses})))
        return Text(", ".join(parts), style=_STYLES.get(state, ""))

    def _words(self, state: State, machine: Mapping[str, Any]) -> str:  # noqa: PLR0911 - a table
        started, heartbeat = machine["agent_started_at"], _facts(machine).agent_heartbeat_at
        match state:
            case State.CREATING:
                return "being created"
            case State.NEEDS_AGENT:
                return "needs agent"
            case State.STARTING:
                return f"starting, agent started {relative(started, self.now)}, no heartbeat yet"
            case State.RUNNING:
                return f"running, heartbeat {relative(heartbeat or started, self.now)}"
            case State.UNHEALTHY:
                return f"unhealthy, no heartbeat for {span((self.now - (heartbeat or started)).total_seconds())}"
            case State.INSTALLED | State.FORGOTTEN | State.RELEASED:
                return state.value
            case State.QUARANTINED:
                return f"quarantined for {span((self.now - machine['quarantined_at']).total_seconds())}"


def observed(connection: Connection, name: str, settings: Settings) -> tuple[dict[str, Any], Observer]:
    """
    Return what is known about the machine that people call *name*, and what its state is judged by.

    Raises:
        MachineUnknown: no machine is called so, or more than one.
    """
    found = queries.show_machine(connection, queries.find_machine(connection, name))
    observer = Observer(queries.now(connection), settings, queries.pauses(connection))
    found["being_worked_on"] = bool(found["work"])
    found["backing_off"] = found["backoff_until"] is not None and found["backoff_until"] > observer.now
    return found, observer


def with_state(machine: Mapping[str, Any], observer: Observer) -> dict[str, Any]:
    """Return *machine* as JSON shows it: with its state and the pauses that cover it."""
    pauses = observer.pauses_of(machine)
    told = {name: value for name, value in machine.items() if name != "pause_ids"}
    return {**told, "state": observer.state(machine), "paused": bool(pauses), "pauses": pauses}


def _facts(machine: Mapping[str, Any]) -> MachineFacts:
    decommissioned = machine.get("decommissioned_how")  # only show_machine returns those that departed
    return MachineFacts(
        decommissioned=None if decommissioned is None else State(decommissioned.lower()),
        provided=machine["provider"] is not None,
        quarantined=machine["quarantined_at"] is not None,
        installed=machine["needs"] is None,
        agent_started_at=machine["agent_started_at"],
        last_heartbeat_at=machine["agent_heartbeat_at"],
    )
