"""Suspension: if too many machines are unhealthy at once, the Recoverer reboots none of them, and records why."""

from dataclasses import replace
from datetime import timedelta

import pytest
from shepherd_core.bmdb.machines import lookup
from shepherd_core.bmdb.recovery import suspension
from shepherd_core.domain.errors.bmdb import SessionExpired
from shepherd_core.domain.errors.provider import ProviderUnavailable
from shepherd_core.domain.health import WHOLE_PROVIDER
from shepherd_core.domain.machine import Process
from shepherd_core.rules.circuit_breaker import Limit
from shepherd_core.telemetry import Metric

from tests.conftest import ManualClock
from tests.support import defaults
from tests.support.bmdb.breaking_connection import BreakingConnection
from tests.support.bmdb.fleet import HOUR, PROVIDER, Fleet, claimed
from tests.support.bmdb.recovery import MINUTE, TIMEOUTS, RecoveryEnvironment
from tests.support.providers.fake_provider import refuse

REPORTING = 30


@pytest.fixture
def env(fleet: Fleet, clock: ManualClock) -> RecoveryEnvironment:
    """Return an environment without machines."""
    return RecoveryEnvironment(fleet, clock)


def test_our_own_outage_reboots_no_machine_and_timeouts_start_at_its_end(env: RecoveryEnvironment) -> None:
    """Heartbeats that we could not take say nothing about machines, not even when the first arrive again."""
    env.add_reporting(REPORTING)
    everyone, env.reporting = env.reporting, []
    env.wait(32)
    assert env.suspended() == {WHOLE_PROVIDER: f"no machine reports: {REPORTING} stopped reporting"}
    *back, gone = everyone
    for first in range(0, len(back), 3):  # one after the other, as agents back off
        env.reporting += back[first : first + 3]
        env.tick()
    assert env.suspended() == {}
    assert not env.provider.reboots
    for _ in range(int(TIMEOUTS.heartbeat_timeout_seconds) // MINUTE):
        env.tick()
    shown = lookup.show_machine(env.fleet.connection, gone)
    assert env.provider.reboots == {shown.provider_id: 1}


def test_a_fleet_that_never_reports_at_all_is_not_rebooted(env: RecoveryEnvironment) -> None:
    """A wrong endpoint in the settings is the same for all machines."""
    env.add_never_reported(12)
    assert env.run()[Metric.RECOVERY_SUSPENDED] == 1
    assert env.suspended() == {WHOLE_PROVIDER: "no machine reports: 12 never reported"}
    assert not env.provider.reboots


@pytest.mark.parametrize(
    ("kind", "words"), [("add_unhealthy", "stopped reporting"), ("add_never_reported", "never reported")]
)
def test_recovery_is_suspended_above_the_limit_of_machines(env: RecoveryEnvironment, kind: str, words: str) -> None:
    """In a fleet that is large enough for the share to be small."""
    env.add_reporting(110)
    getattr(env, kind)(21)
    assert env.run()[Metric.CLAIMED] == 0
    assert env.suspended() == {WHOLE_PROVIDER: f"21 machines {words}, the limit is 20"}
    env.fleet.empty()
    env.reporting.clear()
    env.add_reporting(110)
    getattr(env, kind)(20)
    assert env.run()[Metric.FINISHED] == 20
    assert env.suspended() == {}


def test_each_kind_of_unhealthy_machine_has_its_own_limit(env: RecoveryEnvironment) -> None:
    """Machines that are being rolled out must not use up what is there for those in service."""
    env.add_reporting(110)
    env.add_unhealthy(20)
    env.add_never_reported(20)
    assert env.run()[Metric.FINISHED] == 40


def test_a_location_that_is_dark_does_not_keep_others_from_being_recovered(env: RecoveryEnvironment) -> None:
    """A switch fails for one room."""
    env.add_reporting(60, "ams")
    env.add_reporting(10, "fra")
    dark = env.add_unhealthy(12, "fra")
    lost = env.add_unhealthy(2, "ams")
    counts = env.run()
    assert (counts[Metric.RECOVERY_SUSPENDED], counts[Metric.FINISHED]) == (1, 2)
    assert env.suspended() == {"fra": "12 of 22 machines stopped reporting, the limit is 20 %"}
    env.reporting += dark
    env.tick()
    assert env.suspended() == {}
    assert env.provider.reboots == {env.provider_id(machine): 1 for machine in lost}


def test_a_fleet_that_fails_little_by_little_is_not_rebooted(env: RecoveryEnvironment) -> None:
    """What was recovered within an hour counts too."""
    env.add_reporting(110)
    for _ in range(3):
        env.add_unhealthy(7)
        env.tick()
    assert env.provider.reboots.total() == 14
    assert env.suspended() == {WHOLE_PROVIDER: "7 machines stopped reporting, 14 recovered recently, the limit is 20"}


def two_waves(env: RecoveryEnvironment) -> None:
    """Let as many machines be rebooted as may be, and once more after the suspension that follows; one is due then."""
    env.limits = replace(defaults.LIMITS, unhealthy=Limit(10, 0.2))
    env.add_reporting(60)
    for wave in (10, 8):
        env.add_unhealthy(wave)
        env.wait(12)
        env.add_unhealthy(2)
        env.wait(4)
        reason = "2 machines stopped reporting, 10 recovered recently, the limit is 10"
        assert env.suspended() == {WHOLE_PROVIDER: reason}
        env.wait(60)
    assert env.provider.reboots.total() == 20


def test_the_number_of_reboots_does_not_start_afresh_each_hour_of_trouble(env: RecoveryEnvironment) -> None:
    """With each hour, as many machines again would be rebooted for the same lost heartbeats."""
    two_waves(env)
    reason = "20 machines stopped reporting and were rebooted in the last 6 hours, the limit is 20"
    assert env.suspended() == {WHOLE_PROVIDER: reason}
    env.wait(60)
    assert env.suspended() == {WHOLE_PROVIDER: reason}
    assert env.provider.reboots.total() == 20


def test_machines_that_are_dead_are_recovered_when_the_last_reboots_are_long_ago(env: RecoveryEnvironment) -> None:
    """They must not wait without end, since nothing but a reboot would bring them back."""
    two_waves(env)
    env.fleet.pass_time(5 * HOUR)
    env.wait(4)
    assert not env.suspended()


def test_a_suspension_after_a_few_reboots_ends_although_more_machines_fall_due(env: RecoveryEnvironment) -> None:
    """In a large fleet some do each hour: they wait for an hour, not for six, in which too many would be due."""
    env.add_reporting(110)
    env.add_unhealthy(20)
    env.tick()
    env.tick()
    for _ in range(6):
        env.add_unhealthy(2)
        env.wait(8)
        assert env.suspended()
    env.wait(16)
    assert not env.suspended()


def test_a_small_fleet_is_not_recovered_if_most_of_it_is_unhealthy(env: RecoveryEnvironment) -> None:
    """Five of nine at once have something in common; shares do not apply to so few."""
    env.add_reporting(4)
    env.add_unhealthy(5)
    env.tick()
    assert env.suspended() == {WHOLE_PROVIDER: "5 of 9 machines do not report, the limit is half in a fleet this small"}
    assert env.provider.asked == []


def test_a_suspension_continues_for_the_current_reason(env: RecoveryEnvironment) -> None:
    """Operators look where the reason sends them, and one that is over sends them to the wrong place."""
    env.add_reporting(REPORTING)
    env.add_unhealthy(REPORTING)
    env.tick()
    (before,) = suspension.suspensions(env.fleet.connection)
    assert before["reason"] == "30 of 60 machines stopped reporting, the limit is 20 %"
    env.reporting.clear()
    env.fleet.pass_time(6 * MINUTE)
    env.run()
    suspended_at = before["suspended_at"] - timedelta(minutes=6)
    (after,) = suspension.suspensions(env.fleet.connection)
    assert after["reason"] == f"no machine reports: {2 * REPORTING} stopped reporting"
    assert (after["ended_at"], after["suspended_at"]) == (None, suspended_at)


def test_a_machine_that_cannot_be_recovered_suspends_nothing(env: RecoveryEnvironment) -> None:
    """The machine is known, and would otherwise be counted without end."""
    env.add_reporting(10)
    env.add_unhealthy(3)
    env.provider.then, env.provider.answers = refuse(ProviderUnavailable("try later")), True
    env.limits = replace(defaults.LIMITS, unhealthy=Limit(20, 1))
    assert env.run()[Metric.FAILED] == 3
    env.provider.then, env.limits = (lambda _: None), defaults.LIMITS
    env.add_unhealthy(2)
    assert env.tick()[Metric.RECOVERY_SUSPENDED] == 0


def test_a_suspension_binds_every_later_claim(env: RecoveryEnvironment) -> None:
    """Also a claim of a concurrent run, which judged the fleet healthy a moment ago."""
    env.add_reporting(REPORTING)
    machines = env.add_unhealthy(2)
    concurrent = env.fleet.open_session()
    assert env.loop.admit(concurrent, PROVIDER).candidates.total == len(machines)
    other = env.fleet.open_session(connection=env.fleet.connect())
    suspension.set_suspensions(other, PROVIDER, {WHOLE_PROVIDER: "?"})
    assert claimed(concurrent, Process.RECOVERY, timeouts=TIMEOUTS) == []
    suspension.set_suspensions(other, PROVIDER, {})
    assert claimed(concurrent, Process.RECOVERY, timeouts=TIMEOUTS) == []  # counted from the end of the suspension
    env.fleet.pass_time(TIMEOUTS.heartbeat_timeout_seconds)
    env.fleet.sql("UPDATE recovery_snapshots SET taken_at = clock_timestamp()")  # else there is a gap
    assert len(claimed(concurrent, Process.RECOVERY, timeouts=TIMEOUTS)) == len(machines) + REPORTING


def test_an_expired_session_neither_starts_nor_ends_a_suspension(env: RecoveryEnvironment) -> None:
    """Its figures are out of date."""
    living, dead = env.fleet.open_session(), env.fleet.open_session()
    suspension.set_suspensions(living, PROVIDER, {"fra": "?"})
    env.fleet.expire(dead)
    with pytest.raises(SessionExpired):
        suspension.set_suspensions(dead, PROVIDER, {"ams": "?"})
    looked = env.fleet.sql("SELECT taken_at FROM recovery_snapshots")
    with pytest.raises(SessionExpired):
        suspension.take_health_snapshot(dead, PROVIDER)
    assert env.fleet.sql("SELECT taken_at FROM recovery_snapshots") == looked
    assert env.suspended() == {"fra": "?"}


def test_a_dry_run_shows_a_suspension_and_leaves_no_trace(env: RecoveryEnvironment) -> None:
    """It is how operators look before they switch the Recoverer on."""
    due = env.add_never_reported(12)
    for suspended in ({}, {WHOLE_PROVIDER: "no machine reports: 12 never reported"}):  # before and during one
        planned = env.dry_run()
        assert planned.work == []
        assert planned.reasons == ("the whole provider: no machine reports: 12 never reported",)
        assert {work.machine_id for work in planned.suspended} == set(due)
        assert {str(planned.decisions[work]) for work in planned.suspended} == {"reboot, attempt 1 of 3"}
        assert env.suspended() == suspended
        env.run()
    assert not env.provider.reboots
    assert all(env.fleet.events(machine) == [] for machine in due)


def test_a_dry_run_separates_suspended_machines_from_others(env: RecoveryEnvironment) -> None:
    """It also shows all suspended machines, because an operator decides by that which to reboot."""
    env.add_reporting(60, "ams")
    env.add_reporting(10, "fra")
    dark = env.add_unhealthy(12, "fra")
    lost = env.add_unhealthy(2, "ams")
    env.run()
    env.provider.reboots.clear()
    (other,) = env.add_unhealthy(1, "ams")
    planned = env.dry_run()
    assert [work.machine_id for work in planned.work] == [other]
    assert {work.machine_id for work in planned.suspended} == set(dark)
    assert not {*lost} & {work.machine_id for work in planned.decisions}
    assert set(env.suspended()) == {"fra"}
    assert not env.provider.reboots


def test_the_counts_show_a_suspension_and_the_unhealthy_machines(env: RecoveryEnvironment) -> None:
    """They become metrics, and an alarm."""
    env.add_reporting(10)
    env.add_unhealthy(5)
    env.add_never_reported(3)
    counts = env.run()
    assert (
        counts[Metric.RECOVERY_SUSPENDED],
        counts[Metric.LATE_HEARTBEATS],
        counts[Metric.LATE_FIRST_HEARTBEATS],
    ) == (1, 5, 3)


def test_a_tick_that_finds_nothing_due_waits_for_the_bmdb_three_times(env: RecoveryEnvironment) -> None:
    """Open, snapshot, close: nearly every invocation, once a minute, does only this."""
    env.add_reporting(REPORTING)
    with BreakingConnection(env.fleet.settings) as breaking:
        connection = env.fleet.connect(breaking.settings)
        env.run(connection=connection)  # prepares its statements
        before = breaking.requests
        env.run(connection=connection)
        assert breaking.requests - before == 3
        connection.close()


def test_a_snapshot_counts_every_machine(env: RecoveryEnvironment) -> None:
    """A location with a few machines is judged by all of them, in a provider with thousands."""
    env.add_reporting(1485, "ams")
    env.add_reporting(12, "fra")
    env.add_unhealthy(3, "fra")
    stats = suspension.take_health_snapshot(env.fleet.open_session(), PROVIDER).stats
    assert (stats["ams"].reporting, stats["fra"].reporting, stats["fra"].late.total()) == (1485, 12, 3)
