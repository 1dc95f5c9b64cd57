from collections import Counter
from datetime import timedelta
from uuid import UUID

import pytest
from shepherd_core.bmdb.listings import provider_facts
from shepherd_core.bmdb.machines import lookup, pauses
from shepherd_core.bmdb.recovery import explain
from shepherd_core.bmdb.wire import server
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.domain.errors.provider import MachineNotFound, ProviderUnavailable
from shepherd_core.domain.machine import Availability, Machine, Process, ProviderId, ProviderStatus
from shepherd_core.domain.provider import Capability
from shepherd_core.rules.budget import BudgetLimits
from shepherd_core.telemetry import Metric

from simulator.providers.ironic.fake import FakeIronic
from simulator.providers.kit.hardware import NoHardware
from tests.chaos.stage.environment import provision, update
from tests.conftest import ManualClock
from tests.support.bmdb.fleet import HOUR, PROVIDER, Fleet
from tests.support.bmdb.recovery import MINUTE, RecoveryEnvironment
from tests.support.providers.fake_provider import FakeSteps, refuse
from tests.support.providers.ironic_api import ironic_api, ironic_provider, needs_the_fake
from tests.support.waiting import eventually

FAILED = ProviderStatus.PROVISIONING_FAILED_PERMANENT


class FailedMachines(FakeSteps):
    def __init__(self) -> None:
        super().__init__()
        self.capabilities |= {Capability.RELEASE}
        self.says: ProviderStatus | ShepherdError = FAILED

    def get_machine(self, provider_id: ProviderId, deadline: Deadline) -> Machine:
        if isinstance(self.says, ShepherdError):
            raise self.says
        return Machine(provider_id=provider_id, availability=Availability.KNOWN_USED, status=self.says)

    def release(self, provider_id: ProviderId, deadline: Deadline) -> None:
        self.before("release")
        self.asked.append("release")
        self.then("release")


class Failing(RecoveryEnvironment):
    provider: FailedMachines
    failed_policy = "reinstall:1,release:1,quarantine"

    def __init__(self, fleet: Fleet, clock: ManualClock) -> None:
        super().__init__(fleet, clock)
        self.provider = FailedMachines()
        self.add_reporting(10)
        self.machine = self.fail()

    def fail(self) -> UUID:
        return self.fleet.fail(self.fleet.provided_machine(), "deploy failed: no disk")

    @property
    def release(self) -> list[object]:
        """Who asked for its release, why, and whether it was accepted."""
        rows = self.fleet.sql("SELECT asked_by, reason, accepted_at IS NOT NULL FROM machine_release")
        return rows[0] if rows else []


@pytest.fixture
def env(fleet: Fleet, clock: ManualClock) -> Failing:
    return Failing(fleet, clock)


def test_a_failed_machine_is_installed_anew_then_released(env: Failing) -> None:
    """Once a minute the Updater asks what has become of it; the word of an hour ago would have it installed again."""
    env.watch(1)
    assert env.provider.asked == ["reinstall"]
    assert provider_facts.check(env.fleet.connection, PROVIDER, HOUR).not_ready == 11
    env.watch(12)
    assert env.provider.asked == ["reinstall", "release"]
    assert env.release == ["recoverer", "failed for good at its provider: deploy failed: no disk", True]
    assert [each.owner for each in pauses.pauses_in_force(env.fleet.connection)] == ["release"]
    env.watch(60)
    assert env.provider.asked == ["reinstall", "release"]


@pytest.mark.parametrize("says", [ProviderStatus.RUNNING, ProviderStatus.PROVISIONING, ProviderStatus.UNKNOWN])
def test_the_providers_word_is_read_again_before_a_step(env: Failing, says: ProviderStatus) -> None:
    """What the BMDB holds may be an hour old, and somebody may have installed the machine by hand."""
    env.provider.says = says
    assert env.watch(1)[Metric.NO_LONGER_DUE] == 1
    assert (env.provider.asked, env.release) == ([], [])
    env.provider.says = FAILED
    env.watch(1)
    assert env.provider.asked == ["reinstall"]


def test_a_machine_that_runs_is_never_released(env: Failing) -> None:
    """Whatever its provider says of it."""
    env.failed_policy = "release:1,quarantine"
    for running in env.reporting:
        env.fleet.fail(running)
    unhealthy = env.fleet.fail(env.fleet.unhealthy_machine())
    env.watch(1)
    assert sorted(env.provider.asked) == ["reboot", "release"]
    assert env.fleet.sql("SELECT machine_id FROM machine_release") == [[env.machine]]
    assert lookup.show_machine(env.fleet.connection, unhealthy).state == "failed"


