"""The Recoverer, between a simulated provider and unhealthy machines in the BMDB."""

import threading
from dataclasses import replace
from uuid import UUID

import pytest
from shepherd_core.bmdb.machines import lookup
from shepherd_core.bmdb.work import history
from shepherd_core.domain.backoff import Backoff
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.errors.bmdb import SessionExpired
from shepherd_core.domain.errors.provider import MachineNotFound, ProviderError, ProviderRefused, ProviderUnavailable
from shepherd_core.domain.machine import Process, ProviderId
from shepherd_core.domain.remediation import provider_steps
from shepherd_core.loops.recoverer import Recoverer
from shepherd_core.recovery import NotTaken
from shepherd_core.rules.budget import BudgetLimits
from shepherd_core.telemetry import Metric

from tests.conftest import ManualClock
from tests.support import defaults
from tests.support.agents.heartbeats import record_heartbeat
from tests.support.bmdb.capacity import failing
from tests.support.bmdb.fleet import HOUR, Fleet, claimed
from tests.support.bmdb.recovery import MINUTE, RecoveryEnvironment, begun
from tests.support.providers.fake_provider import refuse

TIMEOUTS = replace(defaults.HEALTH, startup_timeout_seconds=15 * MINUTE, heartbeat_timeout_seconds=5 * MINUTE)
BOOT_WAIT = 120


class RecovererSetup(RecoveryEnvironment):
    @property
    def loop(self) -> Recoverer:
        policy, backoff = defaults.policy(boot_wait=BOOT_WAIT), Backoff(60, 3600, 1.2)
        rules = replace(defaults.RULES, timeouts=TIMEOUTS, backoff=backoff, policy=policy, limits=self.limits)
        return Recoverer(self.provider, provider_steps(self.provider), rules)

    def reboots(self, machine_id: UUID) -> int:
        return self.provider.reboots[self.provider_id(machine_id)]


@pytest.fixture
def env(fleet: Fleet, clock: ManualClock) -> RecovererSetup:
    return RecovererSetup(fleet, clock)


def test_an_unhealthy_machine_is_rebooted_once_and_needs_an_agent(env: RecovererSetup) -> None:
    """What the agent said is gone with it; the machine is the same, and so is its pinned host key."""
    machine = env.fleet.unhealthy_machine()
    env.fleet.sql("INSERT INTO machine_host_key VALUES (:id, 'ssh-ed25519 AAAA', now())", id=machine)
    assert env.run()[Metric.FINISHED] == 1
    assert env.reboots(machine) == 1
    assert env.fleet.facts(machine) == {"rebooted", "host_key"}
    assert env.fleet.events(machine) == ["Started", "Attempted", "Finished"]
    assert lookup.show_machine(env.fleet.connection, machine).needs == Process.AGENT_START
    env.fleet.pass_time(MINUTE)
    assert env.run()[Metric.CLAIMED] == 0
    assert env.reboots(machine) == 1


@pytest.mark.parametrize("error", [ProviderUnavailable("503"), ProviderRefused("422")], ids=repr)
def test_a_reboot_that_fails_is_tried_again_later(env: RecovererSetup, error: ProviderError) -> None:
    """The agent may still be alive, so what is known of it is kept; a minute, and a fifth more each time."""
    machine = env.fleet.unhealthy_machine()
    env.provider.then, env.provider.answers = refuse(error), True
    for interval in (60, 72):
        assert env.run()[Metric.FAILED] == 1
        assert env.fleet.facts(machine) == {"agent_started", "agent_heartbeat"}
        shown = lookup.show_machine(env.fleet.connection, machine)
        assert [backoff.last_interval_seconds for backoff in shown.backoffs] == [interval]
        (last, *_) = history.read_history(env.fleet.connection, machine)
        assert (last.kind, last.fault, last.failed_cause) == (error.kind, error.fault, str(error))
        assert env.run()[Metric.CLAIMED] == 0
        env.fleet.pass_time(interval)
    env.provider.then = lambda _: None
    assert env.run()[Metric.FINISHED] == 1
    assert env.reboots(machine) == 1
    (backoff,) = lookup.show_machine(env.fleet.connection, machine).backoffs
    assert backoff.last_interval_seconds is None, "what failed before must be forgotten"


