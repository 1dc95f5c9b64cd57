"""Schedules of any rate: a gap between snapshots reboots no healthy machine and leaves no unhealthy one."""

from collections.abc import Iterable, Sequence
from itertools import accumulate, cycle, islice
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shepherd_core.bmdb.recovery import explain, suspension
from shepherd_core.bmdb.recovery.explain import Block
from shepherd_core.domain.errors.bmdb import SessionExpired
from shepherd_core.domain.machine import Process
from shepherd_core.telemetry import Metric

from tests.chaos.sample import SEED, drawn
from tests.conftest import ManualClock
from tests.support.bmdb.fleet import HOUR, PROVIDER, Fleet, claimed, ids
from tests.support.bmdb.recovery import MINUTE, TIMEOUTS, RecoveryEnvironment

REPORTING = 12

# Seconds between snapshots, again and again; and the number of the snapshot at which a machine is recovered that sends
# its last heartbeat just before the schedule begins.
SCHEDULES: dict[str, tuple[Sequence[float], int]] = {
    "1 min": ([60], 10),
    "1 min, early and late": ([45, 75, 59, 61], 10),
    "2 min": ([120], 5),
    "5 min": ([300], 2),
    "5 min, a second late": ([301], 2),
    "5 min, early and late": ([303, 296, 305, 296], 3),
    "10 min": ([600], 2),
    "10 min, early and late": ([640, 570, 601, 590], 2),
    "15 min": ([900], 2),
    "15 min, early and late": ([960, 850, 920, 870], 2),
    "30 min": ([1800], 2),
    "30 min, early and late": ([1900, 1700, 1801, 1799], 2),
    "twice an hour, five minutes apart": ([300, 3300], 4),
    "seven times in the first minutes of each hour": ([60] * 6 + [3240], 14),
    "every ten minutes, one in three lost": ([600, 600, 1200], 2),
}

# How late an agent may be that could not report for so long.
OUTAGES: dict[float, float] = {4 * MINUTE: 200, 9 * MINUTE: 330, 28 * MINUTE: 330, 2 * HOUR: 330}


class Schedule(RecoveryEnvironment):
    """Agents report at every snapshot, unless the test keeps them from it."""

    def begin_anew(self) -> None:
        """Let there be machines that report, and a snapshot of them."""
        self.fleet.empty()
        self.provider.reboots.clear()
        self.reporting.clear()
        self.add_reporting(REPORTING)
        self.run()

    def pass_time(self, seconds: float, *, but: Iterable[UUID] = ()) -> None:
        """Let time pass, at the end of which all that report did so, *but* those."""
        self.fleet.pass_time(seconds)
        self.fleet.sql(
            "UPDATE machine_agent_heartbeat SET agent_heartbeat_at = clock_timestamp() "
            "WHERE machine_id = ANY(CAST(:ids AS uuid[]))",
            ids=[machine for machine in self.reporting if machine not in set(but)],
        )

    def rebooted(self, machine: UUID) -> bool:
        """Return whether the provider was asked to reboot it."""
        return self.provider_id(machine) in self.provider.reboots

    def ticks_until_rebooted(self, machine: UUID, gaps: Iterable[float]) -> int:
        """Return the number of the invocation that rebooted it, or 0."""
        for number, gap in enumerate(gaps, 1):
            self.pass_time(gap)
            self.run()
            if self.rebooted(machine):
                return number
        return 0

    def suffer(self, gaps: Iterable[float], began: float, lasted: float, late: float) -> None:
        """Play a schedule with an outage of the BMDB, after which one machine is *late* to report again."""
        last, now = self.reporting[0], 0.0
        for time in accumulate(gaps):
            if began <= time < began + lasted:
                continue  # no snapshots and no heartbeats
            if now < began < time:  # all report until then
                self.pass_time(began - now)
                now = began
            self.pass_time(time - now, but=[last] if began <= time < began + lasted + late else [])
            now = time
            self.run()


