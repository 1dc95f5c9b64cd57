"""The remediation policy on a real database: the steps for an unhealthy machine, their order and their end."""

from collections.abc import Callable
from typing import get_args

import pytest
from shepherd_core.bmdb.machines import lookup
from shepherd_core.bmdb.recovery import explain, remediation
from shepherd_core.bmdb.session import Session
from shepherd_core.bmdb.work import work
from shepherd_core.bmdb.work.work import Failure, Work
from shepherd_core.domain.clock import Deadline, Permission
from shepherd_core.domain.errors import ShepherdError, TimeLimitExceeded
from shepherd_core.domain.errors.bmdb import SessionExpired
from shepherd_core.domain.errors.machine import AgentExited, SshHostKeyChanged, SshTimedOut
from shepherd_core.domain.errors.provider import (
    NotSupported,
    ProviderRefused,
    ProviderUnavailable,
)
from shepherd_core.domain.machine import Process, ProviderId
from shepherd_core.domain.provider import Capability
from shepherd_core.domain.remediation import (
    QUARANTINE,
    REBOOT,
    RESTART_AGENT,
    STEPS,
    NextStep,
    Step,
    StepKind,
)
from shepherd_core.loops.base import Task
from shepherd_core.loops.recoverer import Recoverer
from shepherd_core.recovery import NotTaken
from shepherd_core.rules.budget import BudgetLimits
from shepherd_core.telemetry import Metric

from tests.conftest import ManualClock, log_lines
from tests.support import defaults
from tests.support.agents.heartbeats import record_heartbeat
from tests.support.bmdb.breaking_connection import BreakingConnection, Lost
from tests.support.bmdb.fleet import HOUR, PROVIDER, Fleet, claimed
from tests.support.bmdb.recovery import MINUTE, TICK_MINUTES, OneMachine, begun
from tests.support.providers.fake_provider import FakeSteps, refuse

GRACE = 30 * MINUTE
START, RECOVER = Process.AGENT_START, Process.RECOVERY


class RemediationSetup(OneMachine):
    def report(self, minutes: int) -> None:
        for _ in range(0, minutes, TICK_MINUTES):
            self.fleet.pass_time(TICK_MINUTES * MINUTE)
            for machine in (self.machine, self.healthy):
                assert record_heartbeat(self.fleet.connection, machine)
            self.run()

    def pin(self) -> None:
        self.fleet.sql("INSERT INTO machine_host_key VALUES (:id, 'ssh-ed25519 AAAA', now())", id=self.machine)

    @property
    def told(self) -> list[str]:
        """What the history says of recovery: steps where they were attempted or skipped, else events."""
        rows = self.fleet.sql(
            "SELECT event, step FROM work_history WHERE machine_id = :id AND process = 'ShepherdRecovery' "
            "AND event NOT IN ('Started', 'Finished') ORDER BY timestamp",
            id=self.machine,
        )
        return [step if event == "Attempted" else f"{event} {step}" if step else event for event, step in rows]

    @property
    def quarantined(self) -> bool:
        return bool(self.fleet.sql("SELECT 1 FROM machine_quarantine WHERE machine_id = :id", id=self.machine))


@pytest.fixture
def env(fleet: Fleet, clock: ManualClock) -> RemediationSetup:
    return RemediationSetup(fleet, clock)


def test_a_machine_that_comes_back_in_time_is_left_alone(env: RemediationSetup) -> None:
    """However often its agent start failed before."""
    env.run()
    env.watch(3)
    assert env.start_agent(fails=True)
    env.watch(20)
    assert env.start_agent()
    env.report(60)
    assert env.provider.asked == ["reboot"]
    assert env.fleet.sql("SELECT 1 FROM machine_grace") == []


def test_a_step_forgives_what_failed_before_it(env: RemediationSetup) -> None:
    """An agent start that has failed for hours would else wait for hours more, and use up the machine's time."""
    env.run()
    env.watch(2)
    session = env.fleet.open_session()
    (held,) = claimed(session, START)
    work.fail(session, {held: Failure(SshTimedOut("no answer"), 4 * HOUR)})
    session.close()
    env.watch(29)
    assert env.provider.asked == ["reboot"] * 2
    env.watch(2)
    assert env.start_agent()


