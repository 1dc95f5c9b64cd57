"""The settings by which machines count as unhealthy, and recovery is suspended."""

from __future__ import annotations

from pydantic import Field

from shepherd_core.rules.circuit_breaker import BreakerLimits, Limit
from shepherd_core.settings.base import Seconds, Settings


class HealthSettings(Settings):
    """The settings by which a machine counts as unhealthy."""

    table = "recoverer"

    startup_timeout_seconds: Seconds = Field(
        1_800, description="Seconds that a started agent has for its first heartbeat before its machine is unhealthy."
    )
    heartbeat_timeout_seconds: Seconds = Field(
        600, description="Seconds without a heartbeat after which a machine is unhealthy and is recovered."
    )


class BreakerSettings(Settings):
    """When so many machines are unhealthy at once that the Recoverer suspends recovery."""

    table = "recoverer"

    breaker_max_unhealthy: int = Field(
        20,
        ge=0,
        le=1_000,
        description="Maximum number of machines, per provider or location, that may become unhealthy at once. Above "
        "it, recovery is suspended there.",
    )
    breaker_max_unhealthy_share: float = Field(
        0.2,
        ge=0,
        le=1,
        description="The same limit as a share of the machines that have ever reported; 1: no limit.",
    )
    breaker_max_never_reported: int = Field(
        20,
        ge=0,
        le=1_000,
        description="Maximum number of machines, per provider or location, whose agent may never have reported. Above "
        "it, recovery is suspended there.",
    )
    breaker_max_never_reported_share: float = Field(
        0.5,
        ge=0,
        le=1,
        description="The same limit as a share of the machines whose agent was started; 1: no limit.",
    )

    @property
    def breaker_limits(self) -> BreakerLimits:
        """Return how many machines may be unhealthy at once."""
        return BreakerLimits(
            unhealthy=Limit(self.breaker_max_unhealthy, self.breaker_max_unhealthy_share),
            never_reported=Limit(self.breaker_max_never_reported, self.breaker_max_never_reported_share),
        )
