"""
How long the functions wait, and how much one invocation takes on.

No operator can choose these better: they follow from each other and from what providers and networks do. Only a
simulation, in which time runs faster, has others; it gives them to ``wiring.pace``.
"""

from __future__ import annotations

from dataclasses import dataclass

from shepherd_core.domain.backoff import Backoff

_BACKOFF_EXPONENT = 1.2
"""The factor by which a backoff grows with each failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Times in seconds, unless a field says otherwise."""

    session_seconds: float = 60
    """Without a renewal after which a session expires. It is renewed three times as often, between statements."""
    machine_seconds: float = 120
    """Of work on one machine: a slow SSH login and an agent's answer, or a look and a provider's slow answer."""
    connect_seconds: float = 2
    """For an SSH connection. A machine that is up answers within a second."""
    answer_seconds: float = 60
    """For the answer of an agent that has just been uploaded; it inspects the hardware first."""
    look_seconds: float = 10
    """For the look before a step that interrupts a machine, so that most of the time is left for the step."""
    start_backoff_seconds: float = 300
    """After the first agent start that failed. The usual cause is a machine that still boots."""
    start_backoff_maximum_seconds: float = 14_400
    """Four hours: a machine that was repaired by hand is taken up the same day."""
    step_backoff_seconds: float = 60
    """After the first remediation step that failed. The usual cause is a provider that is busy."""
    step_backoff_maximum_seconds: float = 3_600
    reset_after_seconds: float = 3_600
    """For which an agent reports until its machine's policy starts over; never less than the heartbeat timeout."""
    penalty_seconds: float = 3_600
    """For which capacity is left alone after a failure, and after which a creation without a trace is abandoned."""
    chunk: int = 20
    """Machines that one invocation creates at most: as many failures may one wrong setting cause."""
    update_seconds: float = 3_600
    """After which a machine in which nothing changes is compared with the provider's listing again."""
    report_seconds: float = 5
    """The least time between two reports of an agent, but at most half of the interval; agents wait at least 10."""
    hardware_report_seconds: float = 60
    """The least time between two hardware reports of an agent, which sends one at each of its starts."""

    @property
    def start_backoff(self) -> Backoff:
        """Return the backoff of machines whose agent could not be started."""
        return Backoff(self.start_backoff_seconds, self.start_backoff_maximum_seconds, _BACKOFF_EXPONENT)

    @property
    def step_backoff(self) -> Backoff:
        """Return the backoff of machines that could not be recovered."""
        return Backoff(self.step_backoff_seconds, self.step_backoff_maximum_seconds, _BACKOFF_EXPONENT)
