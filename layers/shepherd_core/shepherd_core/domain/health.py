"""How many machines report, and how many do not: the figures that the circuit breaker judges."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum


class Unhealthy(StrEnum):
    """How a machine is silent."""

    SILENT = "fell silent"
    NEVER = "never reported"


@dataclass(slots=True)
class LocationStats:
    """What is known of some machines that have an agent."""

    reporting: int = 0
    """Machines that reported lately, of the sample."""
    quiet: Counter[Unhealthy] = field(default_factory=Counter)
    """Machines that said nothing for half of the patience with them, of the sample. None that are paused, nor any
    whose recovery was tried and failed since: those are known, and accuse nobody."""
    due: Counter[Unhealthy] = field(default_factory=Counter)
    """Machines that are due for recovery now, and neither tried nor rebooted lately."""
    recovered: Counter[Unhealthy] = field(default_factory=Counter)
    """Machines that are being recovered, or were rebooted lately."""

    def __add__(self, other: LocationStats) -> LocationStats:
        """Return the figures of both together."""
        return LocationStats(
            self.reporting + other.reporting,
            self.quiet + other.quiet,
            self.due + other.due,
            self.recovered + other.recovered,
        )


@dataclass(slots=True)
class Access:
    """How SSH works for machines that should have come back after a step of recovery."""

    unreached: int = 0
    """Machines that it does not reach."""
    reached: int = 0
    """Machines on which it started an agent lately."""

    def __add__(self, other: Access) -> Access:
        """Return the figures of both together."""
        return Access(self.unreached + other.unreached, self.reached + other.reached)
