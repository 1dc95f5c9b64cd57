"""The history of a machine, with failures that repeat each other as one: pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from shepherd_core.bmdb.work.history import HistoryEvent
from shepherd_core.domain.machine import WorkEvent

from shepherdctl.descriptions.cures import told
from shepherdctl.output.formats import at


@dataclass(frozen=True, slots=True)
class Repeated:
    """An event of a history, standing for all those that repeated it."""

    event: HistoryEvent
    """The last one."""
    times: int
    since: datetime
    """The time of the first one."""

    @property
    def cause(self) -> str | None:
        """Return the cause, with how often it occurred; None: the event has none."""
        cause = told(self.event.kind, self.event.failed_cause)
        if cause is None or self.times == 1:
            return cause
        return f"{cause} ({self.times} times since {at(self.since)})"


def fold(events: Iterable[HistoryEvent]) -> list[Repeated]:
    """Return *events*, oldest first; a run of work that fails with one cause becomes one event."""
    folded: list[Repeated] = []
    for event in events:
        latest = Repeated(event, 1, event.timestamp)
        before = len(folded)
        if folded and _started(folded[-1].event, event):
            before -= 1
        if before and _same(folded[before - 1].event, event):
            first = folded[before - 1]
            folded[before - 1 :] = [Repeated(event, first.times + 1, first.since)]
        else:
            folded.append(latest)
    return folded


def _started(started: HistoryEvent, event: HistoryEvent) -> bool:
    return (started.event, started.process) == (WorkEvent.STARTED, event.process)


def _same(before: HistoryEvent, event: HistoryEvent) -> bool:
    compared = ("process", "event", "step", "kind", "failed_cause")
    return event.failed_cause is not None and all(getattr(before, name) == getattr(event, name) for name in compared)
