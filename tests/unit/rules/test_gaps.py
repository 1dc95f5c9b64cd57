"""How gaps between snapshots extend the heartbeat timeout: the rule, and simulated schedules and agents."""

from bisect import bisect
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shepherd_core.settings.functions.services import AgentApiSettings

from agent.shepherd_agent.reports.heartbeat import pause_after
from tests.support.bmdb.reference.gap_rule import Gap, extended_timeout, recheck_after, required_overdue

MINUTE = 60
TIMEOUT = 10 * MINUTE
INTERVALS = [MINUTE, AgentApiSettings.model_fields["heartbeat_interval_seconds"].default]
HOUR = 60 * MINUTE
DAY = 24 * HOUR


@pytest.mark.parametrize(
    ("gap", "late_by"),
    [
        (1, 10), (2, 10), (5, 10), (6, 11.1), (10, 17.5), (15, 25), (30, 40), (60, 70), (24 * 60, 24 * 60 + 10),
    ],
)  # fmt: skip
def test_time_without_a_heartbeat_before_the_gap_counts(gap: float, late_by: float) -> None:
    """And with schedules of up to five minutes as long as is configured."""
    assert extended_timeout(TIMEOUT, [Gap(gap * MINUTE)]) == pytest.approx(late_by * MINUTE)


@pytest.mark.parametrize(("gap", "late_by"), [(4, 10), (4.2, 10.12), (5, 11.4), (10, 19.4), (15, 25)])
def test_the_interval_counts_where_it_is_a_large_part_of_the_timeout(gap: float, late_by: float) -> None:
    """The last heartbeat before the gap may be an interval older than the gap."""
    assert extended_timeout(TIMEOUT, [Gap(gap * MINUTE)], interval=4 * MINUTE) == pytest.approx(late_by * MINUTE)


@pytest.mark.parametrize("seconds", [296, 300, 301, 305, 310])
def test_a_schedule_of_five_minutes_may_be_late_by_seconds(seconds: float) -> None:
    """Ticks are not exact to the second; a timeout that varies with them would be confusing."""
    assert extended_timeout(TIMEOUT, [Gap(seconds), Gap(303, ended_ago=seconds)]) == TIMEOUT


@pytest.mark.parametrize(("ended_ago", "late_by"), [(0, 130), (1, 131), (9.9, 139.9), (10, 10), (60, 10)])
def test_after_an_outage_agents_have_time_to_report_again(ended_ago: float, late_by: float) -> None:
    """They come back one by one; machines that were unhealthy before the outage get no extra time."""
    outage = Gap(120 * MINUTE, ended_ago * MINUTE)
    assert extended_timeout(TIMEOUT, [Gap(MINUTE), outage]) == pytest.approx(late_by * MINUTE)


def test_the_gap_that_asks_for_most_counts_wherever_it_stands() -> None:
    """A short outage must not cover up a long one just before."""
    gaps = [Gap(7 * MINUTE), Gap(2 * 60 * MINUTE, ended_ago=7 * MINUTE)]
    assert extended_timeout(TIMEOUT, gaps) == extended_timeout(TIMEOUT, gaps[::-1]) == (7 + 120 + 10) * MINUTE


@pytest.mark.parametrize(
    ("gaps", "expected"),
    [([], 0), ([Gap(300)], 0), ([Gap(1800)], 1800), ([Gap(60), Gap(7200, 300)], 7500), ([Gap(60), Gap(7200, 600)], 0)],
)
def test_a_machine_that_was_to_come_back_was_overdue_before_the_gap(gaps: list[Gap], expected: float) -> None:
    """No agent start may have been tried meanwhile."""
    assert required_overdue(TIMEOUT, gaps) == expected


@given(st.lists(st.builds(Gap, st.floats(0, HOUR), st.floats(0, HOUR)), max_size=4), st.floats(0, HOUR))
def test_the_extension_ends_at_its_stated_time(among: list[Gap], later: float) -> None:
    """Who is spared for a gap is looked at again then, and waits no longer than he must."""
    left = recheck_after(TIMEOUT, among)
    aged = [Gap(gap.seconds, gap.ended_ago + later) for gap in among]
    if left is None:
        assert extended_timeout(TIMEOUT, aged) == TIMEOUT
    elif later < left:
        assert extended_timeout(TIMEOUT, aged) == pytest.approx(extended_timeout(TIMEOUT, among) + later)
        assert required_overdue(TIMEOUT, aged) == pytest.approx(required_overdue(TIMEOUT, among) + later)


