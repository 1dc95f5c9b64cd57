"""The live view of a simulated environment: a line for each event, and a table of the machines below them."""

from __future__ import annotations

import queue
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.live import Live
from rich.table import Table
from rich.text import Text
from shepherd_core.domain.clock import SystemClock

from shepherdctl.output.printing import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console
    from shepherd_core.domain.clock import Clock

    from simulator.environment.environment import Environment
    from simulator.environment.status import MachineStatus
    from simulator.lambda_.service import Invocation

_REFRESH_SECONDS = 0.25
_EVENT_LINES = 12
"""Lines of the terminal that are left to events, however many machines there are."""
_FRAME_LINES = 7
"""Lines of the table that are no machine: title, head, borders, the count of further machines and the work."""
_COUNTED = {
    "provisioner": {
        "created": "creates {}",
        "intents_completed": "records {} of an interrupted creation",
        "intents_abandoned": "abandons the creation of {}",
        "drifted": "finds drift at {}",
    },
    "initializer": {
        "finished": "starts the agent on {}",
        "failed": "cannot start the agent on {} yet",
        "canceled": "runs out of time for {}",
    },
    "recoverer": {
        "found_alive": "finds {} alive over SSH: restarts agents",
        "finished": "takes a recovery step at {}",
        "failed": "fails to take a recovery step at {}",
        "canceled": "takes no step at {} after all",
    },
}
_NOT_BOOTED = "(not booted yet: tried again after a backoff)"
FAULTS = {
    "stop_agents": "agent stops",
    "hang": "machine hangs",
    "fill_disk": "disk is full",
    "change_host_key": "host key changes",
}
"""Faults in words, by the methods of ``MachinePool``."""
_STYLES = {"running": "green", "no heartbeat": "red", "backing off": "yellow"}


@dataclass
class LiveView:
    """
    Shows the events of an environment in their order, and on a terminal a table of its machines below them.

    Events are printed above the table, so that they stay in the terminal; the table shrinks to leave room for them.
    """

    console: Console
    live: Live | None
    recovery_limited: bool = False
    """Whether the Recoverer limited recovery in its last invocation."""
    clock: Clock = field(default_factory=SystemClock)
    _pending: queue.SimpleQueue[tuple[float, Invocation | tuple[str, str]]] = field(default_factory=queue.SimpleQueue)
    """Events that were not printed yet, each with its time by the clock."""
    _explained: set[str] = field(default_factory=set)

    def on_invocation(self, invocation: Invocation) -> None:
        """Take note of the outcome of an invocation. For any thread."""
        self._pending.put((self.clock.monotonic(), invocation))

    def on_power_change(self, provider_id: str, change: str) -> None:
        """Take note of a change of a machine's power. For any thread."""
        self._pending.put((self.clock.monotonic(), (provider_id, change)))

    def say(self, environment: Environment, text: str, source: str = "") -> None:
        """Print an event that happens now, after the pending ones."""
        self._print_pending(environment)
        self._print(environment.elapsed, text, source)

    def refresh(self, environment: Environment, statuses: list[MachineStatus]) -> None:
        """Print the events since the last time, and update the table."""
        self._print_pending(environment)
        if self.live is not None:
            room = max(1, self.console.height - _EVENT_LINES - _FRAME_LINES)
            self.live.update(_table(environment, statuses, room, recovery_limited=self.recovery_limited))

    def _print_pending(self, environment: Environment) -> None:
        while not self._pending.empty():
            moment, event = self._pending.get()
            at = environment.elapsed - (self.clock.monotonic() - moment)
            if isinstance(event, tuple):
                provider_id, change = event
                self._print(at, f"{provider_id[:8]}: {change}", "power")
                self._explain(at, environment.machine_source.power_note)
            else:
                self._print_invocation(environment, at, event)

    def _print_invocation(self, environment: Environment, at: float, invocation: Invocation) -> None:
        function, result = invocation.function, dict(invocation.result or {})
        if function == "recoverer" and invocation.result is not None:
            limited = bool(result.get("recovery_limited"))
            if limited != self.recovery_limited:
                self.recovery_limited = limited
                because = "limits recovery: too many do not report, likely an outage"
                self._print(at, because if limited else "recovers as usual again", function)
            result["finished"] = result.get("finished", 0) - result.get("found_alive", 0)
        texts = _COUNTED.get(function, {})
        did = [text.format(counted(int(result[name]), "machine")) for name, text in texts.items() if result.get(name)]
        did += [invocation.error.splitlines()[0]] if invocation.error else []
        for text in did:
            self._print(at, text, function)
        if function == "provisioner" and result.get("created"):
            self._explain(at, environment.machine_source.creation_note)
        if function == "initializer" and result.get("failed"):
            self._explain(at, _NOT_BOOTED)

    def _explain(self, at: float, text: str) -> None:
        """Print *text*, unless it was printed before."""
        if text and text not in self._explained:
            self._explained.add(text)
            self._print(at, text)

    def _print(self, at: float, text: str, source: str = "") -> None:
        line = f"{max(0.0, at):5.1f} s  {source:<11}  {text}"
        if self.live is None:
            self.console.print(line, highlight=False, markup=False, soft_wrap=True)
        else:
            self.console.print(Text(line))  # options of this call would also apply to the table below