@pytest.mark.parametrize("brake", ["budget", "pause of all", "pause", "quarantine", "outage of ours"])
def test_the_brakes_hold_for_failed_machines(env: Failing, brake: str) -> None:
    if brake == "budget":
        env.limits = BudgetLimits(0, 1)
    elif brake == "quarantine":
        env.fleet.quarantine(env.machine)
    elif brake == "outage of ours":
        env.after_outage = True
    else:
        machine_id = env.machine if brake == "pause" else None
        pauses.pause(env.fleet.connection, owner="me", reason="?", machine_id=machine_id)
    env.watch(1)
    assert env.provider.asked == []


def test_what_was_released_counts_in_the_budget(env: Failing) -> None:
    """A provider where every creation fails would else be paid for one after the other, without end."""
    env.failed_policy, env.limits = "release:1,quarantine", BudgetLimits(2, 1)
    for _ in range(5):
        env.fail()
    env.watch(1)
    assert len(env.provider.asked) == 2
    env.fleet.sql(
        "WITH gone AS (DELETE FROM machine_provided p USING machine_release r WHERE r.machine_id = p.machine_id "
        "RETURNING p.*), resumed AS (DELETE FROM pauses) "
        "INSERT INTO machine_tombstone (machine_id, how, provider, provider_id, decommissioned_by, reason) "
        "SELECT machine_id, 'Released', provider, provider_id, 'recoverer', '?' FROM gone"
    )
    env.watch(40)
    assert len(env.provider.asked) == 2
    env.watch(30)
    assert len(env.provider.asked) == 4


def test_a_release_without_an_answer_is_asked_for_again(env: Failing) -> None:
    """Also when the machine is gone by then: its place is free only when its release is on record."""
    env.failed_policy = "release:1,quarantine"
    env.provider.then = refuse(ProviderUnavailable("no answer"))
    env.watch(1)
    assert (env.provider.asked, env.release) == (["release"], [])
    env.provider.then, env.provider.says = lambda _: None, MachineNotFound("404")
    env.watch(12)
    assert (env.provider.asked, env.release[-1]) == (["release"] * 2, True)


def test_why_says_what_becomes_of_a_failed_machine(env: Failing) -> None:
    recovery = {each.process: each for each in explain.why(env.fleet.connection, env.machine)}[Process.RECOVERY]
    assert recovery.blocked_by == "failed"
    env.watch(1)
    recovery = {each.process: each for each in explain.why(env.fleet.connection, env.machine)}[Process.RECOVERY]
    assert (recovery.blocked_by, recovery.because) == ("backoff", "waiting: no other step so soon after the last")
    assert recovery.next_at is not None
    assert recovery.next_at - server.now(env.fleet.connection) < timedelta(seconds=10 * MINUTE)


@pytest.mark.skipif(needs_the_fake, reason="the real service fails no deployment on request")
def test_a_failed_deployment_is_repeated_or_its_place_given_back(fleet: Fleet, clock: ManualClock) -> None:
    """All loops with the fake of Ironic: of two nodes whose deployment failed, one can be deployed again."""
    hardware, env = NoHardware(), Failing(fleet, clock)
    with ironic_api(hardware) as api:
        assert isinstance(api, FakeIronic)
        provider = ironic_provider(api, clock)
        env.name, env.provider = provider.name, provider  # type: ignore[assignment]  # steps of a real adapter
        env.failed_policy = "reinstall:2:boot-wait=0,release:1,quarantine"
        nodes = api.enroll(provider._settings.machine_type, [hardware.reserve() for _ in range(2)])
        api.broken.update(nodes)

        def minute() -> Counter[str]:
            fleet.pass_time(MINUTE)
            provision(provider, fleet.connection, clock, limit=2)
            update(provider, fleet.connection, clock)
            env.run()
            eventually(api.settled)
            rows = fleet.sql("SELECT state FROM machine_states WHERE machine_id <> ALL(:ids)", ids=others)
            return Counter(row[0] for row in rows)

        others = [env.machine, *env.reporting]
        while minute() != Counter(failed=2):
            assert not any(env.fleet.sql("SELECT 1 FROM machine_tombstone")), "nothing is given back yet"
        first = {node["instance_uuid"] for node in api.nodes.values()}
        api.broken.remove(nodes[0])
        found = [minute() for _ in range(25)][-1]
        assert (found["released"], found["needs_agent"]) == (1, 1)
        assert found.total() == 3, "its place was given away again"
        now = {node["instance_uuid"] for node in api.nodes.values()}
        assert len(first & now) == 1
        assert fleet.sql("SELECT decommissioned_by, reason FROM machine_tombstone") == [
            ["recoverer", "failed for good at its provider: deploy failed: no disk"]
        ]
