"""The Recoverer, between a simulated provider and unhealthy machines in the BMDB."""

from dataclasses import replace

import pytest
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.errors.bmdb import SessionExpired
from shepherd_core.domain.machine import Process
from shepherd_core.recovery import NotTaken

from tests.conftest import ManualClock
from tests.support.bmdb.fleet import HOUR, Fleet, claimed
from tests.support.bmdb.recovery import MINUTE, RecoveryEnvironment, begun


@pytest.fixture
def env(fleet: Fleet, clock: ManualClock) -> RecoveryEnvironment:
    return RecoveryEnvironment(fleet, clock)


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
