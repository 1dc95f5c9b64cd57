"""The states of a machine. A state is never stored: the view ``machine_states`` derives it from the facts."""

from enum import StrEnum


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
    FAILED = "failed"
    """It has no agent, and its provider says that it failed for good. No loop works on it."""
    QUARANTINED = "quarantined"
    """
    Recovery has ended without success, or functions died while they worked on it.

    No loop works on the machine until an operator ends the quarantine.
    """
    FORGOTTEN = "forgotten"
    """An operator decommissioned it, because the provider no longer has it."""
    RELEASED = "released"
    """It was given back to the provider."""
