"""The timeouts after which a machine is unhealthy, and the figures that the circuit breaker evaluates, by location."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

WHOLE_PROVIDER = ""
"""Stands for the provider where a location is named. Machines without a location count for the provider alone."""


def where(location: str) -> str:
    """Return the human-readable name of *location*, which may be ``WHOLE_PROVIDER``."""
    return f"location {location}" if location != WHOLE_PROVIDER else "the whole provider"


class Unhealthy(StrEnum):
    """Why a machine counts as unhealthy; the value completes a sentence."""

    STOPPED_REPORTING = "stopped reporting"
    """Its agent reported before, and has not for longer than the heartbeat timeout."""
    NEVER_REPORTED = "never reported"
    """Its agent was started, and has not reported within the startup timeout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthTimeouts:
    """The seconds after which a machine with an agent is unhealthy, and a machine without one did not come back."""

    startup_timeout_seconds: float
    """From the start of an agent that never reported."""
    heartbeat_timeout_seconds: float
    """From the last heartbeat."""
    grace_seconds: float
    """From a recovery step or the end of a quarantine."""


@dataclass(slots=True)
class LocationStats:
    """The figures of machines that have an agent, usually those of one location."""

    reporting: int = 0
    """Machines of the sample with a heartbeat within half of their heartbeat timeout."""
    late: Counter[Unhealthy] = field(default_factory=Counter)
    """Machines of the sample without a heartbeat for half of their timeout. Paused machines, and those whose recovery
    failed since, are left out: they say nothing about an outage."""
    due: Counter[Unhealthy] = field(default_factory=Counter)
    """Machines that are due for recovery now, without those whose recovery failed and those that were rebooted
    recently or did not come back after a reboot."""
    recovered: Counter[Unhealthy] = field(default_factory=Counter)
    """Machines that are being recovered, or were rebooted in the last hour."""
    uncounted: Counter[Unhealthy] = field(default_factory=Counter)
    """Machines rebooted in the last hour that are not in the sample as reporting or late: they have no agent, or a
    fresh one."""
    recovered_in_trouble: Counter[Unhealthy] = field(default_factory=Counter)
    """Machines rebooted in the last six hours, where recovery is suspended or was within the last hour."""
    heard: int = 0
    """Machines of the sample with a heartbeat within half of ``heartbeat_timeout_seconds``."""
    losing: int = 0
    """Those of them whose agent had lost requests before that heartbeat."""

    def __add__(self, other: LocationStats) -> LocationStats:
        """Return the figures of both together."""
        return LocationStats(
            self.reporting + other.reporting,
            self.late + other.late,
            self.due + other.due,
            self.recovered + other.recovered,
            self.uncounted + other.uncounted,
            self.recovered_in_trouble + other.recovered_in_trouble,
            self.heard + other.heard,
            self.losing + other.losing,
        )


@dataclass(slots=True)
class SshReach:
    """The numbers of machines that SSH reaches, and does not reach although a step should have brought them back."""

    unreached: int = 0
    """Machines that SSH does not reach."""
    reached: int = 0
    """Machines on which SSH started an agent in the last hour."""

    def __add__(self, other: SshReach) -> SshReach:
        """Return the figures of both together."""
        return SshReach(self.unreached + other.unreached, self.reached + other.reached)