@pytest.mark.parametrize(
    ("minutes", "told"),
    [(10, ["reboot"] * 3 + ["power-cycle"] * 2), (62, ["reboot", *["Healthy", "reboot"] * 4])],
)
def test_the_policy_starts_over_after_an_hour_of_health(env: RemediationSetup, minutes: int, told: list[str]) -> None:
    """A fault once a month is no reason for a quarantine; ten minutes of reports between two are no recovery."""
    for _ in range(4):
        env.run()
        env.watch(3)
        assert env.start_agent()
        env.report(minutes)
        env.watch(11)
    assert env.provider.asked == [step for step in told if step != "Healthy"]
    assert env.told == told


def test_two_steps_are_never_closer_than_the_cooldown(env: RemediationSetup) -> None:
    env.policy = "reboot:3:cooldown=3600,quarantine"
    env.run()
    env.watch(3)
    assert env.start_agent()
    env.report(1)
    env.watch(50)
    assert env.provider.asked == ["reboot"]
    env.watch(8)
    assert env.provider.asked == ["reboot"] * 2


def test_a_step_that_the_provider_lacks_is_skipped_and_logged(
    env: RemediationSetup, capsys: pytest.CaptureFixture[str]
) -> None:
    """Or an operator would look for the power cycles."""
    env.provider = FakeSteps(Capability.POWER_CYCLE)
    env.policy = "reboot:1,power-cycle:2,reinstall:1,quarantine"
    env.run()
    env.watch(2)
    env.start_agent(fails=True)
    env.watch(30)
    assert env.provider.asked == ["reboot", "reinstall"]
    assert env.told == ["reboot", "reinstall"]
    skipped = [line["step"] for line in log_lines(capsys) if line["message"].startswith("remediation step skipped")]
    assert set(skipped) == {"power-cycle"}


def fail_agent_starts(env: RemediationSetup) -> None:
    session = env.fleet.open_session()
    if found := claimed(session, START):
        work.fail(session, {held: Failure(AgentExited("1"), 60) for held in found})
    session.close()


def outlast(env: RemediationSetup, minutes: int) -> None:
    for _ in range(0, minutes, TICK_MINUTES):
        env.watch(TICK_MINUTES)
        fail_agent_starts(env)


@pytest.mark.parametrize(
    ("policy", "stagger"), [("reboot:1,reinstall:1,quarantine", TICK_MINUTES), (defaults.POLICY, 0)]
)
def test_an_outage_without_answers_leaves_many_machines_on_their_step(
    env: RemediationSetup, policy: str, stagger: int
) -> None:
    """Unlike answers with 503 it leaves open what was done; but hours of it tell nothing about any machine."""
    env.policy = policy
    env.limits = BudgetLimits(100, 1)
    machines = [env.machine, *(env.fleet.unhealthy_machine(600 - each * stagger * MINUTE) for each in range(2))]
    env.provider.then = refuse(ProviderUnavailable("504"))
    env.run()
    outlast(env, 3 * 60)
    steps = env.fleet.sql("SELECT DISTINCT step FROM work_history WHERE event = 'Attempted'")
    assert steps == [["reboot"]]
    closest = env.fleet.sql(
        "SELECT min(timestamp - before) FROM (SELECT timestamp, lag(timestamp) OVER (PARTITION BY machine_id "
        "ORDER BY timestamp) AS before FROM work_history WHERE event = 'Attempted') AS x"
    )[0][0]
    assert closest.total_seconds() >= GRACE
    assert len(env.provider.asked) > 3 * 5
    env.provider.then = lambda _: None
    outlast(env, 28)
    assert env.fleet.sql("SELECT 1 FROM machine_quarantine") == []
    assert set(env.provider.asked) == {"reboot"}, "the last attempts of the outage do not count either"
    outlast(env, 36 * 6)
    assert len(env.fleet.sql("SELECT 1 FROM machine_quarantine")) == len(machines), "its answers count again"


@pytest.mark.parametrize("others", [0, 1])
def test_machines_about_which_the_provider_never_answers_end_in_quarantine(env: RemediationSetup, others: int) -> None:
    """If it takes steps on others meanwhile, it is about these; no machine stays at one step without end."""
    for _ in range(others):
        env.fleet.unhealthy_machine()
    env.provider.then = refuse(ProviderUnavailable("504"))
    env.take_elsewhere()
    env.run()
    for _ in range(6):
        env.take_elsewhere()
        outlast(env, 30)
    assert env.quarantined
    assert len(env.provider.asked) == 5 * (1 + others)
    cause = lookup.show_machine(env.fleet.connection, env.machine).quarantine_cause
    assert cause == "the provider did not answer reboot 3 times, power-cycle 2 times"


