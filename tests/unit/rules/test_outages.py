"""After an outage of ours, agents have time to report: simulated schedules, outages and agents."""

from bisect import bisect
from dataclasses import dataclass, field
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from shepherd_core.settings.functions.services import AgentApiSettings

from agent.shepherd_agent.reports.heartbeat import pause_after

MINUTE = 60
TIMEOUT = 10 * MINUTE
INTERVALS = [MINUTE, AgentApiSettings.model_fields["heartbeat_interval_seconds"].default]


@dataclass
class Agent:
    chance: Random
    interval: float = MINUTE
    died_at: float = float("inf")
    heard: list[float] = field(default_factory=list)

    def live(self, until: float, outages: list[tuple[float, float]]) -> None:
        now, lost = self.chance.uniform(0, self.interval), 0
        while now < min(until, self.died_at):
            delivered = not any(begin <= now < end for begin, end in outages)
            if delivered:
                self.heard.append(now)
            lost = 0 if delivered else lost + 1
            now += pause_after(lost, self.interval, self.chance)

    def late_by(self, now: float) -> float:
        before = bisect(self.heard, now)
        return now - (self.heard[before - 1] if before else 0.0)


@dataclass
class Play:
    """A schedule, and outages of the BMDB without ticks and heartbeats. No look succeeds."""

    ticks: list[float]
    outages: list[tuple[float, float]]

    def interrupted_at(self, agent: Agent) -> float | None:
        """Return when the agent's machine would be interrupted, as the Recoverer decides."""
        looks: list[float] = []
        ticks = [tick for tick in self.ticks if not any(begin <= tick < end for begin, end in self.outages)]
        for now in ticks:
            last = now - agent.late_by(now)
            if now - last < TIMEOUT:
                continue
            settled = any(now - 7 * MINUTE <= tick <= now - 2 * MINUTE for tick in ticks)
            if settled or any(look > last and now - look >= 2 * MINUTE for look in looks):
                return now
            looks.append(now)
        return None


@st.composite
def plays(draw: st.DrawFn) -> Play:
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
def test_no_healthy_machine_is_interrupted_whatever_the_schedule(play: Play, seed: int, interval: float) -> None:
    """An outage may lie wholly between two ticks, or between ticks of another rate than before."""
    agent = Agent(Random(seed), interval)
    agent.live(play.ticks[-1], play.outages)
    assert play.interrupted_at(agent) is None


@given(plays(), st.integers(0, 2**32), st.sampled_from(INTERVALS), st.floats(0, 8 * 60 * MINUTE))
def test_any_schedule_interrupts_the_dead_within_a_bound(play: Play, seed: int, interval: float, death: float) -> None:
    """Its timeout, and the two ticks after it; after an outage, two minutes."""
    agent = Agent(Random(seed), interval, died_at=death)
    agent.live(play.ticks[-1], play.outages)
    interrupted = play.interrupted_at(agent)
    last = max(agent.heard, default=0.0)
    ticks = [tick for tick in play.ticks if not any(begin <= tick < end for begin, end in play.outages)]
    after = [tick for tick in ticks if tick >= last + TIMEOUT]
    assert interrupted is not None
    assert interrupted <= next(tick for tick in after if tick >= after[0] + 2 * MINUTE)