@pytest.fixture
def env(fleet: Fleet, clock: ManualClock) -> Schedule:
    """Return an environment in which machines report, with a snapshot of them."""
    env = Schedule(fleet, clock)
    env.begin_anew()
    return env


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_machine_unhealthy_for_long_is_recovered_at_the_next_snapshot(env: Schedule, name: str) -> None:
    """On any schedule: the last snapshot had already found it unhealthy."""
    gaps, _ = SCHEDULES[name]
    lost = env.fleet.unhealthy_machine(2 * HOUR)
    assert env.ticks_until_rebooted(lost, islice(cycle(gaps), 24)) == 1


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_machine_that_becomes_unhealthy_is_recovered_after_a_few_snapshots(env: Schedule, name: str) -> None:
    """After the configured timeout with up to five minutes between snapshots, else after two or three snapshots."""
    gaps, ticks = SCHEDULES[name]
    lost = env.reporting.pop()
    assert env.ticks_until_rebooted(lost, islice(cycle(gaps), 24)) == ticks


@pytest.mark.parametrize(("before", "after", "ticks"), [(60, 1800, 2), (1800, 60, 10)])
def test_another_schedule_needs_no_time_to_get_used_to(env: Schedule, before: float, after: float, ticks: int) -> None:
    """An operator who changes it must not have to know what is remembered of the old one."""
    for _ in range(3):
        env.pass_time(before)
        env.run()
    lost = env.reporting.pop()
    assert env.ticks_until_rebooted(lost, [after] * 24) == ticks


@pytest.mark.parametrize("name", SCHEDULES)
def test_an_outage_of_the_bmdb_reboots_no_machine_however_late_it_reports(env: Schedule, name: str) -> None:
    """Neither one that lies wholly between two snapshots, nor a longer one; ``make chaos`` has all."""
    for lasted in drawn(OUTAGES, name):
        gaps = [*islice(cycle(SCHEDULES[name][0]), 7)]
        # As soon as a snapshot is over, and so that it ends just before the next one.
        after = next(time for time in accumulate(cycle(gaps)) if time > lasted + 1)
        for began in drawn([sum(gaps[:3]) + 1, after - lasted - 1], f"{name}, began"):
            env.suffer([*gaps, *islice(cycle(SCHEDULES[name][0]), 14)], began, lasted, OUTAGES[lasted])
        assert not env.provider.reboots, f"outage of {lasted} s, seed {SEED}"
        env.begin_anew()


@settings(max_examples=settings().max_examples // 15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    gaps=st.lists(st.floats(45, 2000), min_size=2, max_size=6),
    began=st.floats(1, 2 * HOUR),
    outage=st.sampled_from(sorted(OUTAGES.items())),
)
def test_on_any_schedule_unhealthy_machines_alone_are_recovered(
    env: Schedule, gaps: list[float], began: float, outage: tuple[float, float]
) -> None:
    """Random rates, with an outage at a random time."""
    env.begin_anew()
    dead = env.reporting.pop()
    lasted, late = outage
    end = began + lasted + 2 * max(lasted, *gaps) + 3 * TIMEOUTS.heartbeat_timeout_seconds
    schedule = accumulate(cycle(gaps))
    count = next(number for number, time in enumerate(schedule, 1) if time > end)
    env.suffer(islice(cycle(gaps), count), began, lasted, late)
    assert env.rebooted(dead)
    assert env.provider.reboots.total() == 1


def test_after_an_outage_the_timeout_starts_over_and_failed_machines_recover(env: Schedule) -> None:
    """Heartbeats that the BMDB could not take say nothing about machines; those that never come again do."""
    lost = env.reporting.pop()
    env.pass_time(2 * HOUR)
    assert env.run()[Metric.RECOVERY_SUSPENDED] == 0, "it is no reason to suspend recovery: nothing would end that"
    assert env.ticks_until_rebooted(lost, [MINUTE] * 24) == TIMEOUTS.heartbeat_timeout_seconds // MINUTE


def test_a_fresh_agent_is_given_time_without_gaps_for_its_first_heartbeat(env: Schedule) -> None:
    """It may have been started just before the BMDB went away."""
    fresh = env.fleet.started_machine()
    env.pass_time(2 * HOUR)
    env.run()
    ticks = env.ticks_until_rebooted(fresh, [MINUTE] * 40)
    assert ticks == TIMEOUTS.startup_timeout_seconds // MINUTE


