"""The remediation policy on a real database: the steps for an unhealthy machine, their order and their end."""

import pytest
from shepherd_core.bmdb.recovery import remediation
from shepherd_core.bmdb.session import Session
from shepherd_core.bmdb.work.work import Work
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.domain.errors.provider import (
    NotSupported,
    ProviderRefused,
    ProviderUnavailable,
)
from shepherd_core.domain.machine import Process
from shepherd_core.domain.remediation import (
    QUARANTINE,
    RESTART_AGENT,
    STEPS,
    StepKind,
)
from shepherd_core.loops.base import Task
from shepherd_core.loops.recoverer import Recoverer
from shepherd_core.recovery import NotTaken
from shepherd_core.telemetry import Metric

from tests.conftest import ManualClock
from tests.support.agents.heartbeats import record_heartbeat
from tests.support.bmdb.fleet import PROVIDER, Fleet, claimed
from tests.support.bmdb.recovery import OneMachine, begun
from tests.support.providers.fake_provider import refuse

START, RECOVER = Process.AGENT_START, Process.RECOVERY


class RemediationSetup(OneMachine):
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


def work_of(env: RemediationSetup, session: Session) -> tuple[Recoverer, Work, Task]:
    (held,) = claimed(session, RECOVER)
    env.settle()
    loop = env.loop
    loop.admit(session, PROVIDER)
    return loop, held, begun(loop, session, held, Deadline(env.clock, 60, session.seconds_left))


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
