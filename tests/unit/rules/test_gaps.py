"""The pauses of the agent fit the rule about gaps between snapshots: simulated schedules, outages and agents."""

from bisect import bisect
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from shepherd_core.settings.functions.services import AgentApiSettings

from agent.shepherd_agent.reports.heartbeat import pause_after
from tests.support.bmdb.reference.gap_rule import Gap, extended_timeout

MINUTE = 60
TIMEOUT = 10 * MINUTE
INTERVALS = [MINUTE, AgentApiSettings.model_fields["heartbeat_interval_seconds"].default]


@dataclass
class Agent:
    """A machine whose agent reports as ours does, with the times at which its reports arrive."""

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
        """Return how long ago it reported."""
        before = bisect(self.heard, now)
        return now - (self.heard[before - 1] if before else 0.0)


@dataclass
class Play:
    """A schedule, and outages of the BMDB without snapshots and heartbeats."""

    ticks: list[float]
    outages: list[tuple[float, float]]

    def snapshots(self) -> list[float]:
        """Return when snapshots were taken."""
        return [tick for tick in self.ticks if not any(begin <= tick < end for begin, end in self.outages)]

    def recovered_at(self, agent: Agent) -> float | None:
        """Return when the agent's machine would be recovered."""
        snapshots = self.snapshots()
        for number, now in enumerate(snapshots):
            last = snapshots[max(0, number - 20) : number + 1]  # what the BMDB keeps is more
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
    """An outage may lie wholly between two snapshots, or between snapshots of another rate than before."""
    agent = Agent(Random(seed), interval)
    agent.live(play.ticks[-1], play.outages)
    assert play.recovered_at(agent) is None


@given(plays(), st.integers(0, 2**32), st.sampled_from(INTERVALS), st.floats(0, 8 * 60 * MINUTE))
def test_a_failed_machine_is_recovered_within_a_bound_on_any_schedule(
    play: Play, seed: int, interval: float, death: float
) -> None:
    """The bound is that of the rule, and one more snapshot."""
    agent = Agent(Random(seed), interval, died_at=death)
    agent.live(play.ticks[-1], play.outages)
    recovered = play.recovered_at(agent)
    snapshots = play.snapshots()
    longest = max(end - begin for begin, end in pairwise([0.0, *snapshots]))  # an outage may cover the first snapshots
    last = max(agent.heard, default=0.0)
    assert recovered is not None
    assert recovered - last <= longest + 2 * TIMEOUT + longest
