from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

from shepherd_core.bmdb.machines.lookup import ShownMachine
from shepherd_core.bmdb.work.history import HistoryEvent
from shepherd_core.domain.errors.kinds import FailureKind
from shepherd_core.domain.machine import Process, WorkEvent

from shepherdctl.console.pages import charts

SINCE = datetime(2026, 11, 23, tzinfo=UTC)
START, RECOVER = Process.AGENT_START, Process.RECOVERY


def at(percent: float) -> datetime:
    return SINCE + percent * timedelta(minutes=1)


def drawn(*events: tuple[float, Process, WorkEvent], **facts: datetime) -> dict[str, list[tuple[Any, ...]]]:
    names = ("agent_started_at", "agent_heartbeat_at", "unhealthy_at")
    machine = cast("ShownMachine", SimpleNamespace(**(dict.fromkeys(names) | facts)))
    failed = {WorkEvent.FAILED: (FailureKind.SSH_REFUSED, "it listens to nobody")}
    history = [
        HistoryEvent(at(percent), process, event, None, kind, None, None, cause, None)
        for percent, process, event in events
        for kind, cause in [failed.get(event, (None, None))]
    ]
    shown = charts.timeline(machine, history, SINCE, at(100))
    assert [*shown.ticks] == [(10 * percent, at(percent)) for percent in (0, 25, 50, 75, 100)]
    return {
        lane.name: [(each.x, each.width, each.kind, each.text) for each in (*lane.spans, *lane.marks)]
        for lane in shown.lanes
        if lane.spans or lane.marks
    }


def test_work_and_quarantine_are_drawn_from_beginning_to_end() -> None:
    """Work that began before the picture has no start in it, and work under way no end."""
    assert drawn(
        (2, START, WorkEvent.FINISHED),
        (5, RECOVER, WorkEvent.UNQUARANTINED),
        (10, START, WorkEvent.STARTED),
        (10, RECOVER, WorkEvent.QUARANTINED),
        (20, START, WorkEvent.FAILED),
        (20, RECOVER, WorkEvent.HEALTHY),
        (25, START, WorkEvent.EXPIRED),
        (30, RECOVER, WorkEvent.UNQUARANTINED),
        (30, RECOVER, WorkEvent.STARTED),
        (35, RECOVER, WorkEvent.ATTEMPTED),
        (40, RECOVER, WorkEvent.FINISHED),
        (45, RECOVER, WorkEvent.UNQUARANTINED),
        (60, RECOVER, WorkEvent.STARTED),
        (90, RECOVER, WorkEvent.QUARANTINED),
    ) == {
        "Initializer": [(100, 100, "bad", "Failed: ssh-refused: it listens to nobody")],
        "Recoverer": [(300, 100, "good", "Finished"), (600, 400, "busy", "in progress"), (350, 3, "step", "Attempted")],
        "Quarantine": [(100, 200, "quarantined", "quarantined"), (900, 100, "quarantined", "quarantined")],
    }


def test_heartbeats_are_drawn_until_the_last_then_their_absence() -> None:
    reports = {"agent_started_at": at(-10), "agent_heartbeat_at": at(70)}
    shown = [(0, 700, "good", "the current agent reports")]
    assert drawn(**reports) == drawn(**reports, unhealthy_at=at(101)) == {"Heartbeats": shown}
    assert drawn(**reports, unhealthy_at=at(100)) == {"Heartbeats": [*shown, (700, 300, "bad", "no heartbeat")]}
    assert drawn(agent_started_at=at(99.9)) == {"Heartbeats": [(997, 3, "dim", "the current agent reports")]}
    assert (drawn(agent_started_at=at(-20), agent_heartbeat_at=at(-10)), drawn()) == ({}, {})


def test_a_bar_is_measured_by_its_sum_columns_by_highest() -> None:
    parts = [charts.Segment("ours", 1, 0, 250), charts.Segment("theirs", 3, 250, 750)]
    assert charts.bar({"ours": 1, "nobody's": 0, "theirs": 3}) == parts
    assert charts.columns("made", "good", [0, 1, 4]) == charts.Columns("made", "good", [0, 0.25, 1], 5, 4)
    assert charts.columns("made", "good", [0, 0]) == charts.Columns("made", "good", [0, 0], 0, 0)
