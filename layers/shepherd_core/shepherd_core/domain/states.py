"""
The states of a machine, and the transitions between them.

A state is never stored: it follows from the facts. ``state_of`` is the rule, and
the view ``machine_states`` is what the command line, the console and the metrics
read. Tests hold the view to ``state_of`` for every combination of facts,
``TRANSITIONS`` to what becomes of machines, and the picture in ARCHITECTURE.md
to ``TRANSITIONS``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from shepherd_core.domain.health import HealthTimeouts


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
    """A transition from one state to the next, and what causes it."""

    before: State | None
    """None: the BMDB has no such machine yet."""
    after: State | None
    """None: the machine is deleted from the BMDB."""
    by: str


TRANSITIONS = (
    Transition(None, State.CREATING, "Provisioner: creation begun"),
    Transition(None, State.NEEDS_AGENT, "operator: machine adopt"),
    Transition(State.CREATING, None, "Provisioner: it was not created"),
    Transition(State.CREATING, State.NEEDS_AGENT, "Provisioner: the provider has created it"),
    Transition(State.NEEDS_AGENT, State.STARTING, "Initializer: agent started"),
    Transition(
        State.NEEDS_AGENT,
        State.QUARANTINED,
        "Recoverer: did not come back and no step left, Initializer: functions died while they worked on it",
    ),
    Transition(State.STARTING, State.RUNNING, "agent: first heartbeat"),
    Transition(State.STARTING, State.INSTALLED, "agent: first heartbeat, which reports success"),
    Transition(State.STARTING, State.UNHEALTHY, "startup timeout"),
    Transition(State.STARTING, State.NEEDS_AGENT, "operator: machine reboot"),
    Transition(State.RUNNING, State.INSTALLED, "agent: installation succeeded"),
    Transition(State.RUNNING, State.UNHEALTHY, "heartbeat timeout"),
    Transition(State.RUNNING, State.NEEDS_AGENT, "operator: machine reboot"),
    Transition(State.RUNNING, State.QUARANTINED, "Recoverer: decided just before the heartbeat"),
    Transition(State.UNHEALTHY, State.STARTING, "operator: longer startup timeout"),
    Transition(State.UNHEALTHY, State.RUNNING, "agent: heartbeat"),
    Transition(State.UNHEALTHY, State.INSTALLED, "agent: heartbeat, which reports success"),
    Transition(State.UNHEALTHY, State.NEEDS_AGENT, "Recoverer: step taken"),
    Transition(
        State.UNHEALTHY, State.QUARANTINED, "Recoverer: no step left, or functions died while they worked on it"
    ),
    Transition(State.INSTALLED, State.RUNNING, "operator: machine install"),
    Transition(State.INSTALLED, State.UNHEALTHY, "operator: machine install, long after the last heartbeat"),
    Transition(State.INSTALLED, State.NEEDS_AGENT, "operator: machine install, without an agent"),
    Transition(State.INSTALLED, State.QUARANTINED, "Recoverer: decided just before the report"),
    Transition(State.QUARANTINED, State.NEEDS_AGENT, "operator: machine unquarantine"),
    Transition(State.QUARANTINED, State.INSTALLED, "operator: machine unquarantine, after a successful installation"),
)
"""All transitions but those of decommissioning: a provided machine may be forgotten or released in any state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """The facts in the BMDB that a machine's state depends on."""

    provided: bool = True
    """The provider has confirmed that it exists, and it was neither forgotten nor released."""
    decommissioned: State | None = None
    """FORGOTTEN or RELEASED; None: neither."""
    quarantined: bool = False
    requested_generation: int | None = None
    """Of the installation that was requested last."""
    installed_generation: int | None = None
    """Of the installation that was reported last, if it succeeded."""
    agent_started_at: datetime | None = None
    """None: it has no agent."""
    last_heartbeat_at: datetime | None = None
    """Of any agent; a heartbeat from before ``agent_started_at`` says nothing about the present one."""
    report_interval_seconds: int = 0
    """The longest time until the next heartbeat, according to the last one; 0: unknown."""
    timeouts: HealthTimeouts | None = None
    """The Recoverer's policy for its provider; None: there is none, and no agent is unhealthy."""


def state_of(facts: MachineFacts, now: datetime) -> State:
    """Return the state of a machine at *now*, which is the database's time."""
    if not facts.provided:
        return facts.decommissioned or State.CREATING
    if facts.quarantined:
        return State.QUARANTINED
    if facts.requested_generation is not None and facts.requested_generation == facts.installed_generation:
        return State.INSTALLED
    started, heartbeat = facts.agent_started_at, facts.last_heartbeat_at
    if started is None:
        return State.NEEDS_AGENT
    reported = heartbeat is not None and heartbeat >= started
    if facts.timeouts is not None:
        timeout = facts.timeouts.startup_timeout_seconds
        if reported:
            timeout = max(facts.timeouts.heartbeat_timeout_seconds, 2.5 * facts.report_interval_seconds)
        if max(started, heartbeat or started) + timedelta(seconds=timeout) <= now:
            return State.UNHEALTHY
    return State.RUNNING if reported else State.STARTING
