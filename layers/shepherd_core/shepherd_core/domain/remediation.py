"""The remediation steps, each in one object, and the records of past attempts that a machine's history holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shepherd_core.domain.provider import Capability

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from shepherd_core.domain.clock import Deadline
    from shepherd_core.domain.machine import ProviderId
    from shepherd_core.domain.provider import Provider


@dataclass(frozen=True, slots=True, kw_only=True)
class StepKind:
    """All that the rules, the Recoverer and the BMDB know about one kind of remediation step."""

    name: str
    needs: Capability | None = None
    """The capability of the provider that it needs; None: none."""
    take: Callable[[Provider, ProviderId, Deadline], None] | None = None
    """Asks the provider for it; None: the provider is not asked. Raises what the provider's method does."""
    reboots: bool = True
    """The machine boots: the next agent start waits for that, and the circuit breaker counts the reboot."""


RESTART_AGENT = StepKind(name="restart-agent", reboots=False)
"""Let the Initializer start a new agent; the machine itself is left alone."""
REBOOT = StepKind(
    name="reboot",
    needs=Capability.REBOOT,
    take=lambda provider, machine, deadline: provider.reboot(machine, deadline),
)
POWER_CYCLE = StepKind(
    name="power-cycle",
    needs=Capability.POWER_CYCLE,
    take=lambda provider, machine, deadline: provider.power_cycle(machine, deadline),
)
REINSTALL = StepKind(
    name="reinstall",
    needs=Capability.REINSTALL,
    take=lambda provider, machine, deadline: provider.reinstall(machine, deadline),
)
"""Everything on the machine is lost."""
QUARANTINE = StepKind(name="quarantine", reboots=False)
"""Leave it alone until an operator has looked at it. Ends every policy."""

STEPS = {each.name: each for each in (RESTART_AGENT, REBOOT, POWER_CYCLE, REINSTALL, QUARANTINE)}
"""All kinds of steps, by name, from gentle to violent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long to wait after a step, in seconds."""

    boot_wait: float = 120
    """Until the first agent start is tried."""
    grace: float = 1800
    """For the machine to come back; then the next step may be taken."""
    cooldown: float = 600
    """Until another step may be taken, whether the machine came back or not."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a remediation policy, and how often it is taken."""

    kind: StepKind
    attempts: int = 1
    timeouts: Timeouts = Timeouts()

    @property
    def name(self) -> str:
        """Return the name of the kind."""
        return self.kind.name


@dataclass(frozen=True, slots=True)
class HistoryLine:
    """A line of a machine's history that is about its recovery."""

    event: str
    at: datetime
    step: str | None = None
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class PastAttempt:
    """An attempt that counts: from the moment it began, unless the step is known not to have been taken."""

    step: str
    at: datetime
    failed: str | None = None
    """The cause; None: it did not fail, or its outcome is unknown."""
    concluded: bool = False
    """Its outcome is on record. If not, the Recoverer that made it was killed, perhaps after the step was taken."""
    refused: bool = False
    """The provider certainly did not take the step on this machine."""


@dataclass(frozen=True, slots=True)
class NextStep:
    """The step to take on a machine now."""

    step: Step
    number: int
    """Of the attempt at this step; 1 is the first."""
    concludes: bool = False
    """The step was started earlier and may have been taken. It is not repeated; only wait for the machine."""
    skipped: tuple[tuple[str, str], ...] = ()
    """Earlier steps of the policy that were skipped since the last attempt, and why."""
    summary: str = ""
    """What was tried before, for quarantine; human-readable."""

    def __str__(self) -> str:
        """Return the decision, human-readable."""
        if self.step.kind is QUARANTINE:
            return f"{self.step.name}: {self.summary}"
        if self.concludes:
            return f"wait for the outcome of {self.step.name}"
        return f"{self.step.name}, attempt {self.number} of {self.step.attempts}"