def test_machines_that_report_during_slow_provider_calls_are_not_rebooted(
    env: RecovererSetup,
) -> None:
    """Ten machines were, up to 64 seconds after they had come back, by a provider that took its time."""
    machines = [env.fleet.unhealthy_machine() for _ in range(10)]
    env.fleet.reporting_machine()
    reporting = env.fleet.connect()
    once = threading.Lock()

    def report(_: str) -> None:
        with once:
            for machine in machines:
                assert record_heartbeat(reporting, machine)

    env.provider.before = report
    env.limits = BudgetLimits(1000, 1)
    counts = env.run()
    assert (counts[Metric.CLAIMED], counts[Metric.NO_LONGER_DUE], counts[Metric.FINISHED]) == (10, 10, 0)
    assert [env.reboots(machine) for machine in machines] == [0] * 10
    assert all(env.fleet.events(machine) == ["Started", "Attempted", "NotTaken", "Recovered"] for machine in machines)
    assert env.run()[Metric.CLAIMED] == 0


def test_a_machine_unknown_to_the_provider_is_recorded_as_such(env: RecovererSetup) -> None:
    """The Provisioner will set it aside; until then the cause says where to look. The others go on."""
    env.fleet.reporting_machine()  # another machine reports; otherwise nothing is heard
    machines = [env.fleet.unhealthy_machine() for _ in range(2)]
    lost = failing(MachineNotFound("no such device"))
    env.provider.then = lambda _: lost()
    counts = env.run()
    assert (counts[Metric.FINISHED], counts[Metric.FAILED]) == (1, 1)
    gone, sound = sorted(machines, key=env.reboots)
    assert history.read_history(env.fleet.connection, gone)[0].failed_cause == "no such device"
    assert env.fleet.facts(gone) == {"agent_started", "agent_heartbeat"}
    assert env.reboots(sound) == 1


@pytest.mark.parametrize("asked", [False, True], ids=["before", "while the provider is asked"])
def test_a_session_that_is_over_reboots_nothing(env: RecovererSetup, clock: ManualClock, *, asked: bool) -> None:
    """
    Another may be at work on the machine by now, or its new agent may be running already.

    Providers look at the machine first, which may take long; what counts is the moment of the effect.
    """
    machine = env.fleet.unhealthy_machine()
    session = env.fleet.open_session(30)
    (work,) = claimed(session, Process.RECOVERY)
    loop = env.loop
    attempt = begun(loop, session, work, Deadline(clock, 60, session.seconds_left))
    attempt = replace(attempt, ask=lambda _: None)  # its answer came before
    if asked:
        env.provider.before = lambda _: clock.sleep(31)
    else:
        clock.now += 31
    outcome = loop.work_on(attempt)
    assert isinstance(outcome, NotTaken)
    assert isinstance(outcome.error, SessionExpired)
    assert env.provider.asked == []
    assert env.reboots(machine) == 0


def test_a_dry_run_names_the_machines_and_reboots_none(env: RecovererSetup) -> None:
    machine = env.fleet.unhealthy_machine()
    planned = env.dry_run().work
    assert [(work.machine_id, work.provider_id) for work in planned] == [
        (machine, ProviderId(env.provider_id(machine)))
    ]
    assert env.reboots(machine) == 0
    assert env.fleet.events(machine) == []


def test_a_failing_machine_is_due_since_its_backoff_ended(env: RecovererSetup) -> None:
    """One that has failed for a day neither goes before the others nor looks as if nobody had worked on it."""
    env.add_reporting(10)
    failing, other = env.fleet.unhealthy_machine(24 * HOUR, 25 * HOUR), env.fleet.unhealthy_machine(6 * MINUTE)
    env.fleet.sql(
        "INSERT INTO work_backoff VALUES (:id, 'ShepherdRecovery', now() - interval '10 seconds', '?', 3600)",
        id=failing,
    )
    planned = env.dry_run()
    assert [work.machine_id for work in planned.work] == [other, failing]
    later = planned.due_at[failing] - planned.due_at[other]
    assert later.total_seconds() == pytest.approx(50, abs=5)
    env.run(concurrency=1)
    started = env.fleet.sql("SELECT machine_id FROM work_history WHERE event = 'Started' ORDER BY timestamp")
    assert started == [[other], [failing]]
