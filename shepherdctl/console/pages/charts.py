"""The figures of the console's pictures: what the templates draw as SVG."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shepherd_core.domain.machine import WorkEvent
from shepherd_core.settings.functions.specs import PROCESS_OF_LOOP

from shepherdctl.descriptions.cures import told
from shepherdctl.output.formats import loop_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from shepherd_core.bmdb.machines.lookup import ShownMachine
    from shepherd_core.bmdb.work.history import HistoryEvent
WIDTH = 1000
"""Of every picture, in its own units."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a bar."""

    name: str
    value: float
    x: float
    width: float


def bar(values: Mapping[str, float]) -> list[Segment]:
    """Return the segments of a bar of the whole width, in the order of *values*; those that are 0 are left out."""
    total, x = sum(values.values()), 0.0
    segments = []
    for name, value in values.items():
        if value:
            width = WIDTH * value / total
            segments.append(Segment(name, value, round(x, 2), round(width, 2)))
            x += width
    return segments


@dataclass(frozen=True, slots=True)
class Columns:
    """A row of columns, one for each step of time."""

    name: str
    kind: str
    """A class of the style sheet."""
    heights: list[float]
    """Of each column, from 0 to 1."""
    total: float
    highest: float


def columns(name: str, kind: str, values: Sequence[float]) -> Columns:
    """Return columns; the highest one fills the picture."""
    highest = max(values, default=0)
    heights = [round(value / highest, 4) if highest else 0 for value in values]
    return Columns(name, kind, heights, sum(values), highest)


@dataclass(frozen=True, slots=True)
class Span:
    """Something that lasted, in a lane of a timeline."""

    x: float
    width: float
    kind: str
    """A class of the style sheet."""
    text: str


@dataclass(frozen=True, slots=True)
class Lane:
    """A line of a timeline."""

    name: str
    spans: list[Span] = field(default_factory=list)
    marks: list[Span] = field(default_factory=list)
    """Events without a length."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """The history of a machine from *since* until *now*, as a picture."""

    since: datetime
    now: datetime
    lanes: list[Lane]
    ticks: list[tuple[float, datetime]]
    """Places on the axis, and their times."""


_ENDS = {
    WorkEvent.FINISHED: "good",
    WorkEvent.FAILED: "bad",
    WorkEvent.EXPIRED: "bad",
    WorkEvent.CANCELED: "dim",
    WorkEvent.RECOVERED: "good",
}
_AXIS = 4
_LEAST_WIDTH = 3


def timeline(machine: ShownMachine, history: Sequence[HistoryEvent], since: datetime, now: datetime) -> Timeline:
    """Return the picture of *history*, oldest first."""
    seconds = max((now - since).total_seconds(), 1.0)

    def place(moment: datetime) -> float:
        return round(WIDTH * min(max((moment - since).total_seconds() / seconds, 0), 1), 2)

    def span(begin: datetime, end: datetime, kind: str, text: str) -> Span:
        x = place(begin)
        return Span(min(x, WIDTH - _LEAST_WIDTH), max(round(place(end) - x, 2), _LEAST_WIDTH), kind, text)

    def stretch(end: datetime, begin: datetime | None, kind: str, text: str) -> list[Span]:
        return [] if begin is None or end < since else [span(begin, end, kind, text)]

    lanes = [_work(loop_name(process), process, history, span, now) for process in PROCESS_OF_LOOP.values()]
    lanes.append(_quarantine(history, span, now))
    reports = Lane("Heartbeats")
    started, heartbeat, unhealthy = machine.agent_started_at, machine.agent_heartbeat_at, machine.unhealthy_at
    if started is not None:
        last = heartbeat or started
        reports.spans.extend(stretch(last, started, "good" if heartbeat else "dim", "the current agent reports"))
        if unhealthy is not None and unhealthy <= now:
            reports.spans.extend(stretch(now, last, "bad", "no heartbeat"))
    lanes.append(reports)
    step = (now - since) / _AXIS
    return Timeline(since, now, lanes, [(WIDTH * part / _AXIS, since + part * step) for part in range(_AXIS + 1)])


def _work(name: str, process: str, history: Sequence[HistoryEvent], span: Any, now: datetime) -> Lane:
    lane, began = Lane(name), None
    for event in (each for each in history if each.process == process):
        what, at = event.event, event.timestamp
        if what == WorkEvent.STARTED:
            began = at
        elif what in _ENDS and began is not None:
            lane.spans.append(span(began, at, _ENDS[what], _words(event)))
            began = None
        elif what in (WorkEvent.ATTEMPTED, WorkEvent.NOT_TAKEN):
            lane.marks.append(span(at, at, "step", _words(event)))
    if began is not None:
        lane.spans.append(span(began, now, "busy", "in progress"))
    return lane


def _quarantine(history: Sequence[HistoryEvent], span: Any, now: datetime) -> Lane:
    lane, began = Lane("Quarantine"), None
    for event in history:
        if event.event == WorkEvent.QUARANTINED:
            began = event.timestamp
        elif event.event == WorkEvent.UNQUARANTINED and began is not None:
            lane.spans.append(span(began, event.timestamp, "quarantined", "quarantined"))
            began = None
    if began is not None:
        lane.spans.append(span(began, now, "quarantined", "quarantined"))
    return lane


def _words(event: HistoryEvent) -> str:
    return ": ".join(filter(None, (event.event, event.step, told(event.kind, event.failed_cause))))
