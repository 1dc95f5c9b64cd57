from collections.abc import Callable
from uuid import UUID

import pytest
from shepherd_core.bmdb.wire import server
from shepherd_core.domain.errors.provider import NotSupported, ProviderRefused, ProviderUnavailable
from shepherd_core.domain.provider import Capability
from shepherd_core.domain.remediation import POWER_CYCLE, REBOOT, StepKind
from shepherd_core.operator.adopt_forget import ActionOutcome, ActionResult
from shepherd_core.telemetry import Metric

from tests.conftest import ManualClock
from tests.integration.loops.test_control_loop import kill_sessions
from tests.support.bmdb.capacity import Killed
from tests.support.bmdb.fleet import Fleet
from tests.support.bmdb.recovery import OneMachine
from tests.support.providers.fake_provider import FakeSteps, refuse


class Desk(OneMachine):
    policy = "reboot:2,power-cycle:1,quarantine"

    def told(self, machine_id: UUID) -> list[str]:
        return [event if event == "Finished" else step or event for event, step, _ in self.lines(machine_id)]


@pytest.fixture
def desk(fleet: Fleet, clock: ManualClock) -> Desk:
    return Desk(fleet, clock)


def test_rebooting_a_healthy_machine_starts_its_policy_over(desk: Desk) -> None:
    """What was tried long ago says nothing about a machine that was well since, once its agent is gone."""
    desk.fleet.sql(
        "INSERT INTO work_history (machine_id, process, event, step, timestamp) SELECT :id, 'ShepherdRecovery', e, s, "
        "now() - interval '9 days' + n * interval '1 second' "
        "FROM (VALUES (0, 'Attempted', 'power-cycle'), (1, 'Finished', NULL)) AS x (n, e, s)",
        id=desk.healthy,
    )
    desk.fleet.sql("UPDATE machine_agent_started SET agent_started_at = now() - interval '8 days'")
    desk.reporting += desk.fleet.machines(3, started_ago=3600, reported_ago=0)
    assert desk.take(desk.healthy).result is ActionResult.DONE
    assert desk.told(desk.healthy)[2:].count("Healthy") == 1
    assert desk.seen(desk.healthy).state == "needs_agent"
    desk.watch(4)
    desk.machine = desk.healthy
    assert desk.start_agent(fails=True)
    desk.watch(36)
    assert desk.provider.asked[:2] == ["reboot", "reboot"], "not quarantine: the old power cycle does not count"


@pytest.mark.parametrize("end", ["killed", "interrupted"])
@pytest.mark.parametrize("moment", ["before", "then"])
@pytest.mark.parametrize("kind", [REBOOT, POWER_CYCLE])
def test_a_dead_commands_step_is_neither_repeated_nor_lost(desk: Desk, kind: StepKind, moment: str, end: str) -> None:
    """The machine may be booting: the Recoverer waits for its grace, also after a step that is not in its policy."""
    desk.policy = "reboot:2,quarantine"

    def die(_: str) -> None:
        if end == "killed":
            kill_sessions(desk.fleet)
            desk.fleet.open_session(connection=desk.fleet.connect()).close()
        raise Killed

    setattr(desk.provider, moment, die)
    with pytest.raises(Killed):
        desk.take(desk.machine, kind)
    setattr(desk.provider, moment, lambda _: None)
    asked = [kind.name] if moment == "then" else []
    assert desk.told(desk.machine) == ["Started", kind.name, "Expired" if end == "killed" else "Canceled"]
    desk.watch(8)
    assert desk.provider.asked == asked
    assert desk.told(desk.machine)[3:] == ["Started", "Finished"], "it waits for the outcome, and begins no attempt"
    assert desk.start_agent(fails=True)
    desk.watch(20)
    assert desk.provider.asked == asked
    desk.watch(16)
    assert desk.provider.asked == [*asked, "reboot"]


def test_two_operators_interrupt_a_machine_once(desk: Desk) -> None:
    seen, seen_at = desk.seen(desk.machine), server.now(desk.fleet.connection)
    found: list[object] = []

    def run_once(_: str) -> None:
        desk.provider.then = lambda _: None
        found.append(desk.take(seen, connection=desk.fleet.connect(), seen_at=seen_at))
        found.append(desk.run(desk.fleet.connect())[Metric.CLAIMED])

    desk.provider.then = run_once
    assert desk.take(seen, seen_at=seen_at).result is ActionResult.DONE
    second, claims = found
    assert isinstance(second, ActionOutcome)
    assert (second.result, claims) == (ActionResult.REFUSED, 0)
    assert "is being worked on" in second.text
    late = desk.take(seen, seen_at=seen_at)
    assert (late.result, late.text) == (ActionResult.REFUSED, "it was unhealthy and is needs_agent now: check it again")
    later = desk.take(desk.seen(desk.machine), seen_at=seen_at)
    told = "reboot was begun by another session meanwhile: check it again"
    assert (later.result, later.text, desk.provider.asked) == (ActionResult.REFUSED, told, ["reboot"])


@pytest.mark.parametrize(
    ("error", "text", "events"),
    [
        (ProviderRefused("it is locked"), "provider-refused: it is locked", ["reboot", "reboot", "Failed"]),
        (ProviderUnavailable("503"), "unknown whether the provider accepted", ["reboot", "Finished"]),
    ],
)
def test_what_the_provider_did_not_do_is_told_and_recorded(
    desk: Desk, error: Exception, text: str, events: list[str]
) -> None:
    """A refusal is a step that was not taken; without an answer it may have been, and nothing repeats it soon."""
    desk.provider.then = refuse(error)
    outcome = desk.take(desk.machine)
    assert outcome.result is ActionResult.REFUSED
    assert text in outcome.text
    assert desk.told(desk.machine) == ["Started", *events]


@pytest.mark.parametrize(
    ("plant", "text"),
    [
        (lambda fleet: fleet.bare_machine(), "it is not provided yet"),
        (lambda fleet: fleet.provided_machine("equinix"), "it is of equinix: use the settings of that provider"),
    ],
)
def test_machines_that_the_provider_does_not_have_are_refused(
    desk: Desk, plant: Callable[[Fleet], UUID], text: str
) -> None:
    machine_id = plant(desk.fleet)
    outcome = desk.take(machine_id)
    assert (outcome.result, outcome.text) == (ActionResult.REFUSED, text)
    assert desk.told(machine_id) == []


def test_a_step_that_the_provider_cannot_take_is_refused(desk: Desk) -> None:
    desk.provider = FakeSteps(Capability.POWER_CYCLE)
    with pytest.raises(NotSupported, match="cannot power-cycle machines: use the provider's own tools"):
        desk.take(desk.machine, POWER_CYCLE)
