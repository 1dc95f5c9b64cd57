"""The Recoverer, between a simulated provider and unhealthy machines in the BMDB."""

from dataclasses import replace

import pytest
from shepherd_core.bmdb.work import history
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.errors.bmdb import SessionExpired
from shepherd_core.domain.errors.provider import MachineNotFound
from shepherd_core.domain.machine import Process
from shepherd_core.recovery import NotTaken
from shepherd_core.telemetry import Metric

from tests.conftest import ManualClock
from tests.support.bmdb.capacity import failing
from tests.support.bmdb.fleet import HOUR, Fleet, claimed
from tests.support.bmdb.recovery import MINUTE, RecoveryEnvironment, begun


@pytest.fixture
def env(fleet: Fleet, clock: ManualClock) -> RecoveryEnvironment:
    return RecoveryEnvironment(fleet, clock)


def test_a_machine_unknown_to_the_provider_is_recorded_as_such(env: RecoveryEnvironment) -> None:
    """The Provisioner will set it aside; until then the cause says where to look. The others go on."""
    env.fleet.reporting_machine()  # another machine reports; otherwise nothing is heard
    machines = [env.fleet.unhealthy_machine() for _ in range(2)]
    lost = failing(MachineNotFound("no such device"))
    env.provider.then = lambda _: lost()
    counts = env.run()
    assert (counts[Metric.FINISHED], counts[Metric.FAILED]) == (1, 1)
    gone, _ = sorted(machines, key=lambda each: env.provider.reboots[env.provider_id(each)])
    assert history.read_history(env.fleet.connection, gone)[0].failed_cause == "no such device"
    assert env.fleet.facts(gone) == {"agent_started", "agent_heartbeat"}
    assert env.provider.reboots.total() == 1


@pytest.mark.parametrize("asked", [False, True], ids=["before", "while the provider is asked"])
def test_a_session_that_is_over_reboots_nothing(env: RecoveryEnvironment, clock: ManualClock, *, asked: bool) -> None:
    """
    Another may be at work on the machine by now, or its new agent may be running already.

    Providers look at the machine first, which may take long; what counts is the moment of the effect.
    """
    env.fleet.unhealthy_machine()
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


def test_a_failing_machine_is_due_since_its_backoff_ended(env: RecoveryEnvironment) -> None:
    """One that has failed for a day neither goes before the others nor looks as if nobody had worked on it."""
    env.add_reporting(10)
    failing, other = env.fleet.unhealthy_machine(24 * HOUR, 25 * HOUR), env.fleet.unhealthy_machine(11 * MINUTE)
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
