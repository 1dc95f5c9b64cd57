"""When a machine is unhealthy, and how many machines are: the figures that the circuit breaker evaluates."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from shepherd_core.domain import gaps

if TYPE_CHECKING:
    from shepherd_core.domain.gaps import Gap

_SHORTEST_WAIT_SECONDS = 5.0
"""A due row that turned out not to be due is not examined again sooner."""


class Unhealthy(StrEnum):
    """Why a machine counts as unhealthy; the value completes a sentence."""

    STOPPED_REPORTING = "stopped reporting"
    """Its agent reported before, and has not for longer than the heartbeat timeout."""
    NEVER_REPORTED = "never reported"
    """Its agent was started, and has not reported within the startup timeout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthTimeouts:
    """After how many seconds a started agent counts as unhealthy, and when its machine is recovered."""

    startup_timeout_seconds: float = 1800
    heartbeat_timeout_seconds: float = 600
    gaps: tuple[Gap, ...] = ()
    """Gaps between two snapshots. It is unknown whether heartbeats could arrive during a gap."""

    @property
    def effective_startup_timeout_seconds(self) -> float:
        """Return how long an agent that never reported must have been started before its machine is recovered."""
        return gaps.extended_timeout(self.startup_timeout_seconds, self.gaps)

    @property
    def effective_heartbeat_timeout_seconds(self) -> float:
        """Return how old the last heartbeat must be before the machine is recovered."""
        return gaps.extended_timeout(self.heartbeat_timeout_seconds, self.gaps)

    @property
    def min_overdue_seconds(self) -> float:
        """Return how long the grace of a machine that did not come back must be over before it is recovered."""
        return gaps.required_overdue(self.heartbeat_timeout_seconds, self.gaps)

    @property
    def recheck_seconds(self) -> float | None:
        """Return in how many seconds to evaluate machines again that only a gap protects; None: no gap does."""
        left = (
            gaps.recheck_after(each, self.gaps)
            for each in (self.heartbeat_timeout_seconds, self.startup_timeout_seconds)
        )
        soonest = min((each for each in left if each is not None), default=None)
        return soonest and max(_SHORTEST_WAIT_SECONDS, soonest)

    def parameters(self) -> dict[str, float | None]:
        """Return the parameters of the statements that evaluate the health of machines."""
        return {
            "recheck_seconds": self.recheck_seconds,
            "startup_timeout_seconds": self.startup_timeout_seconds,
            "heartbeat_timeout_seconds": self.heartbeat_timeout_seconds,
            "effective_startup_timeout_seconds": self.effective_startup_timeout_seconds,
            "effective_heartbeat_timeout_seconds": self.effective_heartbeat_timeout_seconds,
            "min_overdue_seconds": self.min_overdue_seconds,
        }


@dataclass(slots=True)
class LocationStats:
    """The figures of machines that have an agent, usually those of one location."""

    reporting: int = 0
    """Machines of the sample with a heartbeat within half of the heartbeat timeout."""
    unhealthy: Counter[Unhealthy] = field(default_factory=Counter)
    """Machines of the sample without a heartbeat for half of their timeout. Excluded are paused machines, and those
    whose recovery was tried and failed since: these are known, and say nothing about an outage."""
    due: Counter[Unhealthy] = field(default_factory=Counter)
    """Machines that are due for recovery now, whose recovery has not failed, and not rebooted in the last hour."""
    recovered: Counter[Unhealthy] = field(default_factory=Counter)
    """Machines that are being recovered, or were rebooted in the last hour."""

    def __add__(self, other: LocationStats) -> LocationStats:
        """Return the figures of both together."""
        return LocationStats(
            self.reporting + other.reporting,
            self.unhealthy + other.unhealthy,
            self.due + other.due,
            self.recovered + other.recovered,
        )


@dataclass(slots=True)
class Access:
    """How SSH works for machines that should have come back after a step of recovery."""

    unreached: int = 0
    """Machines that SSH does not reach."""
    reached: int = 0
    """Machines on which SSH started an agent in the last hour."""

    def __add__(self, other: Access) -> Access:
        """Return the figures of both together."""
        return Access(self.unreached + other.unreached, self.reached + other.reached)
