"""When a machine needs recovery, as the Recoverer's settings have it and the views of the BMDB read it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthTimeouts:
    """The seconds after which a machine with an agent is unhealthy, and a machine without one did not come back."""

    startup_timeout_seconds: float
    """From the start of an agent that never reported."""
    heartbeat_timeout_seconds: float
    """From the last heartbeat."""
    grace_seconds: float
    """From a recovery step or the end of a quarantine."""
    failed_steps: bool = False
    """Steps are taken on machines that their provider reports as failed for good."""