seconds = st.floats(1, DAY)
gaps = st.lists(st.builds(Gap, st.floats(0, DAY), st.floats(0, DAY)), max_size=5)


@given(seconds, gaps)
def test_the_extended_timeout_is_bounded_and_gaps_never_shorten_it(wanted: float, among: list[Gap]) -> None:
    """Or a schedule could switch recovery off, or on."""
    longest = max((gap.seconds for gap in among), default=0.0)
    assert wanted <= extended_timeout(wanted, among) <= longest + 2 * wanted + 1e-6
    assert required_overdue(wanted, among) <= longest + wanted + 1e-6


@dataclass
class Agent:
    """A machine whose agent reports as ours does, at the times when it is heard."""

    chance: Random
    interval: float = MINUTE
    died_at: float = float("inf")
    heard: list[float] = field(default_factory=list)

    def live(self, until: float, outages: list[tuple[float, float]]) -> None:
        """Report until this time, or in vain while there is an outage."""
        now, lost = self.chance.uniform(0, self.interval), 0
        while now < min(until, self.died_at):
            delivered = not any(begin <= now < end for begin, end in outages)
            if delivered:
                self.heard.append(now)
            lost = 0 if delivered else lost + 1
            now += pause_after(lost, self.interval, self.chance)

    def late_by(self, now: float) -> float:
        """Return how long it was not heard."""
        before = bisect(self.heard, now)
        return now - (self.heard[before - 1] if before else 0.0)


@dataclass
class Play:
    """A schedule, and outages of the BMDB without snapshots and heartbeats."""

    ticks: list[float]
    outages: list[tuple[float, float]]

    def looks(self) -> list[float]:
        """Return when somebody looked."""
        return [tick for tick in self.ticks if not any(begin <= tick < end for begin, end in self.outages)]

    def recovered_at(self, agent: Agent) -> float | None:
        """Return when the agent's machine would be recovered."""
        looks = self.looks()
        for number, now in enumerate(looks):
            last = looks[max(0, number - 20) : number + 1]  # what the BMDB keeps is more
            among = [Gap(end - begin, now - end) for begin, end in pairwise(last)]
            if agent.late_by(now) >= extended_timeout(TIMEOUT, among, agent.interval):
                return now
        return None


@st.composite
def plays(draw: st.DrawFn) -> Play:
    """Make up a schedule of any rate and jitter, which may change once, and outages."""
    now, ticks = 0.0, []
    for _ in range(2):
        rate = draw(st.floats(1, 30)) * MINUTE
        jitter = draw(st.floats(0, 0.3))
        chance = Random(draw(st.integers(0, 2**32)))
        end = now + 6 * 60 * MINUTE
        while now < end:
            now += rate * chance.uniform(1 - jitter, 1 + jitter)
            ticks.append(now)
    outages = []
    begin = 0.0
    for _ in range(draw(st.integers(0, 4))):
        begin += draw(st.floats(30 * MINUTE, 4 * 60 * MINUTE))
        length = draw(st.floats(1, 3 * 60 * MINUTE))
        outages.append((begin, begin + length))
        begin += length
    return Play(ticks, outages)


@given(plays(), st.integers(0, 2**32), st.sampled_from(INTERVALS))
def test_no_healthy_machine_is_recovered_whatever_the_schedule(play: Play, seed: int, interval: float) -> None:
    """An outage may lie wholly between two looks, or between looks of another rate than before."""
    agent = Agent(Random(seed), interval)
    agent.live(play.ticks[-1], play.outages)
    assert play.recovered_at(agent) is None


@given(plays(), st.integers(0, 2**32), st.sampled_from(INTERVALS), st.floats(0, 8 * 60 * MINUTE))
def test_a_failed_machine_is_recovered_within_a_bound_on_any_schedule(
    play: Play, seed: int, interval: float, death: float
) -> None:
    """The bound is that of the rule, and one more look."""
    agent = Agent(Random(seed), interval, died_at=death)
    agent.live(play.ticks[-1], play.outages)
    recovered = play.recovered_at(agent)
    looks = play.looks()
    longest = max(end - begin for begin, end in pairwise([0.0, *looks]))  # an outage may swallow the first looks
    last = max(agent.heard, default=0.0)
    assert recovered is not None
    assert recovered - last <= longest + 2 * TIMEOUT + longest
