"""The budget of recovery: how many machines may be interrupted in an hour, and the figures that decide on it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum

WHOLE_PROVIDER = ""
"""Stands for the provider where a location is named. Machines without a location count for the provider alone."""


def where(location: str) -> str:
    """Return the human-readable name of *location*, which may be ``WHOLE_PROVIDER``."""
    return f"location {location}" if location != WHOLE_PROVIDER else "the whole provider"


class Brake(StrEnum):
    """Why a budget is smaller than usual."""

    SILENT = "silent"
    """No machine of the provider reports."""
    LOSING = "losing"
    """Most of the machines that report had lost requests before."""
    SHARE = "share"
    """Too much of the fleet is dead, or was interrupted in the last six hours."""
    NUMBER = "number"
    """So many machines were interrupted that the budget is used up."""
    SSH = "ssh"
    """SSH does not reach the machines that should have come back."""


@dataclass(frozen=True, slots=True)
class FleetFigures:
    """The figures of a fleet, usually that of one location: its machines that have an agent or should have one back."""

    fleet: int = 0
    """All of them; those whose recovery is paused never count as dead."""
    reporting: int = 0
    """With a heartbeat within their timeout."""
    dead: int = 0
    """Unhealthy and not found alive by a look, or not back in time; and those interrupted in the last six hours."""
    heard: int = 0
    """With a heartbeat within half of the policy's timeout."""
    losing: int = 0
    """Those of them whose agent had lost requests before that heartbeat."""
    steps: int = 0
    """Machines that were interrupted in the last hour."""
    steps_six_hours: int = 0
    """Machines that were interrupted in the last six hours."""
    unreached: int = 0
    """Machines that should have come back in the last six hours, and that SSH does not reach."""
    reached: int = 0
    """Machines on which SSH started an agent in the last hour."""

    def __add__(self, other: FleetFigures) -> FleetFigures:
        """Return the figures of both together."""
        return FleetFigures(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


@dataclass(frozen=True, slots=True)
class Budget:
    """How many machines may be interrupted in an hour at one location, or at the provider."""

    per_hour: int
    brake: Brake | None = None
    """Why it is smaller than usual, or used up; None: neither."""
    reason: str | None = None
    """The same with figures, human-readable."""
    lasts: bool = False
    """The brake is over, and lasts for two more minutes."""