@pytest.mark.parametrize("error", [TimeLimitExceeded(), ShepherdError("unexpected")])
def test_a_step_of_unknown_outcome_is_repeated_after_its_grace(env: RemediationSetup, error: ShepherdError) -> None:
    """Whatever went wrong after the request was sent: the machine may be booting."""
    env.provider.then = refuse(error)
    assert env.run()[Metric.FAILED] == 1
    env.watch(4)
    assert env.fleet.facts(env.machine) == {"rebooted"}
    env.watch(3)
    assert env.start_agent(fails=True)
    env.watch(24)
    assert env.provider.asked == ["reboot"]
    env.watch(8)
    assert env.provider.asked == ["reboot"] * 2


def test_a_provider_that_fails_for_several_is_asked_no_more(env: RemediationSetup) -> None:
    """A thousand machines would else ask it every minute; and whose fault it is stands with each of them."""
    env.limits = BudgetLimits(100, 1)
    others = env.fleet.machines(11, started_ago=3 * HOUR, reported_ago=2 * HOUR)
    env.provider.then, env.provider.answers = refuse(ProviderUnavailable("503")), True
    counts = env.run(concurrency=1)
    assert len(env.provider.asked) == 3
    assert (counts[Metric.FAILED], counts[Metric.NOT_TAKEN]) == (12, 12)
    causes = env.fleet.sql("SELECT cause FROM work_backoff WHERE machine_id = ANY(:ids)", ids=others)
    assert len(causes) == 11
    assert all("503" in cause for (cause,) in causes)
    assert sum("not asked" in cause for (cause,) in causes) >= 8
    env.provider.then = lambda _: None
    env.watch(4)
    assert len(env.provider.asked) == 15, "the next invocation asks again"


def work_of(env: RemediationSetup, session: Session) -> tuple[Recoverer, Work, Task]:
    (held,) = claimed(session, RECOVER)
    env.settle()
    loop = env.loop
    loop.admit(session, PROVIDER)
    return loop, held, begun(loop, session, held, Deadline(env.clock, 60, session.seconds_left))


def test_machines_that_end_together_keep_their_own_steps(env: RemediationSetup) -> None:
    other = env.fleet.unhealthy_machine()
    env.fleet.sql(
        "INSERT INTO work_history (machine_id, process, event, step, timestamp) "
        "SELECT :id, 'ShepherdRecovery', 'Attempted', 'reboot', now() - n * interval '1 hour' "
        "FROM generate_series(1, 3) AS n",
        id=other,
    )
    session, loop = env.fleet.open_session(), env.loop
    env.settle()
    loop.admit(session, PROVIDER)
    outcomes = {
        held: loop.work_on(begun(loop, session, held, Deadline(env.clock, 60, session.seconds_left)))
        for held in claimed(session, RECOVER)
    }
    assert loop.finish(session, outcomes) == {env.machine, other}
    steps = env.fleet.sql("SELECT machine_id, step FROM work_history WHERE event = 'Finished'")
    assert dict(steps) == {env.machine: "reboot", other: "power-cycle"}


@pytest.mark.parametrize("policy", ["reboot:2,quarantine", "reinstall:2,quarantine"])
def test_a_step_whose_function_died_counts_and_is_not_repeated(env: RemediationSetup, policy: str) -> None:
    """The machine may be booting, or half installed. What came of it is seen when it comes back, or does not."""
    env.policy = policy
    env.pin()
    session = env.fleet.open_session()
    loop, _, attempt = work_of(env, session)
    loop.work_on(attempt)
    env.fleet.expire(session)  # and there it ended
    (step,) = env.provider.asked
    env.watch(1)  # it ends the work, and the machine backs off
    env.watch(1)
    assert env.provider.asked == [step]
    assert env.told == [step, "Expired"]
    assert env.fleet.facts(env.machine) == {"rebooted"} | ({"host_key"} if step == "reboot" else set())
    env.watch(3)
    assert env.start_agent(fails=True)
    env.watch(30)
    assert env.provider.asked == [step] * 2
    env.watch(3)
    assert env.start_agent(fails=True)
    env.watch(30)
    assert env.quarantined, "two attempts, the one that died among them"


