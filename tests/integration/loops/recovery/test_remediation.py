from dataclasses import replace

import pytest
from shepherd_core.bmdb.recovery import explain, remediation
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.domain.errors.bmdb import SessionExpired
from shepherd_core.domain.errors.machine import SshHostKeyChanged
from shepherd_core.domain.errors.provider import NotSupported, ProviderRefused, ProviderUnavailable
from shepherd_core.domain.machine import Process
from shepherd_core.domain.remediation import (
    POWER_CYCLE,
    QUARANTINE,
    REBOOT,
    RESTART_AGENT,
    STEPS,
    HistoryLine,
    NextStep,
    Step,
    StepKind,
)
from shepherd_core.recovery import NotTaken, Steps, Taken
from shepherd_core.telemetry import Metric

from tests.conftest import ManualClock
from tests.support import defaults
from tests.support.agents.heartbeats import record_heartbeat
from tests.support.bmdb.fleet import PROVIDER, Fleet, claimed
from tests.support.bmdb.recovery import TICK_MINUTES, OneMachine
from tests.support.providers.fake_provider import refuse

START, RECOVER = Process.AGENT_START, Process.RECOVERY


class RemediationSetup(OneMachine):
    def report(self, minutes: int) -> None:
        self.reporting.append(self.machine)
        self.watch(minutes)
        self.reporting.remove(self.machine)

    def pin(self) -> None:
        self.fleet.sql("INSERT INTO machine_host_key VALUES (:id, 'ssh-ed25519 AAAA', now())", id=self.machine)

    @property
    def told(self) -> list[str]:
        """What the history says of recovery: steps where they were attempted or skipped, else events."""
        rows = [(event, step) for event, step, _ in self.lines() if event not in {"Started", "Finished"}]
        return [str(step) if event == "Attempted" else f"{event} {step}" if step else event for event, step in rows]

    @property
    def quarantined(self) -> bool:
        return bool(self.fleet.sql("SELECT 1 FROM machine_quarantine WHERE machine_id = :id", id=self.machine))


@pytest.fixture
def env(fleet: Fleet, clock: ManualClock) -> RemediationSetup:
    return RemediationSetup(fleet, clock)


@pytest.mark.parametrize(
    ("minutes", "told"), [(10, ["reboot"] * 3 + ["power-cycle"] * 2), (62, ["reboot", *["Healthy", "reboot"] * 4])]
)
def test_the_policy_starts_over_after_an_hour_of_health(env: RemediationSetup, minutes: int, told: list[str]) -> None:
    """A fault once a month is no reason for a quarantine; ten minutes of reports between two are no recovery."""
    for _ in range(4):
        env.run()
        env.watch(3)
        assert env.start_agent()
        env.report(minutes)
        env.watch(11)
    assert (env.provider.asked, env.told) == ([step for step in told if step != "Healthy"], told)


@pytest.mark.parametrize("asked", [False, True], ids=["before", "while the provider is asked"])
def test_a_session_that_is_over_reboots_nothing(env: RemediationSetup, *, asked: bool) -> None:
    """Another may work on the machine by now. Providers look at it first; what counts is the moment of the effect."""
    loop, _, attempt = env.begin(env.fleet.open_session(30))
    attempt = replace(attempt, ask=lambda _: None)  # its answer came before
    if asked:
        env.provider.before = lambda _: env.clock.sleep(31)
    else:
        env.clock.now += 31
    outcome = loop.work_on(attempt)
    assert isinstance(outcome, NotTaken)
    assert isinstance(outcome.error, SessionExpired)
    assert env.provider.asked == []


@pytest.mark.parametrize("policy", ["reboot:2,quarantine", "reinstall:2,quarantine"])
def test_a_step_whose_function_died_counts_and_is_not_repeated(env: RemediationSetup, policy: str) -> None:
    """The machine may be booting, or half installed. What came of it is seen when it comes back, or does not."""
    env.policy = policy
    env.pin()
    session = env.fleet.open_session()
    loop, _, attempt = env.begin(session)
    loop.work_on(attempt)
    env.fleet.expire(session)  # and there it ended
    (step,) = env.provider.asked
    env.watch(1)  # it ends the work, and the machine backs off
    env.watch(1)
    assert (env.provider.asked, env.told) == ([step], [step, "Expired"])
    assert env.fleet.facts(env.machine) == {"rebooted"} | ({"host_key"} if step == "reboot" else set())
    env.watch(3)
    assert env.start_agent(fails=True)
    env.watch(30)
    assert env.provider.asked == [step] * 2
    env.watch(3)
    assert env.start_agent(fails=True)
    env.watch(30)
    assert env.quarantined, "two attempts, the one that died among them"


