"""How often the agent reports."""

import math
import os
from pathlib import Path

import pytest

from agent.shepherd_agent.refusal import AgentRefusal
from agent.shepherd_agent.reports.interval import INTERVAL_VARIABLE, Interval


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "agent.interval"


@pytest.mark.parametrize(
    ("given", "content", "begun", "told", "obeyed"),
    [
        # In the environment: a demonstration cannot wait a minute. A shorter one is also the shortest to be told.
        ("", None, 60, 0, 60),
        ("0.5", None, 0.5, 0, 0.5),
        ("0.05", None, 0.05, 1, 1),
        ("2.5", None, 2.5, 1, 2.5),
        ("600", None, 600, 1, 10),
        ("7", b"240", 7, 0, 7),
        # Told: a faulty endpoint must not flood itself, nor stop a machine from reporting.
        ("", None, 60, 1, 10),
        ("", None, 60, 9, 10),
        ("", None, 60, 10, 10),
        ("", None, 60, 240, 240),
        ("", None, 60, 3600, 3600),
        ("", None, 60, 3601, 3600),
        ("", None, 60, 2**64 - 1, 3600),
        # On record, as if the endpoint said it; a damaged disk must not keep the agent from starting.
        ("", b"240\n", 240, 0, 240),
        ("", b"0\n", 10, 0, 10),
        ("", b"-5", 10, 0, 10),
        ("", b"99999999999", 3600, 0, 3600),
        *(("", content, 60, 240, 240) for content in (b"", b"often\n", b"\xff\xfe", b"1e3", b"-", b"2 4")),
    ],
)
def test_the_interval_is_the_one_told_within_bounds(
    record: Path, given: str, content: bytes | None, begun: float, told: int, obeyed: float
) -> None:
    if content is not None:
        record.write_bytes(content)
    interval = Interval({INTERVAL_VARIABLE: given}, str(record))
    assert interval.seconds == begun
    assert interval.set(told) == (obeyed != begun)
    assert interval.seconds == obeyed
    assert interval.whole_seconds == math.ceil(obeyed)
    assert not interval.set(told)
    if obeyed != begun and obeyed >= 10:
        assert Interval({}, str(record)).seconds == obeyed


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "often", "1e999"])
def test_an_interval_that_makes_no_sense_is_refused(record: Path, text: str) -> None:
    with pytest.raises(AgentRefusal, match=rf"{INTERVAL_VARIABLE} is '{text}'; set it to a positive number"):
        Interval({INTERVAL_VARIABLE: text}, str(record))


def test_the_next_agent_begins_with_the_interval(record: Path) -> None:
    """An agent that is restarted must not report more often than the fleet can bear."""
    for told in (240, 3600, 60, 10):
        Interval({}, str(record)).set(told)
        assert Interval({}, str(record)).seconds == told
    assert record.stat().st_mode & 0o777 == 0o600


def test_a_record_that_cannot_be_kept_changes_nothing_else(tmp_path: Path) -> None:
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(tmp_path / "elsewhere")
    os.mkfifo(pipe)
    for path in (tmp_path / "missing" / "agent.interval", link, pipe):
        interval = Interval({}, str(path))
        assert interval.set(240)
        assert interval.seconds == 240
        assert Interval({}, str(path)).seconds == 60
    assert not (tmp_path / "elsewhere").exists()
