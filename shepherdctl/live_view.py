"""What a person sees of a world while it runs."""

from __future__ import annotations

import queue
from dataclasses import dataclass, field
from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text
from shepherd_core.domain.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rich.live import Live

    from simulator.environment.environment import Environment
    from simulator.environment.status import MachineStatus
    from simulator.lambda_.service import Invocation

_LOOK_SECONDS = 0.25
_ROWS = 20
_LINES = 8
_PICTURE_COLUMNS = 96
_TOLD = ("created", "adopted", "forgotten", "finished", "failed", "canceled", "disputed")
_NO_SSH = "(no SSH before a machine has booted: it backs off and is tried again)"
_STYLES = {"agent running": "green", "agent unhealthy": "red", "backing off": "yellow", "being worked on": "cyan"}


@dataclass
class Show:
    """What a person sees while a world runs: a live table on a terminal, else a line for everything that happens."""

    console: Console
    live: Live | None
    lines: list[str] = field(default_factory=list)
    events: queue.SimpleQueue[Invocation] = field(default_factory=queue.SimpleQueue)
    explained: set[str] = field(default_factory=set)
    recovery_suspended: bool = False
    """The Recoverer held back, when it was last invoked."""

    def say(self, world: Environment, text: str) -> None:
        """Tell *text*, with the seconds that have passed."""
        self.lines.append(f"{world.elapsed:5.1f} s  {text}")
        if self.live is None:
            self.console.print(self.lines[-1], highlight=False, soft_wrap=True)

    def explain(self, world: Environment, text: str) -> None:
        """Say *text*, unless it was said before or is empty."""
        if text and text not in self.explained:
            self.explained.add(text)
            self.say(world, f"{'':<11}  {text}")

    def refresh(self, world: Environment, statuses: list[MachineStatus]) -> None:
        """Tell what the functions did since the last time, and show the machines."""
        while not world.power.empty():
            provider_id, what = world.power.get()
            self.say(world, f"{'power':<11}  {provider_id[:8]}: {what}")
            self.explain(world, world.machine_source.power_note)
        while not self.events.empty():
            event = self.events.get()
            if event.function == "recoverer" and event.result is not None:
                recovery_suspended = bool(event.result.get("recovery_suspended"))
                if recovery_suspended != self.recovery_suspended:
                    self.recovery_suspended = recovery_suspended
                    told = "holds back: it is hardly all the machines" if recovery_suspended else "holds back no more"
                    self.say(world, f"{event.function:<11}  {told}")
            did = [f"{count} {what}" for what in _TOLD if (count := (event.result or {}).get(what))]
            did += [event.error.splitlines()[0]] if event.error is not None else []
            if did:
                self.say(world, f"{event.function:<11}  {', '.join(did)}")
            for function, what, meaning in (
                ("provisioner", "created", world.machine_source.creation_note),
                ("initializer", "failed", _NO_SSH),
            ):
                if event.function == function and (event.result or {}).get(what):
                    self.explain(world, meaning)
        if self.live is not None:
            self.live.update(Group(_table(world, statuses), *map(Text, self.lines[-_LINES:])))

    def draw(self, world: Environment, statuses: list[MachineStatus], picture: Path) -> None:
        """Write the table of machines and everything that was told to *picture*, as SVG."""
        console = Console(record=True, file=StringIO(), width=_PICTURE_COLUMNS, force_terminal=True)
        console.print(Group(_table(world, statuses), *map(Text, self.lines)))
        picture.write_text(console.export_svg(title="make demo"), encoding="utf-8")


def _table(world: Environment, statuses: list[MachineStatus]) -> Table:
    running = sum(machine.running for machine in statuses)
    counts = f"{world.settings.machines - len(statuses)} unused, {len(statuses)} machines, {running} running"
    table = Table(title=f"minute {world.minutes:.0f} of the fleet: {counts}")
    for column in ("machine", "provider id", "the machine is", "the BMDB says"):
        table.add_column(column)
    table.add_column("heartbeat", justify="right")
    for machine in statuses[:_ROWS]:
        fault = world.faulted.get(machine.provider_id)
        if fault and world.pool.reboots(machine.provider_id):
            fault += ", rebooted"
        style = _STYLES.get(machine.state)
        table.add_row(
            str(machine.machine_id)[:8],
            machine.provider_id[:8],
            machine.power + (f" ({fault})" if fault else ""),
            f"[{style}]{machine.state}[/]" if style else machine.state,
            "" if machine.heartbeat_age is None else f"{machine.heartbeat_age / 60:.0f} min ago",
        )
    if len(statuses) > _ROWS:
        table.add_row("…", "", "", f"{len(statuses) - _ROWS} more", "")
    return table


def until(world: Environment, show: Show, condition: Callable[[list[MachineStatus]], bool], seconds: float) -> bool:
    """Watch the world until *condition* holds; False: it did not within *seconds*."""
    from simulator.environment.status import machine_statuses  # noqa: PLC0415 - a world takes seconds to import

    end = world.elapsed + seconds
    while world.elapsed < end:
        for provider_id, fault in world.inject_due_faults():
            show.say(world, f"{'':<11}  fault: {fault} on {provider_id[:8]}")
        statuses = machine_statuses(world)
        show.refresh(world, statuses)
        if condition(statuses):
            return True
        SystemClock().sleep(_LOOK_SECONDS)
    return False