def test_an_error_after_a_request_that_interrupts_is_on_record(env: RemediationSetup) -> None:
    env.provider.then = refuse(ValueError("half an answer"))
    assert (env.run()[Metric.FAILED], env.told) == (1, ["reboot", "Failed"])
    assert env.fleet.sql("SELECT cause FROM work_backoff") == [["ValueError: half an answer"]]


def test_each_of_two_steps_ends_as_its_own(env: RemediationSetup) -> None:
    env.fleet.unhealthy_machine()
    session = env.fleet.open_session()
    steps = (Step(REBOOT, 1, defaults.TIMEOUTS), Step(POWER_CYCLE, 1, defaults.TIMEOUTS))
    chosen = {held: NextStep(step, 1) for held, step in zip(claimed(session, RECOVER), steps, strict=True)}
    remediation.record_attempts(session, chosen)
    Steps({}, defaults.RULES.backoff).finish(session, {held: Taken(decision) for held, decision in chosen.items()})
    ends = {held: [step for event, step, _ in env.lines(held.machine_id) if event == "Finished"] for held in chosen}
    assert ends == {held: [decision.step.name] for held, decision in chosen.items()}


@pytest.mark.parametrize("provider", [PROVIDER, "equinix"])
def test_steps_taken_at_the_provider_alone_blame_the_machine(env: RemediationSetup, provider: str) -> None:
    """Another provider's machines say nothing about an outage of this one."""
    env.fleet.sql("UPDATE machine_provided SET provider = :name WHERE machine_id = :id", name=provider, id=env.healthy)
    env.provider.then = refuse(ProviderUnavailable("503"))
    env.take_elsewhere()
    env.run()
    env.take_elsewhere()
    history = env.fleet.connection.fetch(HistoryLine, "recovery_history", machine_ids=[env.machine])
    assert any(line.others_taken for line in history) is (provider == PROVIDER)


def test_a_step_that_keeps_the_agent_changes_no_fact(env: RemediationSetup) -> None:
    """An agent that reports again is the same agent: with its key deleted, its heartbeats would be refused."""
    tickets = env.begin_with_tickets()
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


def test_a_step_that_keeps_the_agent_lets_agents_be_started(env: RemediationSetup) -> None:
    """Of a machine that has no agent: it stays due for one."""
    tickets = env.begin_with_tickets()
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
        ("DELETE FROM work WHERE machine_id = {id}", "another session works on the machine"),
    ],
)
def test_a_machine_that_is_due_no_longer_is_not_interrupted(env: RemediationSetup, change: str, told: str) -> None:
    other = env.fleet.unhealthy_machine()
    session = env.fleet.open_session()
    works = claimed(session, RECOVER)
    assert remediation.no_longer_due(session, PROVIDER, works) == {}
    env.fleet.change(change.format(id=f"'{env.machine}'::uuid"))
    reasons = remediation.no_longer_due(session, PROVIDER, works)
    assert {held.machine_id for held in reasons} == {env.machine, *([] if "{id}" in change else [other])}
    assert {(str(reason), reason.recovered) for reason in reasons.values()} == {(told, False)}


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
    loop, held, attempt = env.begin(session)
    assert attempt.decision.step.kind in {RESTART_AGENT, QUARANTINE}
    record_heartbeat(env.fleet.connection, env.machine)
    outcome = loop.work_on(attempt)
    assert isinstance(outcome, NotTaken)
    assert str(outcome.error) == "its agent reports again"
    assert loop.finish(session, {held: outcome}) == {env.machine}
    assert env.told[-2:] == [f"NotTaken {attempt.decision.step.name}", "Recovered"]
    assert env.fleet.facts(env.machine) >= {"agent_started", "agent_heartbeat"}
    assert (env.quarantined, env.provider.asked) == (False, [])


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
