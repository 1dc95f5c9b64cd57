"""The steps of recovery, and what a machine's history says of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime


class StepName(StrEnum):
    """What can be done about a machine that is silent."""

    RESTART_AGENT = "restart-agent"
    """Let the Initializer start a new agent; the machine itself is left alone."""
    REBOOT = "reboot"
    POWER_CYCLE = "power-cycle"
    REINSTALL = "reinstall"
    """Everything on the machine is lost."""
    QUARANTINE = "quarantine"
    """Leave it alone until an operator has looked at it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long to wait after a step, in seconds."""

    settle: float = 120
    """Until an agent start is tried."""
    grace: float = 1800
    """For the machine to come back; then the next step may be taken."""
    cooldown: float = 600
    """Until another step may be taken, should the machine have come back or not."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a ladder, and how often it is taken."""

    step: StepName
    attempts: int = 1
    waits: Timeouts = Timeouts()


@dataclass(frozen=True, slots=True)
class HistoryLine:
    """A line of a machine's history that is about its recovery."""

    event: str
    at: datetime
    rung: str | None = None
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class PastAttempt:
    """An attempt that counts: from when it was begun, unless it is known that the step was not taken."""

    step: str
    at: datetime
    failed: str | None = None
    """The cause; None: it did not fail, or nobody knows."""
    concluded: bool = False
    """It is known what became of it. If not, whoever made it died, perhaps after the step was taken."""
    refused: bool = False
    """The provider certainly did not do it, with this machine."""


@dataclass(frozen=True, slots=True)
class NextStep:
    """What is to be done about a machine."""

    rung: Step
    number: int
    """Of the attempts at this rung; 1 is the first."""
    concludes: bool = False
    """The step was begun before and may have been taken: it is not repeated, but the machine waited for."""
    skipped: tuple[tuple[StepName, str], ...] = ()
    """Rungs below that were passed over since the last attempt, and why."""
    told: str = ""
    """What was done before, in words."""

    def __str__(self) -> str:
        """Return it in words."""
        if self.rung.step is StepName.QUARANTINE:
            return f"{self.rung.step}: {self.told}"
        if self.concludes:
            return f"wait for what came of {self.rung.step}"
        return f"{self.rung.step}, attempt {self.number} of {self.rung.attempts}"
