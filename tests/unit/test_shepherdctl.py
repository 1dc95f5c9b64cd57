import json
import re
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import typer
from rich.text import Text
from shepherd_core.domain.machine import Process
from shepherd_core.domain.states import State

from shepherdctl import console
from shepherdctl.console.pages.fleet import STATES
from shepherdctl.output import formats, printing
from shepherdctl.output.json_fields import VERSION
from shepherdctl.selection import SEVERITY

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
A, B, C = (UUID(f"{start}-1111-4111-8111-111111111111") for start in ("aaaaaaaa", "aaaaaaab", "cccccccc"))


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Terminal]:
    def make(columns: int) -> Terminal:
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(sys, "stdout", made := Terminal())
        return made

    return make


@pytest.fixture(autouse=True)
def no_wishes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "text", ["", "5", "h", "0s", "-1h", "1.5h", "1h30m", "2 h", "2H", "3w", "367d", "99999999999d", "²s", "inf"]
)
def test_an_invalid_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="it must be 90s, 15m, 2h or 1d") as caught:
        formats.duration(text)
    assert repr(text) in str(caught.value)


def relative(seconds: float) -> str:
    return formats.relative(NOON - timedelta(seconds=seconds), NOON)


DURATIONS = {"1s": 1, "90s": 90, "15m": 900, "2h": 7200, " 1d ": 86_400, "366d": 366 * 86_400}
TIMES = {0: "0 s ago", 12.9: "13 s ago", 119.4: "119 s ago", 119.6: "2 min ago", 7_169: "119 min ago", 7_171: "2 h ago"}
TIMES |= {170_640: "47 h ago", 171_360: "2 days ago", 172_800: "2 days ago", -240: "in 4 min", -7_199.9: "in 2 h"}
SIZES = {0: "0 B", 1: "1 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 1 << 30: "1 GiB", (1 << 40) - 1: "1 TiB"}
SIZES |= {960197124096: "894.3 GiB", 12000138625024: "10.9 TiB", 3 * 2**63: "24 EiB", 1 << 80: "1048576 EiB"}
SPEEDS = {125_000_000: "1 Gbit/s", 3_125_000_000: "25 Gbit/s", 312_500_000: "2.5 Gbit/s", 12_500_000: "100 Mbit/s"}


# In UTC, and sorted as text: also when the database answers in another zone, or on the full second.
ELSEWHERE = NOON.astimezone(timezone(timedelta(hours=5)))
MOMENTS = {ELSEWHERE: "2026-03-01T12:00:00.000000Z", NOON + timedelta(microseconds=1): "2026-03-01T12:00:00.000001Z"}
ALL = {formats.duration: DURATIONS, relative: TIMES, formats.size: SIZES, formats.speed: SPEEDS, formats.iso: MOMENTS}


@pytest.mark.parametrize(("function", "wanted"), ALL.items())
def test_every_figure_is_in_a_suitable_unit(function: Callable[[Any], object], wanted: dict[Any, object]) -> None:
    """
    People ask how long ago, not when; a pause of two hours has two hours left, not one, a moment after it began.

    The agent reports bytes; ports are known by bits per second.
    """
    assert {value: function(value) for value in wanted} == wanted


def test_moments_are_in_the_time_zone_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as zone:
        zone.setenv("TZ", "Asia/Kolkata")
        time.tzset()
        assert formats.at(datetime(2026, 11, 28, 22, tzinfo=UTC)) == "2026-11-29 03:30:00+0530"
    time.tzset()


def test_a_document_is_json_whatever_is_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    given = {"id": A, "at": NOON, "process": Process.RECOVERY, "none": None, "nested": [(1, True)], "c": "\x9b"}
    printing.document(given)
    printed = capsys.readouterr().out
    assert "\x9b" not in printed
    texts = {"id": str(A), "at": "2026-03-01T12:00:00.000000Z", "process": "ShepherdRecovery", "c": "\x9b"}
    assert json.loads(printed) == {"version": VERSION, **texts, "none": None, "nested": [[1, True]]}


def test_short_ids_are_distinct(terminal: Callable[[int], Terminal]) -> None:
    """On a terminal ids are as short as they can be; who copies one must get what it stood for."""
    assert printing.ids([A, B]) == [str(A), str(B)], "in a pipe they are whole"
    terminal(80)
    assert printing.ids([A, C]) == ["aaaaaaaa", "cccccccc"]
    assert printing.ids([A, A, None]) == ["aaaaaaaa", "aaaaaaaa", ""]
    close = UUID("aaaaaaaa-1111-4111-8111-111111111112")
    assert printing.ids([A, close]) == [str(A), str(close)]


COLUMNS = [printing.Column("NAME"), printing.Column("FIRST TO GO", spare=2), printing.Column("SECOND TO GO", spare=1)]
COLUMNS += [printing.Column("EMPTY"), printing.Column("WORDS", prose=True)]
ROW = ("n" * 40, "f" * 20, "s" * 20, None, " ".join(["word"] * 12))


@pytest.mark.parametrize(
    ("width", "titles"),
    [
        (200, ["NAME", "FIRST TO GO", "SECOND TO GO", "WORDS"]),
        (110, ["NAME", "FIRST TO GO", "SECOND TO GO", "WORDS"]),
        (109, ["NAME", "SECOND TO GO", "WORDS"]),
        (87, ["NAME", "WORDS"]),
        (66, ["NAME", "WORDS"]),
        (30, ["NAME", "WORDS"]),
    ],
)
def test_a_table_fits_its_terminal(terminal: Callable[[int], Terminal], width: int, titles: list[str]) -> None:
    """Prose is wrapped, spare columns give way in their order, and only then are names broken up; nothing is cut."""
    screen = terminal(width)
    printing.table(COLUMNS, [ROW])
    lines = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue()).splitlines()
    assert [title.strip() for title in lines[0].split("  ") if title.strip()] == titles
    assert max(map(len, lines)) <= width
    assert any("n" * 40 in line for line in lines) is (width > 30)
    printed = "".join(lines)
    assert (printed.count("n"), printed.count("word")) == (40, 12)


def test_a_piped_table_has_one_line_for_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    """However long, with no blanks at the end, and with no colours."""
    printing.table(COLUMNS, [])
    printing.table(COLUMNS, [ROW, ("x", "y", "z", None, Text("two\nlines  ", style="red"))])
    _, first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("word word")
    assert second.split() == ["x", "y", "z", "two", "lines"]
    assert second.endswith("two lines")


def test_a_message_is_text_and_not_markup(capsys: pytest.CaptureFixture[str]) -> None:
    printing.note("disputed: [bold]rack1[/bold] \x1b[2J")
    assert capsys.readouterr().err == "disputed: [bold]rack1[/bold] \\x1b[2J\n"


def test_every_state_has_its_place_and_its_colour() -> None:
    """Lists are ordered by it; the console would not count a machine in another state."""
    states = set(State) - {State.FORGOTTEN, State.RELEASED}
    assert set(SEVERITY) == set(STATES) == states
    style = (Path(console.__file__).parent / "static" / "console.css").read_text()
    assert {state for state in states if f".s-{state} " not in style} == set()
