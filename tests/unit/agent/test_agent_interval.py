"""How often the agent reports."""

import os
from pathlib import Path

import pytest

from agent.shepherd_agent.refusal import AgentRefusal
from agent.shepherd_agent.reports.interval import INTERVAL_VARIABLE, Interval


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """Return the file in which the interval is kept; it does not exist."""
    return tmp_path / "agent.interval"


@pytest.mark.parametrize(
    ("environment", "seconds"), [({}, 60.0), ({INTERVAL_VARIABLE: ""}, 60.0), ({INTERVAL_VARIABLE: "0.5"}, 0.5)]
)
def test_the_interval_is_a_minute_at_first_unless_it_is_set(
    record: Path, environment: dict[str, str], seconds: float
) -> None:
    """A demonstration cannot wait a minute."""
    assert Interval(environment, str(record)).seconds == seconds


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "often", "1e999"])
def test_an_interval_that_makes_no_sense_is_refused(record: Path, text: str) -> None:
    """The error names the variable, the value and the requirement."""
    with pytest.raises(AgentRefusal, match=rf"{INTERVAL_VARIABLE} is '{text}'; set it to a positive number"):
        Interval({INTERVAL_VARIABLE: text}, str(record))


@pytest.mark.parametrize(
    ("told", "obeyed"), [(0, 60), (1, 10), (9, 10), (10, 10), (240, 240), (3600, 3600), (3601, 3600), (2**64 - 1, 3600)]
)
def test_the_endpoint_sets_the_interval_within_bounds(record: Path, told: int, obeyed: int) -> None:
    """A faulty endpoint must not flood itself, nor stop a machine from reporting."""
    interval = Interval({}, str(record))
    assert interval.set(told) == (obeyed != 60)
    assert interval.seconds == interval.whole_seconds == obeyed
    assert not interval.set(told)


@pytest.mark.parametrize(("given", "told", "obeyed"), [("0.05", 1, 1), ("2.5", 1, 2.5), ("600", 1, 10)])
def test_a_short_interval_in_the_environment_is_the_shortest(
    record: Path, given: str, told: int, obeyed: float
) -> None:
    """A simulated fleet lives faster than a real one."""
    interval = Interval({INTERVAL_VARIABLE: given}, str(record))
    interval.set(told)
    assert interval.seconds == obeyed


def test_the_next_agent_begins_with_the_interval(record: Path) -> None:
    """An agent that is started anew must not report more often than the fleet can bear."""
    for told in (240, 3600, 60, 10):
        Interval({}, str(record)).set(told)
        assert Interval({}, str(record)).seconds == told
    assert Interval({INTERVAL_VARIABLE: "7"}, str(record)).seconds == 7
    assert record.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"", b"often\n", b"\xff\xfe", b"1e3", b"-", b"2 4"])
def test_a_record_that_is_none_is_passed_over(record: Path, content: bytes) -> None:
    """A damaged disk must not keep the agent from starting; the endpoint says the interval again."""
    record.write_bytes(content)
    interval = Interval({}, str(record))
    assert interval.seconds == 60
    interval.set(240)
    assert Interval({}, str(record)).seconds == 240


@pytest.mark.parametrize(("content", "seconds"), [(b"0\n", 10), (b"-5", 10), (b"99999999999", 3600)])
def test_a_record_is_taken_within_bounds(record: Path, content: bytes, seconds: int) -> None:
    """As if the endpoint said it."""
    record.write_bytes(content)
    assert Interval({}, str(record)).seconds == seconds


def test_a_record_that_cannot_be_kept_changes_nothing_else(tmp_path: Path) -> None:
    """The disk may be full, or the file be a link or a pipe that somebody made."""
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(tmp_path / "elsewhere")
    os.mkfifo(pipe)
    for path in (tmp_path / "missing" / "agent.interval", link, pipe):
        interval = Interval({}, str(path))
        assert interval.set(240)
        assert interval.seconds == 240
        assert Interval({}, str(path)).seconds == 60
    assert not (tmp_path / "elsewhere").exists()
