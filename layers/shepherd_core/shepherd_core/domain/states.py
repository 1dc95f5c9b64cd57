"""
The states of a machine, and the transitions between them.

A state is never stored: ``state_of`` computes it from the facts, and the
view ``machine_need`` does the same in the database. The command
line, the metrics and the docs use these words. ARCHITECTURE.md shows
``TRANSITIONS`` as a picture; tests hold picture and view to this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime


class State(StrEnum):
    """The state of a machine. Pause, backoff and open work are not states; they are shown in addition."""

    CREATING = "creating"
    """The Provisioner decided to create it; the provider has not confirmed it yet."""
    NEEDS_AGENT = "needs_agent"
    """It has no agent: it was just created, or the Recoverer has just taken a step."""
    STARTING = "starting"
    """Its agent was started and has not reported yet."""
    RUNNING = "running"
    """Its agent reports."""
    UNHEALTHY = "unhealthy"
    """No heartbeat for longer than the heartbeat timeout, or none at all within the startup timeout."""
    INSTALLED = "installed"
    """The operating system that an operator asked for is installed. No loop works on it any more."""
    QUARANTINED = "quarantined"
    """
    Recovery has ended without success, or functions died while they worked on it.

    No loop works on the machine until an operator ends the quarantine.
    """
    FORGOTTEN = "forgotten"
    """An operator decommissioned it, because the provider no longer has it."""
    RELEASED = "released"
    """It was given back to the provider."""


@dataclass(frozen=True, slots=True)
class Transition:
    """A transition from one state to the next, and its cause."""

    before: State
    after: State
    by: str


TRANSITIONS = (
    Transition(State.CREATING, State.NEEDS_AGENT, "Provisioner: the provider has created it"),
    Transition(State.NEEDS_AGENT, State.STARTING, "Initializer: agent started"),
    Transition(
        State.NEEDS_AGENT, State.QUARANTINED, "Recoverer: did not come back and no step left, or it kills functions"
    ),
    Transition(State.STARTING, State.RUNNING, "agent: first heartbeat"),
    Transition(State.STARTING, State.UNHEALTHY, "startup timeout"),
    Transition(State.RUNNING, State.UNHEALTHY, "heartbeat timeout"),
    Transition(State.RUNNING, State.INSTALLED, "agent: installation succeeded"),
    Transition(State.UNHEALTHY, State.RUNNING, "agent: heartbeat"),
    Transition(State.UNHEALTHY, State.NEEDS_AGENT, "Recoverer: step taken"),
    Transition(State.UNHEALTHY, State.QUARANTINED, "Recoverer: no step left, or it kills functions"),
    Transition(State.QUARANTINED, State.NEEDS_AGENT, "operator: machine unquarantine"),
    Transition(State.INSTALLED, State.RUNNING, "operator: machine install"),
)
"""The usual transitions. An operator may also release or forget a machine in any state but the last two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """The facts in the BMDB that a machine's state depends on."""

    decommissioned: State | None = None
    """FORGOTTEN or RELEASED; None: neither."""
    provided: bool = True
    """The provider has confirmed that it exists."""
    quarantined: bool = False
    installed: bool = False
    """The installation that was asked for last succeeded."""
    agent_started_at: datetime | None = None
    """None: it has no agent."""
    last_heartbeat_at: datetime | None = None
    """Of any agent; a heartbeat from before ``agent_started_at`` says nothing about the present one."""
    unhealthy_at: datetime | None = None
    """When its timeout is over, according to the Recoverer's policy; None: it has no agent, or there is no policy."""

    @property
    def agent_heartbeat_at(self) -> datetime | None:
        """Return the last heartbeat of the present agent."""
        started, heartbeat = self.agent_started_at, self.last_heartbeat_at
        return None if started is None or heartbeat is None or heartbeat < started else heartbeat


def state_of(facts: MachineFacts, now: datetime) -> State:
    """Return the state of a machine at *now*, which is the database's time."""
    if facts.decommissioned is not None:
        return facts.decommissioned
    for state, holds in (
        (State.CREATING, not facts.provided),
        (State.QUARANTINED, facts.quarantined),
        (State.INSTALLED, facts.installed),
    ):
        if holds:
            return state
    if facts.agent_started_at is None:
        return State.NEEDS_AGENT
    if facts.unhealthy_at is not None and facts.unhealthy_at <= now:
        return State.UNHEALTHY
    return State.STARTING if facts.agent_heartbeat_at is None else State.RUNNING
