"""Suspension: if too many machines are unhealthy at once, the Recoverer reboots none of them, and records why."""

from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest
from shepherd_core.bmdb.machines import lookup
from shepherd_core.bmdb.recovery import suspension
from shepherd_core.domain.errors.bmdb import SessionExpired
from shepherd_core.domain.errors.provider import ProviderUnavailable
from shepherd_core.domain.health import WHOLE_PROVIDER, Unhealthy
from shepherd_core.domain.machine import Process
from shepherd_core.loops.dry_run import dry_run
from shepherd_core.loops.runner import RunLimits
from shepherd_core.rules.circuit_breaker import Limit
from shepherd_core.telemetry import Metric

from tests.conftest import ManualClock
from tests.support import defaults
from tests.support.bmdb.breaking_connection import BreakingConnection
from tests.support.bmdb.fleet import HOUR, PROVIDER, Fleet, claimed
from tests.support.bmdb.recovery import MINUTE, TIMEOUTS, RecoveryEnvironment
from tests.support.providers.fake_provider import refuse

REPORTING = 30
LIMITS = RunLimits(10, 60, 60)


class World(RecoveryEnvironment):
    """Machines that report, in each minute of the schedule, and others."""

    def __init__(self, fleet: Fleet, clock: ManualClock) -> None:
        super().__init__(fleet, clock)
        self.reporting: list[UUID] = []

    def tick(self) -> dict[Metric, float]:
        """Let a minute pass in which those that report do, and run one invocation."""
        self.fleet.pass_time(MINUTE)
        self.fleet.report(self.reporting)
        return self.run()

    def wait(self, minutes: int) -> None:
        """Let time pass with an invocation each four minutes."""
        for _ in range(minutes // 4):
            self.fleet.pass_time(3 * MINUTE)
            self.tick()

    def sound(self, count: int, location: str | None = None) -> None:
        """Plant machines that report, and go on with it."""
        self.reporting += self.fleet.machines(count, started_ago=3 * HOUR, reported_ago=0, location=location)

    def unhealthy(self, count: int, location: str | None = None) -> list[UUID]:
        """Create machines that have been unhealthy for so long that they are due."""
        return self.fleet.machines(count, started_ago=3 * HOUR, reported_ago=HOUR, location=location)

    def never(self, count: int) -> list[UUID]:
        """Plant machines whose agents were started long ago and never reported."""
        return self.fleet.machines(count, started_ago=HOUR)

    def held(self) -> dict[str, str]:
        """Return where recovery is suspended now, and why."""
        found = suspension.suspensions(self.fleet.connection)
        return {hold["location"]: hold["reason"] for hold in found if hold["ended_at"] is None}


@pytest.fixture
def world(fleet: Fleet, clock: ManualClock) -> World:
    """Return a world without machines."""
    return World(fleet, clock)


def test_our_own_outage_reboots_no_machine_and_timeouts_start_at_its_end(world: World) -> None:
    """Heartbeats that we could not take say nothing about machines, not even when the first arrive again."""
    world.sound(REPORTING)
    everyone, world.reporting = world.reporting, []
    world.wait(32)
    assert world.held() == {WHOLE_PROVIDER: f"no machine reports: {REPORTING} stopped reporting"}
    *back, gone = everyone
    for first in range(0, len(back), 3):  # one after the other, as agents back off
        world.reporting += back[first : first + 3]
        world.tick()
    assert world.held() == {}
    assert not world.provider.reboots
    for _ in range(int(TIMEOUTS.heartbeat_timeout_seconds) // MINUTE):
        world.tick()
    shown = lookup.show_machine(world.fleet.connection, gone)
    assert world.provider.reboots == {shown["provider_id"]: 1}


def test_a_fleet_that_never_reports_at_all_is_not_rebooted(world: World) -> None:
    """A wrong endpoint in the settings is the same for all machines."""
    world.never(12)
    assert world.run()[Metric.RECOVERY_SUSPENDED] == 1
    assert world.held() == {WHOLE_PROVIDER: "no machine reports: 12 never reported"}
    assert not world.provider.reboots


@pytest.mark.parametrize(("kind", "words"), [("unhealthy", "stopped reporting"), ("never", "never reported")])
def test_recovery_is_suspended_above_the_limit_of_machines(world: World, kind: str, words: str) -> None:
    """In a fleet that is large enough for the share to be small."""
    world.sound(110)
    getattr(world, kind)(21)
    assert world.run()[Metric.CLAIMED] == 0
    assert world.held() == {WHOLE_PROVIDER: f"21 machines {words}, the limit is 20"}
    world.fleet.empty()
    world.reporting.clear()
    world.sound(110)
    getattr(world, kind)(20)
    assert world.run()[Metric.FINISHED] == 20
    assert world.held() == {}


def test_each_kind_of_unhealthy_machine_has_its_own_limit(world: World) -> None:
    """Machines that are being rolled out must not use up what is there for those in service."""
    world.sound(110)
    world.unhealthy(20)
    world.never(20)
    assert world.run()[Metric.FINISHED] == 40


def test_a_location_that_is_dark_does_not_keep_others_from_being_recovered(world: World) -> None:
    """A switch fails for one room."""
    world.sound(60, "ams")
    world.sound(10, "fra")
    dark = world.unhealthy(12, "fra")
    lost = world.unhealthy(2, "ams")
    counts = world.run()
    assert (counts[Metric.RECOVERY_SUSPENDED], counts[Metric.FINISHED]) == (1, 2)
    assert world.held() == {"fra": "12 of 22 machines stopped reporting, the limit is 20 %"}
    world.reporting += dark
    world.tick()
    assert world.held() == {}
    assert world.provider.reboots == {
        lookup.show_machine(world.fleet.connection, machine)["provider_id"]: 1 for machine in lost
    }


def test_a_fleet_that_fails_little_by_little_is_not_rebooted(world: World) -> None:
    """What was recovered within an hour counts too."""
    world.sound(110)
    for _ in range(3):
        world.unhealthy(7)
        world.tick()
    assert world.provider.reboots.total() == 14
    assert world.held() == {WHOLE_PROVIDER: "7 machines stopped reporting, 14 recovered recently, the limit is 20"}


def two_waves(world: World) -> None:
    """Let as many machines be rebooted as may be, and once more after the suspension that follows; one is due then."""
    world.limits = replace(defaults.LIMITS, unhealthy=Limit(10, 0.2))
    world.sound(60)
    for wave in (10, 8):
        world.unhealthy(wave)
        world.wait(12)
        world.unhealthy(2)
        world.wait(4)
        held = "2 machines stopped reporting, 10 recovered recently, the limit is 10"
        assert world.held() == {WHOLE_PROVIDER: held}
        world.wait(60)
    assert world.provider.reboots.total() == 20


def test_the_number_of_reboots_does_not_start_afresh_each_hour_of_trouble(world: World) -> None:
    """With each hour, as many machines again would be rebooted for the same lost heartbeats."""
    two_waves(world)
    held = "20 machines stopped reporting and were rebooted in the last 6 hours, the limit is 20"
    assert world.held() == {WHOLE_PROVIDER: held}
    world.wait(60)
    assert world.held() == {WHOLE_PROVIDER: held}
    assert world.provider.reboots.total() == 20


def test_machines_that_are_dead_are_recovered_when_the_last_reboots_are_long_ago(world: World) -> None:
    """They must not wait without end, since nothing but a reboot would bring them back."""
    two_waves(world)
    world.fleet.pass_time(5 * HOUR)
    world.wait(4)
    assert not world.held()


def test_a_suspension_after_a_few_reboots_ends_although_more_machines_fall_due(world: World) -> None:
    """In a large fleet some do each hour: they wait for an hour, not for six, in which too many would be due."""
    world.sound(110)
    world.unhealthy(20)
    world.tick()
    world.tick()
    for _ in range(6):
        world.unhealthy(2)
        world.wait(8)
        assert world.held()
    world.wait(16)
    assert not world.held()


def test_a_small_fleet_is_not_recovered_if_most_of_it_is_unhealthy(world: World) -> None:
    """Five of nine at once have something in common; shares do not apply to so few."""
    world.sound(4)
    world.unhealthy(5)
    world.tick()
    assert world.held() == {WHOLE_PROVIDER: "5 of 9 machines do not report, the limit is half in a fleet this small"}
    assert world.provider.asked == []


def test_a_suspension_continues_for_the_current_reason(world: World) -> None:
    """Operators look where the reason sends them, and one that is over sends them to the wrong place."""
    world.sound(REPORTING)
    world.unhealthy(REPORTING)
    world.tick()
    (before,) = suspension.suspensions(world.fleet.connection)
    assert before["reason"] == "30 of 60 machines stopped reporting, the limit is 20 %"
    world.reporting.clear()
    world.fleet.pass_time(6 * MINUTE)
    world.run()
    suspended_at = before["suspended_at"] - timedelta(minutes=6)
    (after,) = suspension.suspensions(world.fleet.connection)
    assert after["reason"] == f"no machine reports: {2 * REPORTING} stopped reporting"
    assert (after["ended_at"], after["suspended_at"]) == (None, suspended_at)


def test_a_machine_that_cannot_be_recovered_suspends_nothing(world: World) -> None:
    """The machine is known, and would otherwise be counted without end."""
    world.sound(10)
    world.unhealthy(3)
    world.provider.then, world.provider.answers = refuse(ProviderUnavailable("try later")), True
    world.limits = replace(defaults.LIMITS, unhealthy=Limit(20, 1))
    assert world.run()[Metric.FAILED] == 3
    world.provider.then, world.limits = (lambda _: None), defaults.LIMITS
    world.unhealthy(2)
    assert world.tick()[Metric.RECOVERY_SUSPENDED] == 0


def test_a_suspension_binds_every_later_claim(world: World) -> None:
    """Also a claim of a concurrent run, which judged the fleet healthy a moment ago."""
    world.sound(REPORTING)
    machines = world.unhealthy(2)
    twin = world.fleet.open_session()
    assert world.loop.admit(twin).limit == len(machines)
    other = world.fleet.open_session(connection=world.fleet.connect())
    suspension.set_suspensions(other, PROVIDER, {WHOLE_PROVIDER: "?"})
    assert claimed(twin, Process.RECOVERY, timeouts=TIMEOUTS) == []
    suspension.set_suspensions(other, PROVIDER, {})
    assert claimed(twin, Process.RECOVERY, timeouts=TIMEOUTS) == []  # counted from the end of the hold
    world.fleet.pass_time(TIMEOUTS.heartbeat_timeout_seconds)
    world.fleet.sql("UPDATE recovery_snapshots SET taken_at = clock_timestamp()")  # else there is a gap
    assert len(claimed(twin, Process.RECOVERY, timeouts=TIMEOUTS)) == len(machines) + REPORTING


def test_an_expired_session_neither_starts_nor_ends_a_suspension(world: World) -> None:
    """Its figures are of another time."""
    living, dead = world.fleet.open_session(), world.fleet.open_session()
    suspension.set_suspensions(living, PROVIDER, {"fra": "?"})
    world.fleet.expire(dead)
    with pytest.raises(SessionExpired):
        suspension.set_suspensions(dead, PROVIDER, {"ams": "?"})
    looked = world.fleet.sql("SELECT taken_at FROM recovery_snapshots")
    with pytest.raises(SessionExpired):
        suspension.take_health_snapshot(dead, PROVIDER)
    assert world.fleet.sql("SELECT taken_at FROM recovery_snapshots") == looked
    assert world.held() == {"fra": "?"}


def test_a_dry_run_shows_a_suspension_and_leaves_no_trace(world: World, clock: ManualClock) -> None:
    """It is how operators look before they switch the Recoverer on."""
    due = world.never(12)
    for held in ({}, {WHOLE_PROVIDER: "no machine reports: 12 never reported"}):  # before there is a hold, and with one
        planned = dry_run(world.loop, PROVIDER, world.fleet.connection, clock, LIMITS)
        assert planned.work == []
        assert planned.reasons == ("the whole provider: no machine reports: 12 never reported",)
        assert {work.machine_id for work in planned.suspended} == set(due)
        assert {str(planned.decisions[work]) for work in planned.suspended} == {"reboot, attempt 1 of 3"}
        assert world.held() == held
        world.run()
    assert not world.provider.reboots
    assert all(world.fleet.events(machine) == [] for machine in due)


def test_a_dry_run_separates_suspended_machines_from_others(world: World, clock: ManualClock) -> None:
    """It also shows all suspended machines, because an operator decides by that about an override."""
    world.sound(60, "ams")
    world.sound(10, "fra")
    dark = world.unhealthy(12, "fra")
    lost = world.unhealthy(2, "ams")
    world.run()
    world.provider.reboots.clear()
    (other,) = world.unhealthy(1, "ams")
    planned = dry_run(world.loop, PROVIDER, world.fleet.connection, clock, LIMITS)
    assert [work.machine_id for work in planned.work] == [other]
    assert {work.machine_id for work in planned.suspended} == set(dark)
    assert not {*lost} & {work.machine_id for work in planned.decisions}
    assert set(world.held()) == {"fra"}
    assert not world.provider.reboots


def test_the_counts_show_a_suspension_and_the_unhealthy_machines(world: World) -> None:
    """They become metrics, and an alarm."""
    world.sound(10)
    world.unhealthy(5)
    world.never(3)
    counts = world.run()
    assert (
        counts[Metric.RECOVERY_SUSPENDED],
        counts[Metric.LATE_HEARTBEATS],
        counts[Metric.LATE_FIRST_HEARTBEATS],
    ) == (1, 5, 3)


def test_a_tick_that_finds_nothing_due_waits_for_the_bmdb_three_times(world: World) -> None:
    """Open, snapshot, close: nearly every invocation, once a minute, does only this."""
    world.sound(REPORTING)
    with BreakingConnection(world.fleet.settings) as breaking:
        connection = world.fleet.connect(breaking.settings)
        world.run(connection=connection)  # prepares its statements
        before = breaking.requests
        world.run(connection=connection)
        assert breaking.requests - before == 3
        connection.close()


MANY = """
INSERT INTO machines SELECT FROM generate_series(1, 1500);
INSERT INTO machine_provided (machine_id, provider, provider_id, provider_location)
    SELECT machine_id, 'static', machine_id::text, CASE WHEN row_number() OVER () <= 15 THEN 'fra' ELSE 'ams' END
    FROM machines;
INSERT INTO machine_agent_started
    SELECT machine_id, now() - interval '1 hour', decode(repeat('5e', 32), 'hex') FROM machines;
INSERT INTO machine_agent_heartbeat SELECT machine_id, now() FROM machines;
INSERT INTO machine_due (machine_id, process, provider, not_before)
    SELECT machine_id, x, provider, CASE WHEN x = process THEN now() + interval '1 hour' END
    FROM machine_need, unnest(ARRAY['ShepherdAgentStart', 'ShepherdRecovery']) AS x;
"""


def test_each_look_is_at_another_sample(world: World) -> None:
    """A small location of which one has too few machines to judge it must not go unjudged for long."""
    world.fleet.sql(MANY)
    session = world.fleet.open_session()
    looks = [suspension.take_health_snapshot(session, PROVIDER).stats for _ in range(10)]
    assert {sum(cell.reporting for cell in cells.values()) for cells in looks} == {1000}
    assert len({cells["fra"].reporting for cells in looks}) > 1


def test_a_second_look_keeps_the_shares_of_the_first(world: World) -> None:
    """Otherwise the unhealthy machines of the first count would be missing in the metrics, or counted twice."""
    world.sound(10, "ams")
    world.unhealthy(5, "fra")
    session = world.fleet.open_session()
    first = suspension.take_health_snapshot(session, PROVIDER)
    second = suspension.take_health_snapshot(session, PROVIDER, skipped_locations=["fra"], before=first)
    for cells in (first.stats, second.stats):
        assert (cells["ams"].reporting, cells["fra"].late[Unhealthy.STOPPED_REPORTING]) == (10, 5)
    assert (
        first.stats["fra"].due[Unhealthy.STOPPED_REPORTING],
        second.stats["fra"].due[Unhealthy.STOPPED_REPORTING],
    ) == (5, 0)