def live_view(console: Console) -> LiveView:
    """Return the view of an environment: with a table, if *console* is a terminal."""
    return LiveView(console, Live(console=console, refresh_per_second=4) if console.is_terminal else None)


def watch(
    environment: Environment, view: LiveView, condition: Callable[[list[MachineStatus]], bool], seconds: float
) -> bool:
    """Show the environment until *condition* holds; False: it did not within *seconds*."""
    from simulator.environment.status import machine_statuses  # noqa: PLC0415 - slow to import

    end = environment.elapsed + seconds
    while environment.elapsed < end:
        for provider_id, fault in environment.inject_due_faults():
            view.say(environment, f"{provider_id[:8]}: {FAULTS[fault]}", "fault")
        statuses = machine_statuses(environment)
        view.refresh(environment, statuses)
        if condition(statuses):
            return True
        SystemClock().sleep(_REFRESH_SECONDS)
    return False


def finish(environment: Environment, view: LiveView) -> None:
    """Stop the schedules, wait for the invocations under way, and show what they did."""
    from simulator.environment.status import machine_statuses  # noqa: PLC0415 - slow to import

    environment.schedules.close()
    view.refresh(environment, machine_statuses(environment))


def _table(
    environment: Environment, statuses: list[MachineStatus], room: int, *, recovery_limited: bool = False
) -> Table:
    """Return a table of at most *room* machines: where they do not all fit, those that do not run come first."""
    running = sum(machine.running for machine in statuses)
    counts = f"{counted(len(statuses), 'machine')}, {running} running"
    if unused := environment.settings.machines - len(statuses):
        counts += f", {unused} yet to be created"
    title = Text(f"minute {environment.minutes:.0f} of the fleet: {counts}")
    if recovery_limited:
        title.append(", recovery limited", "bold red")
    table = Table(title=title)
    for column in ("machine", "provider id", "power", "state in the BMDB"):
        table.add_column(column, no_wrap=True)
    table.add_column("heartbeat", justify="right", no_wrap=True)
    shown = statuses if len(statuses) <= room else sorted(statuses, key=lambda machine: machine.running)[:room]
    sessions = [(session.component_name.partition("/")[0], session) for session in environment.sessions()]
    workers = {machine_id: loop for loop, session in sessions for machine_id in session.machine_ids}
    for machine in shown:
        fault = FAULTS.get(environment.faulted.get(machine.provider_id, ""), "")
        if fault and environment.pool.reboots(machine.provider_id):
            fault = "rebooted"
        state, style = machine.state, _STYLES.get(machine.state)
        if machine.worked_on:
            worker = workers.get(machine.machine_id)
            state, style = f"{worker} at work" if worker else "being worked on", "cyan"
        table.add_row(
            str(machine.machine_id)[:8],
            machine.provider_id[:8],
            machine.power + (f" ({fault})" if fault else ""),
            Text(state, style or ""),
            "" if machine.heartbeat_age is None else f"{machine.heartbeat_age / 60:.0f} min ago",
        )
    at_work = Counter[str]()
    for loop, session in sessions:
        at_work[loop] += session.machines
    work = ", ".join(loop + f" ({counted(n, 'machine')})" * bool(n) for loop, n in sorted(at_work.items()))
    more = f"and {counted(len(statuses) - len(shown), 'more machine')}\n" if len(shown) < len(statuses) else ""
    table.caption = f"{more}at work: {work or 'nothing'}"
    return table
