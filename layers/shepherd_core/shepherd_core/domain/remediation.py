"""The remediation steps and policies, and the records of past attempts that a machine's history holds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING
from uuid import UUID

from shepherd_core.domain.budget import WHOLE_PROVIDER
from shepherd_core.domain.errors import Fault, TimeLimitExceeded
from shepherd_core.domain.errors.kinds import FailureKind
from shepherd_core.domain.errors.provider import NotSupported, ProviderRefused
from shepherd_core.domain.machine import WorkEvent
from shepherd_core.domain.provider import Capability
from shepherd_core.domain.record import record

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    from shepherd_core.domain.clock import Permission
    from shepherd_core.domain.machine import ProviderId
    from shepherd_core.domain.provider import Provider
    from shepherd_core.domain.records import BadAgent

    Take = Callable[[ProviderId, Permission], None]
    """Takes a step on a machine. As a method of ``Provider``: confirms the permission just before its request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepKind:
    """
    One kind of remediation step, as the rules and the Recoverer know it.

    The Recoverer is given how those are taken that have an effect outside: by asking the provider
    (``provider_steps``), or in another way, such as a message.

    By name, others know ``QUARANTINE``, which takes a machine from the loops; the two that a look decides on
    (``loops.look``); and ``REBOOT`` and ``POWER_CYCLE``, which are commands of operators too.
    """

    name: str
    needs: Capability | None = None
    """
    The capability of the provider, which is asked for it. That interrupts the machine, so it is looked at first.

    None: the provider is not asked. Its outages do not matter, and nothing is interrupted.
    """
    reboots: bool = True
    """The machine boots: the next agent start waits for that, and the budget counts the reboot."""
    loses_agent: bool = True
    """
    The machine needs an agent start afterwards; true of every step with which it boots. If false, its agent may report
    again, and the next step is taken if it does not.
    """
    loses_host_key: bool = False
    """The machine may have another SSH host key afterwards: the next contact is a first contact."""


RESTART_AGENT = StepKind(name="restart-agent", reboots=False)
"""Let the Initializer start a new agent; the machine itself is left alone."""
AWAIT_INSTALLATION = StepKind(name="await-installation", reboots=False, loses_agent=False)
"""Leave the machine alone, because a look saw that an installation goes on. No policy contains it."""
REBOOT = StepKind(name="reboot", needs=Capability.REBOOT)
POWER_CYCLE = StepKind(name="power-cycle", needs=Capability.POWER_CYCLE)
REINSTALL = StepKind(name="reinstall", needs=Capability.REINSTALL, loses_host_key=True)
"""Everything on the machine is lost."""
RELEASE = StepKind(name="release", needs=Capability.RELEASE, loses_host_key=True)
"""Return the machine to the provider for good: only one that it reports as failed. Asking again does no harm."""
QUARANTINE = StepKind(name="quarantine", reboots=False, loses_agent=False)
"""Leave the machine alone until an operator ends the quarantine. The last step of every policy."""

STEPS = {each.name: each for each in (RESTART_AGENT, REBOOT, POWER_CYCLE, REINSTALL, RELEASE, QUARANTINE)}
"""All kinds of steps of a policy, by name, from gentle to violent."""
STEPS_IF_UNHEALTHY = tuple(name for name in STEPS if name != RELEASE.name)
STEPS_IF_FAILED = (REINSTALL.name, RELEASE.name, QUARANTINE.name)
"""For a machine that its provider reports as failed for good."""