@pytest.mark.parametrize(
    ("left", "gaps", "ticks"),
    [
        (30, [MINUTE], 1),
        (-1, [30 * MINUTE], 1),
        (30, [30 * MINUTE], 2),
        (30, [2 * HOUR, *[MINUTE] * 24], 11),
    ],
    ids=["every minute", "seldom, overdue before", "seldom", "outage"],
)
def test_a_machine_that_did_not_come_back_is_given_the_time_of_an_outage_again(
    env: Schedule, left: float, gaps: list[float], ticks: int
) -> None:
    """The Initializer may have been down as well; *left* is how much of its grace was left at the last snapshot."""
    machine = env.fleet.make_overdue(env.fleet.provided_machine(), -left)
    assert env.ticks_until_rebooted(machine, islice(cycle(gaps), 24)) == ticks


def test_a_killed_snapshot_leaves_the_gap_to_the_next_one(env: Schedule) -> None:
    """The gap is recorded by the snapshot itself, before a later one uses it."""
    (late, *_) = env.reporting
    env.pass_time(HOUR, but=[late])
    dead = env.fleet.open_session()
    suspension.take_health_snapshot(dead, PROVIDER)
    env.fleet.expire(dead)
    env.pass_time(MINUTE, but=[late])
    gaps = env.fleet.sql("SELECT extract(epoch FROM ended_at - began_at)::float8 FROM recovery_gaps_until_now")
    assert [round(seconds / MINUTE) for (seconds,) in gaps] == [60, 1]
    env.run()
    assert not env.rebooted(late)
    with pytest.raises(SessionExpired):
        suspension.take_health_snapshot(dead, PROVIDER)


def test_concurrent_and_repeated_snapshots_do_not_shorten_a_gap(env: Schedule) -> None:
    """An operator may run the loop by hand, and Lambda twice."""
    late, lost, *_ = env.reporting
    env.reporting.remove(lost)
    env.pass_time(30 * MINUTE, but=[late])
    for _ in range(7):
        env.run()
        env.pass_time(20, but=[late])
    env.pass_time(MINUTE)
    env.run()
    assert not env.provider.reboots
    assert env.ticks_until_rebooted(lost, [30 * MINUTE] * 3) == 1


def test_gaps_that_are_too_old_to_matter_are_deleted(env: Schedule) -> None:
    """A slow schedule leaves one for each snapshot."""
    for _ in range(8):
        env.pass_time(4 * HOUR)
        env.run()
    assert env.fleet.sql("SELECT count(*) FROM recovery_gaps") == [[6]]


def test_claims_judge_as_the_snapshot_before_them(env: Schedule) -> None:
    """A snapshot must count the machines that are claimed; one that is not claimed waits no longer than before."""
    lost = env.reporting.pop()
    env.pass_time(30 * MINUTE)
    session = env.fleet.open_session()
    snapshot = suspension.take_health_snapshot(session, PROVIDER)
    assert snapshot.due == {}
    assert snapshot.extended_timeout_seconds == pytest.approx(40 * MINUTE, abs=30)
    assert claimed(session, Process.RECOVERY) == []
    env.pass_time(30 * MINUTE)
    snapshot = suspension.take_health_snapshot(session, PROVIDER)
    assert [each.machine_id for each in snapshot.due[None]] == [lost]
    assert ids(claimed(session, Process.RECOVERY)) == [lost]


def test_why_names_the_gap_between_snapshots(env: Schedule) -> None:
    """Otherwise an operator sees a due machine that no loop takes, without a reason."""
    lost = env.reporting.pop()
    env.pass_time(30 * MINUTE)
    (_, verdict), _ = explain.why(env.fleet.connection, lost)
    assert verdict.blocked_by is Block.NOT_DUE
    assert verdict.because.startswith("its heartbeats may have been missed in a gap of 180")
    env.run()
    env.pass_time(30 * MINUTE)
    (_, verdict), _ = explain.why(env.fleet.connection, lost)
    assert verdict.eligible
