"""The state of a machine, from what the BMDB knows about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from rich.text import Text
from shepherd_core.settings.functions import BmdbSettings, GraceSettings, HealthSettings

from shepherdctl.times import relative, span


class Settings(BmdbSettings, HealthSettings, GraceSettings):
    """What commands need that tell states."""


class State(StrEnum):
    """Where a machine is on its way; what holds it up is told besides."""

    NOT_PROVIDED = "not_provided"
    """Its creation was decided, and is not known to have happened."""
    NEEDS_AGENT = "needs_agent"
    AGENT_STARTED = "agent_started"
    """No heartbeat yet, and still time for it."""
    AGENT_RUNNING = "agent_running"
    SILENT = "silent"
    """No heartbeat for too long: due for recovery."""
    INSTALLED = "installed"
    """The wanted operating system is installed; no loop cares for it any more."""
    QUARANTINED = "quarantined"
    """Recovery gave up on it; no loop touches it until an operator says so."""
    FORGOTTEN = "forgotten"
    """The provider had it no more, and an operator had it forgotten."""
    RELEASED = "released"
    """Given back to the provider."""


_STYLES = {
    State.AGENT_RUNNING: "green",
    State.INSTALLED: "green",
    State.SILENT: "red",
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

    def state(self, machine: Mapping[str, Any]) -> State:  # noqa: PLR0911 - a table
        """Return the state of a record of ``queries.list_machines`` or ``show_machine``."""
        if how := machine.get("departed_how"):  # only show_machine returns those that departed
            return State(how.lower())
        if machine["provider"] is None:
            return State.NOT_PROVIDED
        if machine["quarantined_at"] is not None:
            return State.QUARANTINED
        if machine["needs"] is None:
            return State.INSTALLED
        if machine["agent_started_at"] is None:
            return State.NEEDS_AGENT
        heartbeat = _heartbeat(machine)
        limit = self.silence.startup_timeout_seconds if heartbeat is None else self.silence.heartbeat_timeout_seconds
        if (self.now - (heartbeat or machine["agent_started_at"])).total_seconds() >= limit:
            return State.SILENT
        return State.AGENT_STARTED if heartbeat is None else State.AGENT_RUNNING

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
        started, heartbeat = machine["agent_started_at"], _heartbeat(machine)
        match state:
            case State.NOT_PROVIDED:
                return "not provided yet"
            case State.NEEDS_AGENT:
                return "needs agent"
            case State.AGENT_STARTED:
                return f"agent started {relative(started, self.now)}, no heartbeat yet"
            case State.AGENT_RUNNING:
                return f"agent running, heartbeat {relative(heartbeat or started, self.now)}"
            case State.SILENT:
                return f"silent for {span((self.now - (heartbeat or started)).total_seconds())}"
            case State.INSTALLED | State.FORGOTTEN | State.RELEASED:
                return state.value
            case State.QUARANTINED:
                return f"in quarantine for {span((self.now - machine['quarantined_at']).total_seconds())}"


def _heartbeat(machine: Mapping[str, Any]) -> datetime | None:
    """Return the last heartbeat of the present agent; one from before it was started says nothing about it."""
    started, heartbeat = machine["agent_started_at"], machine["agent_heartbeat_at"]
    if started is None or heartbeat is None or heartbeat < started:
        return None
    found: datetime = heartbeat
    return found