def provider_steps(provider: Provider) -> dict[StepKind, Take]:
    """Return how the steps are taken that need a capability; the provider may lack it."""

    def release(provider_id: ProviderId, permission: Permission) -> None:
        permission.confirm()
        try:
            provider.release(provider_id, permission.deadline)
        except (ProviderRefused, NotSupported, TimeLimitExceeded):
            permission.declined()
            raise

    return {
        REBOOT: provider.reboot,
        POWER_CYCLE: provider.power_cycle,
        REINSTALL: provider.reinstall,
        RELEASE: release,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long to wait after a step, in seconds."""

    boot_wait: float = 120
    """Until the first agent start is tried: most machines take at least that long to boot."""
    grace: float = 1_800
    """For the machine to come back; then the next step may be taken. Three agent starts fit in."""
    cooldown: float = 600
    """Until another step may be taken, whether the machine came back or not."""


USUAL_TIMEOUTS = Timeouts()
"""Those of a step for which the policy names no others."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a remediation policy, and how often it is taken."""

    kind: StepKind
    attempts: int
    timeouts: Timeouts

    @property
    def name(self) -> str:
        """Return the name of the kind."""
        return self.kind.name


class AgentState(StrEnum):
    """A machine's answer about its agent."""

    RUNS = "runs"
    INSTALLS = "installs"
    """It runs, and an installation that it started goes on."""
    ENDED = "ended"


@record
class HistoryLine:
    """A line of a machine's history that is about its recovery."""

    machine_id: UUID
    event: WorkEvent
    at: datetime
    step: str | None = None
    kind: FailureKind | None = None
    """The failure."""
    fault: Fault | None = None
    """Who is to blame for that."""
    seen: AgentState | None = None
    """The finding of a look; None: it found nothing, or this is no look."""
    others_taken: bool = False
    """The provider took steps on other machines within the hour before this failure, and within the hour after it."""
    session_id: UUID | None = None
    """The session that worked on the machine."""


@dataclass(frozen=True, slots=True)
class PastAttempt:
    """An attempt on record. It counts from the moment it began, unless the step is known not to have been taken."""

    step: str
    at: datetime
    failed: FailureKind | None = None
    """The failure; None: nothing failed, or the outcome is unknown."""
    concluded: bool = False
    """Its end is on record. If not, the Recoverer was killed or failed, perhaps after the step was taken."""
    counts: bool = True
    session_id: UUID | None = None
    """The session that began it."""


@dataclass(frozen=True, slots=True)
class LookTarget:
    """A machine to look at over SSH before it is interrupted."""

    address: str
    host_key: str
    """The pinned one."""
    before: Counter[AgentState | None]
    """The findings of the last day after which the machine was left alone, and how often."""


@dataclass(frozen=True, slots=True)
class NextStep:
    """The step to take on a machine now."""

    step: Step
    number: int
    """Of the attempt at this step; 1 is the first."""
    concludes: bool = False
    """The step was started earlier and may have been taken. It is not repeated; only wait for the machine."""
    summary: str = ""
    """The attempts before quarantine; human-readable."""
    healthy_until: datetime | None = None
    """Until when the machine was healthy, if its policy starts over with this step."""
    look: LookTarget | None = None
    """Look at this machine first; None: do not."""
    location: str = WHOLE_PROVIDER
    """Of the machine, whose budget counts."""
    confirmed: bool = False
    """An earlier look found the machine dead too."""
    failed: bool = False
    """Its provider reports the machine as failed for good, and is asked again just before the step."""
    looked: str | None = None
    """The outcome of the look, human-readable."""
    seen: AgentState | None = None
    """The finding of the look; None: it found nothing, or there was none."""
    look_error: Exception | None = None
    """Why the look saw nothing."""
    bad_agent: BadAgent | None = None
    """No step: the machine does not come back because of this agent."""
    alive: bool = False
    """The look saw that the machine is alive: at most its agent is restarted, which is no attempt."""

    @property
    def interrupts(self) -> bool:
        """Whether this interrupts the machine."""
        return self.step.kind.needs is not None and not (self.alive or self.concludes)

    def __str__(self) -> str:
        """Return the decision, human-readable."""
        if self.bad_agent is not None:
            return f"no step: {self.bad_agent}"
        if self.step.kind is QUARANTINE:
            return f"{self.step.name}: {self.summary}"
        if self.concludes:
            return f"wait for the outcome of {self.step.name}"
        if self.alive:
            return f"{self.step.name}: {self.looked}"
        condition = " unless SSH finds it alive" if self.look is not None and self.looked is None else ""
        return f"{self.step.name}, attempt {self.number} of {self.step.attempts}{condition}"