def test_no_agent_start_ends_the_attempt_of_a_killed_function(env: RemediationSetup) -> None:
    """The step may still go on: only the end of recovery work says what came of it."""
    env.fleet.sql(
        "INSERT INTO work_history (machine_id, process, event, step, timestamp) VALUES "
        "(:id, 'ShepherdRecovery', 'Attempted', 'reboot', now() - interval '9 minutes'), "
        "(:id, 'ShepherdAgentStart', 'Finished', NULL, now() - interval '5 minutes')",
        id=env.machine,
    )
    env.run()
    assert env.provider.asked == []


@pytest.mark.parametrize("decided", [True, False])
def test_a_function_killed_after_its_decision_delays_the_next(env: RemediationSetup, decided: bool) -> None:
    """The step may have been taken, so the machine gets its grace; before it, nothing can have happened."""
    session = env.fleet.open_session()
    _, _, attempt = work_of(env, session)
    if decided:
        attempt.ask(attempt.decision)
    env.fleet.expire(session)
    env.watch(1)  # it ends the work, and the machine backs off
    env.watch(1)
    if decided:
        env.watch(3)
        assert env.provider.asked == []
        assert env.start_agent(fails=True)
        env.watch(30)
    assert env.provider.asked == ["reboot"]
    assert env.told == [*["reboot"] * decided, "Expired", "reboot"]


@pytest.fixture
def tickets(env: RemediationSetup) -> list[str]:
    """Let the policy begin with a step that only opens a ticket; return the machines that it was taken on."""
    return env.begin_with_tickets()


def test_a_step_that_keeps_the_agent_changes_no_fact(env: RemediationSetup, tickets: list[str]) -> None:
    """An agent that reports again is the same agent: with its key deleted, its heartbeats would be refused."""
    env.pin()
    before = env.fleet.facts(env.machine)
    assert "agent_started" in before
    env.run()
    assert len(tickets) == 1
    assert env.fleet.facts(env.machine) - {"grace"} == before
    assert not env.start_agent()
    env.report(120)
    env.watch(12)
    assert len(tickets) == 2, "it reported for long enough, so that the policy starts over"
    assert not env.provider.asked


def test_a_step_that_keeps_the_agent_lets_agents_be_started(env: RemediationSetup, tickets: list[str]) -> None:
    """Of a machine that has no agent: it stays due for one."""
    env.policy, policy = "restart-agent:1,quarantine", env.policy
    env.run()
    env.policy = policy
    assert env.start_agent(fails=True)
    env.watch(31)
    assert len(tickets) == 1
    assert env.start_agent(fails=True)
    env.watch(29)
    assert env.provider.asked == []
    env.watch(TICK_MINUTES)
    assert (len(tickets), env.provider.asked) == (1, ["reboot"])


def test_a_step_without_the_provider_ignores_outages_of_the_provider(env: RemediationSetup, tickets: list[str]) -> None:
    """Help is wanted most when the provider does not answer; and a webhook that is down must not hold up reboots."""
    env.limits = BudgetLimits(1000, 1)
    for _ in range(4):
        env.fleet.unhealthy_machine()
    (kind,) = env.takes
    tell = env.takes.pop(kind)

    def fail(machine: ProviderId, permission: Permission) -> None:
        tell(machine, permission)
        permission.declined()
        raise ProviderUnavailable("?")

    env.takes[kind] = fail
    assert env.run(concurrency=1)[Metric.FAILED] == 5
    assert len(tickets) == 5


@pytest.mark.parametrize("kind", STEPS.values(), ids=STEPS)
def test_a_step_that_boots_the_machine_loses_its_agent(kind: StepKind) -> None:
    """The agent is a process; nothing starts it at boot."""
    assert kind.loses_agent or not (kind.reboots or kind.loses_host_key)


@pytest.mark.parametrize(
    ("error", "kept"),
    [(ProviderRefused("no"), True), (NotSupported("no"), True), (ProviderUnavailable("perhaps"), False)],
)
def test_a_reinstall_that_did_not_happen_keeps_the_host_key(
    env: RemediationSetup, error: ShepherdError, kept: bool
) -> None:
    """Without the pin, any machine that answers at the address would be trusted."""
    env.policy = "reinstall:1,quarantine"
    env.pin()
    env.provider.then = refuse(error)
    assert env.run()[Metric.FAILED if kept else Metric.FINISHED] == 1
    assert ("host_key" in env.fleet.facts(env.machine)) is kept


