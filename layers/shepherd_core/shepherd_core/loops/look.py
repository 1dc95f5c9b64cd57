"""
The look at a machine that is about to be interrupted, which may be alive although no heartbeat arrives.

If its agent runs, its reports get lost, and a reboot would interrupt it for nothing. During
an installation the agent is not restarted either: the installation could end with it.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from shepherd_core.domain.errors import Fault, cause_of
from shepherd_core.domain.errors.machine import MachineError, SshAuthenticationFailed
from shepherd_core.domain.remediation import AWAIT_INSTALLATION, RESTART_AGENT, AgentState, Step

if TYPE_CHECKING:
    from collections.abc import Callable

    from shepherd_core.agent.takeover import Dialer
    from shepherd_core.domain.clock import Deadline
    from shepherd_core.domain.remediation import LookTarget, NextStep

TEXTS = {
    AgentState.RUNS: "it answers over SSH and its agent runs: its reports get lost",
    AgentState.ENDED: "it answers over SSH and its agent has ended",
    AgentState.INSTALLS: "it answers over SSH and an installation goes on",
}
"""The words for each finding of a look."""

_MOST = {AgentState.ENDED: 3, AgentState.INSTALLS: 24}
"""
How often in a day an agent that has ended is restarted before the policy goes on, and an installation is waited for
before its agent is restarted.
"""


class Look:
    """Looks at machines over SSH; safe to use from several threads."""

    def __init__(self, dialer: Dialer, agent_path: str, seconds: float, prepare: Callable[[Deadline], object]) -> None:
        """Look for *seconds* at most; *prepare* gets what the dialer needs, a key and processes, before they begin."""
        self._dialer = dialer
        self._path = agent_path
        self._seconds = seconds
        self._prepare = prepare

    def before(self, decision: NextStep, target: LookTarget, deadline: Deadline) -> NextStep:
        """
        Return what to do after a look at the machine: *decision*, a restart of its agent, or nothing for a while.

        Changes nothing; may run twice.

        Raises:
            ShepherdError: leave the machine alone. Either looking failed for a reason that is not the machine's fault;
                or the machine answers with its pinned host key but refuses our SSH key, which may be our mistake.
        """
        self._prepare(deadline)
        own = deadline.within(self._seconds)
        try:
            with closing(self._dialer.dial(target.address, target.host_key, own)) as connection:
                state = connection.agent_state(self._path, own)
        except MachineError as error:
            if error.fault is Fault.OURS or isinstance(error, SshAuthenticationFailed):
                raise
            return replace(decision, looked=cause_of(error).text, look_error=error)
        looked, times = TEXTS[state], target.before[state]
        if often := state in _MOST and times >= _MOST[state]:
            looked = f"{looked}, as {times} times before in the last day"
        decision = replace(decision, looked=looked, seen=state)
        if often and state is AgentState.ENDED:
            return decision
        kind = AWAIT_INSTALLATION if state is AgentState.INSTALLS and not often else RESTART_AGENT
        timeouts = replace(decision.step.timeouts, boot_wait=0.0)
        return replace(decision, step=Step(kind, 1, timeouts), number=1, alive=True)
