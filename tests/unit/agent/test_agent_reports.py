import math
import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest
from shepherd_core.settings.functions.services import AgentApiSettings

from agent.shepherd_agent.hardware.inventory import Inventory
from agent.shepherd_agent.refusal import AgentRefusal
from agent.shepherd_agent.reports.heartbeat import first_pause, pause_after, pause_after_failure
from agent.shepherd_agent.reports.interval import INTERVAL_VARIABLE, Interval
from agent.shepherd_agent.reports.reporter import EndpointClock

DEFAULT = AgentApiSettings.model_fields["heartbeat_interval_seconds"].default
YEAR = 365 * 86_400_000


@pytest.mark.parametrize(
    ("pause", "intervals", "shortest", "longest"),
    [
        (partial(pause_after, 0), [3600], 3240, 3960),
        # Waiting longer after a loss made one lost request in five look like dead machines.
        (partial(pause_after, 1), [60, DEFAULT, 3600], 5, 10),
        (partial(pause_after, 2), [60, DEFAULT, 3600], 7.5, 15),
        # An endpoint that is down gets a request of each machine every 45 seconds.
        *((partial(pause_after, lost), [60, DEFAULT, 3600], 30, 60) for lost in (6, 11, 12, 2000)),
        (partial(pause_after, 1), [10], 1, 2),
        (partial(pause_after, 2000), [10], 5, 10),
        # An endpoint that answers is in trouble; but nothing was recorded, and an hour would be too long.
        (partial(pause_after_failure, 0), [60, DEFAULT, 3600], 54, 66),
        (partial(pause_after_failure, 0), [10], 9, 11),
        (partial(pause_after_failure, 1), [3600], 5, 10),
        # A fleet that is told an hour would report in the same minutes of each; and it has just reported.
        (first_pause, [3600], 360, 3600),
    ],
)
def test_pauses_of_machines_are_spread_between_their_bounds(
    pause: Callable[[float, Random], float], intervals: list[float], shortest: float, longest: float
) -> None:
    for interval in intervals:
        chance = Random(0)
        tenths = Counter((pause(interval, chance) - shortest) * 10 // (longest - shortest) for _ in range(1000))
        assert tenths.keys() == set(range(10))
        assert max(tenths.values()) < 150


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
        ("", b"3600   \n", 3600, 60, 60),
        ("", b"0\n", 10, 0, 10),
        ("", b"-5", 10, 0, 10),
        ("", b"99999999999", 3600, 0, 3600),
        *(("", content, 60, 240, 240) for content in (b"", b"often\n", b"\xff\xfe", b"1e3", b"-", b"2 4")),
    ],
)
def test_the_interval_is_the_one_told_within_bounds(
    record: Path, given: str, content: bytes | None, begun: float, told: int, obeyed: float
) -> None:
    """The next agent begins with it: one that is restarted must not report more often than the fleet can bear."""
    if content is not None:
        record.write_bytes(content)
    interval = Interval({INTERVAL_VARIABLE: given}, str(record))
    assert (interval.seconds, interval.set(told)) == (begun, obeyed != begun)
    assert (interval.seconds, interval.whole_seconds) == (obeyed, math.ceil(obeyed))
    assert not interval.set(told)
    if obeyed != begun and obeyed >= 10:
        assert Interval({}, str(record)).seconds == obeyed
        assert content is not None or record.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "often", "1e999"])
def test_an_interval_that_makes_no_sense_is_refused(record: Path, text: str) -> None:
    with pytest.raises(AgentRefusal, match=rf"{INTERVAL_VARIABLE} is '{text}'; set it to a positive number"):
        Interval({INTERVAL_VARIABLE: text}, str(record))


def test_a_record_that_cannot_be_kept_changes_nothing_else(tmp_path: Path) -> None:
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(tmp_path / "elsewhere")
    os.mkfifo(pipe)
    for path in (tmp_path / "missing" / "agent.interval", link, pipe):
        interval = Interval({}, str(path))
        assert interval.set(240)
        assert (interval.seconds, Interval({}, str(path)).seconds) == (240, 60)
    assert not (tmp_path / "elsewhere").exists()


def test_hardware_is_reported_when_it_changed_and_once_a_day() -> None:
    """Until the endpoint has it. A look costs processor time that the machine needs, so there is one an hour."""
    hardware, hours, looks = [b"two disks"], [0.0], []

    def look() -> bytes:
        looks.append(hours[0])
        return hardware[0]

    inventory = Inventory(look, lambda: 1000 + hours[0] * 3600)

    def report(at: float) -> bytes:
        hours[0] = at
        return inventory.report()

    assert [report(0) for _ in range(3)] == [b"two disks"] * 3
    inventory.reported()
    hardware[0] = b"one disk"
    assert ([report(at) for at in (0, 0.5, 3599 / 3600)], looks) == ([b""] * 3, [0])
    assert report(1) == b"one disk"
    inventory.reported()
    assert [report(at) for at in (1, 25 - 1 / 3600)] == [b""] * 2
    assert report(25) == b"one disk"
    inventory.reported()
    assert report(25) == b""


def test_no_time_is_used_twice() -> None:
    """The endpoint takes a request whose time is not later than the last one's for a replay."""
    times = iter([1000, 1000, 500, 3000])
    clock = EndpointClock(lambda: next(times))
    assert [clock.next() for _ in range(4)] == [1000, 1001, 1002, 3000]


@pytest.mark.parametrize(
    ("wrong", "then"),
    [
        # A machine that was long in the rack may believe that it is 1970, or next year.
        (-YEAR, 0),
        (YEAR, 0),
        # The endpoint may have accepted a request whose answer was lost: its time must not come again.
        (10_000, 10_001),
    ],
)
def test_a_clock_that_is_wrong_goes_by_the_endpoint(wrong: int, then: int) -> None:
    now = [50 * YEAR + wrong]
    clock = EndpointClock(lambda: now[0])
    assert clock.next() == 50 * YEAR + wrong
    clock.correct(50 * YEAR)
    assert clock.next() == 50 * YEAR + then
    now[0] += 60_000
    assert clock.next() == 50 * YEAR + 60_000