@pytest.mark.parametrize("ends", [Fleet.expire, lambda fleet, _: fleet.sql("DELETE FROM work")])
def test_a_worker_that_lost_session_or_work_begins_no_step(
    env: RemediationSetup, ends: Callable[[Fleet, Session], object]
) -> None:
    """Another session may work on its machine by now, and takes the step."""
    session = env.fleet.open_session()
    _, _, attempt = work_of(env, session)
    ends(env.fleet, session)
    with pytest.raises(ShepherdError):
        attempt.ask(attempt.decision)
    assert env.told == []


@pytest.mark.parametrize("lost", get_args(Lost))
def test_a_step_is_on_record_once_whatever_was_lost(env: RemediationSetup, lost: Lost) -> None:
    """An attempt that counts twice brings machines into quarantine too early."""
    with BreakingConnection(env.fleet.settings) as way:
        session = env.fleet.open_session(connection=env.fleet.connect(way.settings))
        (held,) = claimed(session, RECOVER)
        way.lose(lost)
        next_step = NextStep(Step(REBOOT, 1, defaults.TIMEOUTS), 1)
        assert remediation.record_attempts(session, {held: next_step}) == [held]
        assert env.told == ["reboot"]
        env.fleet.disconnect()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("INSERT INTO pauses (machine_id, owner, reason) VALUES ({id}, 'me', 'memory')", "it is paused"),
        ("INSERT INTO pauses (owner, reason) VALUES ('me', 'an outage')", "it is paused"),
        (
            "INSERT INTO machine_quarantine VALUES ({id}, now(), 'I said so', 'steps-used-up')",
            "it needs no recovery any more",
        ),
        ("DELETE FROM machine_agent_started WHERE machine_id = {id}", "it needs no recovery any more"),
    ],
)
def test_a_machine_that_is_due_no_longer_is_not_interrupted(env: RemediationSetup, change: str, told: str) -> None:
    session = env.fleet.open_session()
    (held,) = claimed(session, RECOVER)
    assert remediation.no_longer_due(session, PROVIDER, [held]) == {}
    env.fleet.change(change.format(id=f"'{env.machine}'::uuid"))
    (reason,) = remediation.no_longer_due(session, PROVIDER, [held]).values()
    assert (str(reason), reason.recovered) == (told, False)


@pytest.mark.parametrize("policy", ["restart-agent:1,quarantine", "reboot:1,quarantine"])
def test_a_reporting_machine_loses_neither_its_agent_nor_its_freedom(env: RemediationSetup, policy: str) -> None:
    """A new agent, and quarantine, are asked for of the BMDB and not of the provider; they wait for the same answer."""
    env.policy = policy
    env.fleet.sql(
        "INSERT INTO work_history (machine_id, process, event, step, timestamp) "
        "VALUES (:id, 'ShepherdRecovery', 'Attempted', 'reboot', now() - interval '1 hour')",
        id=env.machine,
    )
    session = env.fleet.open_session()
    loop, held, attempt = work_of(env, session)
    assert attempt.decision.step.kind in {RESTART_AGENT, QUARANTINE}
    record_heartbeat(env.fleet.connection, env.machine)
    outcome = loop.work_on(attempt)
    assert isinstance(outcome, NotTaken)
    assert str(outcome.error) == "its agent reports again"
    assert loop.finish(session, {held: outcome}) == {env.machine}
    assert env.told[-2:] == [f"NotTaken {attempt.decision.step.name}", "Recovered"]
    assert env.fleet.facts(env.machine) >= {"agent_started", "agent_heartbeat"}
    assert not env.quarantined
    assert env.provider.asked == []


def test_a_session_without_life_or_work_interrupts_nothing(env: RemediationSetup) -> None:
    session = env.fleet.open_session()
    (held,) = claimed(session, RECOVER)
    env.fleet.sql("DELETE FROM work")
    assert [str(reason) for reason in remediation.no_longer_due(session, PROVIDER, [held]).values()] == [
        "another session works on the machine"
    ]
    env.fleet.expire(session)
    with pytest.raises(SessionExpired):
        remediation.no_longer_due(session, PROVIDER, [held])


def test_machines_without_ssh_access_are_counted_and_explained(env: RemediationSetup) -> None:
    """No loop cures them, so an operator must see them."""
    env.run()
    env.watch(3)
    env.start_agent(error=SshHostKeyChanged("it has another key"))
    env.watch(12)
    assert env.run()[Metric.NO_ACCESS] == 1
    start, recover = explain.why(env.fleet.connection, env.machine)
    assert start.eligible
    assert recover.because == ("its agent start fails for a reason that no reboot can remove: it has another key")
