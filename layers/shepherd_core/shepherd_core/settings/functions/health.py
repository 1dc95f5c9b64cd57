"""The settings by which machines count as unhealthy, and recovery is limited."""

from __future__ import annotations

from pydantic import Field

from shepherd_core.rules.budget import BudgetLimits
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


class BudgetSettings(Settings):
    """How many machines the Recoverer may interrupt."""

    table = "recoverer"

    max_steps_per_hour: int = Field(
        20,
        ge=0,
        le=10_000,
        description="Maximum number of machines, per provider and location, that recovery may interrupt in an hour; in "
        "six hours, twice as many.",
    )
    max_dead_share: float = Field(
        0.2,
        ge=0,
        le=1,
        description="Above this share of dead machines, per provider and location, recovery interrupts one machine in "
        "an hour; 1: no limit.",
    )

    @property
    def budget_limits(self) -> BudgetLimits:
        """Return the bounds of the budget."""
        return BudgetLimits(self.max_steps_per_hour, self.max_dead_share)
