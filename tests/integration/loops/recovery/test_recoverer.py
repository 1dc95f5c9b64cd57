"""The Recoverer, between a simulated provider and unhealthy machines in the BMDB."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from uuid import UUID

import pytest
from shepherd_core.bmdb.machines import lookup
from shepherd_core.bmdb.session import Session
from shepherd_core.bmdb.work import history
from shepherd_core.bmdb.work.work import Work
from shepherd_core.domain.backoff import Backoff
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.errors.bmdb import SessionExpired
from shepherd_core.domain.machine import Machine, Process, ProviderId
from shepherd_core.domain.remediation import provider_steps
from shepherd_core.loops.base import Task
from shepherd_core.loops.recoverer import Recoverer
from shepherd_core.providers.equinix.adapter import EquinixProvider
from shepherd_core.rules.circuit_breaker import Limit
from shepherd_core.telemetry import Metric

from simulator.environment.faults import FakeAnswer
from simulator.providers.equinix.api import EquinixApi
from simulator.providers.kit.hardware import NoHardware
from tests.conftest import ManualClock
from tests.support import defaults
from tests.support.agents.heartbeats import record_heartbeat
from tests.support.bmdb.capacity import API_KEY, PREFIX, PROJECT, equinix_settings
from tests.support.bmdb.fleet import HOUR, Fleet, claimed, ids
from tests.support.bmdb.recovery import MINUTE, RecoveryEnvironment
from tests.support.waiting import WAIT_SECONDS

ACTIONS = "/devices/{id}/actions"
TIMEOUTS = replace(defaults.HEALTH, startup_timeout_seconds=15 * MINUTE, heartbeat_timeout_seconds=5 * MINUTE)
BOOT_WAIT = 120


class RecovererSetup(RecoveryEnvironment):
    """A project whose devices are machines of the BMDB."""

    name = "equinix"

    def __init__(self, fleet: Fleet, api: EquinixApi, clock: ManualClock) -> None:
        super().__init__(fleet, clock)
        self.api = api
        self.equinix = EquinixProvider(equinix_settings(api), lambda: API_KEY, lambda: "", clock)

    @property
    def loop(self) -> Recoverer:
        """Return the loop as a cold function makes it."""
        policy, backoff = defaults.policy(boot_wait=BOOT_WAIT), Backoff(60, 3600, 1.2)
        rules = replace(defaults.RULES, timeouts=TIMEOUTS, backoff=backoff, policy=policy, limits=self.limits)
        return Recoverer(self.equinix, provider_steps(self.equinix), rules)

    def given(self, machine_id: UUID) -> UUID:
        """Let a machine that was planted be a device of the project, and return it."""
        device = self.api.add_active_device(f"{PREFIX}{machine_id}", racked=False)
        self.fleet.watch("equinix")
        self.fleet.change(
            machine_id,
            f"UPDATE machine_provided SET provider = 'equinix', provider_id = '{device.id}' "
            f"WHERE machine_id = '{machine_id}'",
        )
        return machine_id

    def attempt(self, session: Session, work: Work, deadline: Deadline) -> Task:
        """Return a task of the loop."""
        return Task(work, deadline, decision=self.loop.decide(session, [work])[work])

    def reboots(self, machine_id: UUID) -> int:
        """Return how often the provider was made to reboot the machine."""
        provider_id = self.provider_id(machine_id)
        (device,) = (device for device in self.api.devices() if device.id == provider_id)
        return device.actions_taken.count("reboot")


@pytest.fixture
def env(fleet: Fleet, clock: ManualClock) -> Iterator[RecovererSetup]:
    """Return an environment without machines."""
    with EquinixApi(NoHardware(), project_id=PROJECT, api_key=API_KEY, reservations=0) as api:
        yield RecovererSetup(fleet, api, clock)
        assert api.errors == []


def test_an_unhealthy_machine_is_rebooted_once_and_needs_its_agent_again(env: RecovererSetup) -> None:
    """What the agent said is gone with it; the machine is the same, and so is its pinned host key."""
    machine = env.given(env.fleet.unhealthy_machine())
    env.fleet.sql("INSERT INTO machine_host_key VALUES (:id, 'ssh-ed25519 AAAA', now())", id=machine)
    assert env.run()[Metric.FINISHED] == 1
    assert env.reboots(machine) == 1
    assert env.fleet.facts(machine) == {"rebooted", "host_key"}
    assert env.fleet.events(machine) == ["Started", "Attempted", "Finished"]
    assert lookup.show_machine(env.fleet.connection, machine)["needs"] == Process.AGENT_START
    env.fleet.pass_time(MINUTE)
    assert env.run()[Metric.CLAIMED] == 0
    assert env.reboots(machine) == 1


def test_no_agent_is_started_before_the_machine_should_be_up(env: RecovererSetup) -> None:
    """No invocation waits for it: the time is recorded, and the Initializer starts when it is over."""
    machine = env.given(env.fleet.unhealthy_machine())
    env.run()
    session = env.fleet.open_session()
    env.fleet.pass_time(BOOT_WAIT - WAIT_SECONDS)
    assert claimed(session, Process.AGENT_START, provider="equinix") == []
    env.fleet.pass_time(WAIT_SECONDS)
    assert ids(claimed(session, Process.AGENT_START, provider="equinix")) == [machine]


@pytest.mark.parametrize(
    ("started", "heartbeat", "rebooted"),
    [
        (14 * MINUTE, None, False),
        (16 * MINUTE, None, True),
        (HOUR, 4 * MINUTE, False),
        (HOUR, 6 * MINUTE, True),
        (10 * MINUTE, 2 * HOUR, False),  # what an earlier agent said does not count
    ],
)
def test_only_an_unhealthy_machine_is_rebooted(
    env: RecovererSetup, started: float, heartbeat: float | None, rebooted: bool
) -> None:
    """The first heartbeat may take longer, since much has to start before it."""
    fleet = env.fleet
    machine = env.given(
        fleet.started_machine(started) if heartbeat is None else fleet.unhealthy_machine(heartbeat, started)
    )
    assert env.run()[Metric.CLAIMED] == rebooted
    assert env.reboots(machine) == rebooted


def test_a_heartbeat_at_the_last_moment_saves_the_machine(env: RecovererSetup) -> None:
    """A machine that was due, and reports before it is claimed, is not rebooted."""
    machine = env.given(env.fleet.unhealthy_machine())
    assert record_heartbeat(env.fleet.connection, machine)
    assert env.run()[Metric.CLAIMED] == 0
    assert env.reboots(machine) == 0
    for _ in range(4):
        env.tick()
    assert env.reboots(machine) == 0
    for _ in range(2):
        env.tick()
    assert env.reboots(machine) == 1


@pytest.mark.parametrize(("status", "cause"), [(503, "ProviderUnavailable"), (422, "ProviderRefused")])
def test_a_reboot_that_fails_is_tried_again_later(env: RecovererSetup, status: int, cause: str) -> None:
    """The agent may still be alive, so what is known of it is kept; a minute, and a fifth more each time."""
    machine = env.given(env.fleet.unhealthy_machine())
    env.api.faults.add(FakeAnswer(method="POST", path=ACTIONS, times=2, status=status))
    for interval in (60, 72):
        assert env.run()[Metric.FAILED] == 1
        assert env.fleet.facts(machine) == {"agent_started", "agent_heartbeat"}
        shown = lookup.show_machine(env.fleet.connection, machine)
        assert [backoff["last_interval_seconds"] for backoff in shown["backoffs"]] == [interval]
        assert history.read_history(env.fleet.connection, machine)[0]["failed_cause"].startswith(f"{cause}: ")
        assert env.run()[Metric.CLAIMED] == 0
        env.fleet.pass_time(interval)
    assert env.run()[Metric.FINISHED] == 1
    assert env.reboots(machine) == 1
    (backoff,) = lookup.show_machine(env.fleet.connection, machine)["backoffs"]
    assert backoff["last_interval_seconds"] is None, "what failed before must be forgotten"


class Slow(EquinixProvider):
    """A provider that is asked about a machine for so long that something happens meanwhile."""

    happening: Callable[[], object] = staticmethod(lambda: None)

    def get_machine(self, provider_id: ProviderId, deadline: Deadline) -> Machine:
        """Let it happen, and then answer."""
        found = super().get_machine(provider_id, deadline)
        self.happening()
        return found


def test_machines_that_report_again_while_the_provider_is_slow_are_not_rebooted(
    env: RecovererSetup, clock: ManualClock
) -> None:
    """Ten machines were, up to 64 seconds after they had come back, by a provider that took its time."""
    machines = [env.given(env.fleet.unhealthy_machine()) for _ in range(10)]
    provider = Slow(equinix_settings(env.api), lambda: API_KEY, lambda: "", clock)
    reporting = env.fleet.connect()
    once = threading.Lock()

    def report() -> None:
        with once:
            for machine in machines:
                assert record_heartbeat(reporting, machine)

    provider.happening = report
    env.equinix, env.limits = provider, replace(defaults.LIMITS, unhealthy=Limit(1000, 1))
    counts = env.run()
    assert (counts[Metric.CLAIMED], counts[Metric.NO_LONGER_DUE], counts[Metric.FINISHED]) == (10, 10, 0)
    assert [env.reboots(machine) for machine in machines] == [0] * 10
    assert all(env.fleet.events(machine) == ["Started", "Attempted", "NotTaken", "Recovered"] for machine in machines)
    assert env.run()[Metric.CLAIMED] == 0


def test_a_provider_outage_of_hours_uses_no_remediation_step(env: RecovererSetup) -> None:
    """Otherwise an unhealthy machine reaches quarantine without any step having been taken."""
    reporting = env.given(env.fleet.reporting_machine())
    machine = env.given(env.fleet.unhealthy_machine())
    env.api.faults.add(FakeAnswer(method="POST", path=ACTIONS, times=0, status=503))
    env.run()
    for _ in range(6 * HOUR // (4 * MINUTE)):
        env.fleet.pass_time(4 * MINUTE)
        record_heartbeat(env.fleet.connection, reporting)
        env.run()
    shown = lookup.show_machine(env.fleet.connection, machine)
    assert shown["quarantined_at"] is None
    attempted = env.fleet.sql("SELECT DISTINCT step FROM work_history WHERE step IS NOT NULL")
    assert attempted == [["reboot"]]
    assert env.reboots(machine) == 0


def test_a_machine_unknown_to_the_provider_is_recorded_as_such(env: RecovererSetup) -> None:
    """The Provisioner will set it aside; until then the cause says where to look. The others go on."""
    env.given(env.fleet.reporting_machine())  # another machine reports; otherwise recovery is suspended
    gone, sound = (env.given(env.fleet.unhealthy_machine()) for _ in range(2))
    env.api.forget(env.provider_id(gone))
    counts = env.run()
    assert (counts[Metric.FINISHED], counts[Metric.FAILED]) == (1, 1)
    assert history.read_history(env.fleet.connection, gone)[0]["failed_cause"].startswith("MachineNotFound: ")
    assert env.fleet.facts(gone) == {"agent_started", "agent_heartbeat"}
    assert env.reboots(sound) == 1


def test_concurrent_runs_reboot_each_machine_once(env: RecovererSetup) -> None:
    """A reboot in the middle of a boot could break what the first one would have mended."""
    for _ in range(32):
        env.given(env.fleet.reporting_machine())
    machines = [env.given(env.fleet.unhealthy_machine()) for _ in range(8)]
    together = threading.Barrier(2)

    def run_once() -> dict[Metric, float]:
        connection = env.fleet.connect()
        together.wait(WAIT_SECONDS)
        return env.run(connection)

    with ThreadPoolExecutor(2) as pool:
        counts = [each.result() for each in [pool.submit(run_once) for _ in range(2)]]
    assert sum(each[Metric.FINISHED] for each in counts) == 8
    assert [env.reboots(machine) for machine in machines] == [1] * 8


def test_a_session_without_time_left_reboots_nothing(env: RecovererSetup, clock: ManualClock) -> None:
    """Another may be at work on the machine by now, or its new agent may be running already."""
    machine = env.given(env.fleet.unhealthy_machine())
    session = env.fleet.open_session(30)
    (work,) = claimed(session, Process.RECOVERY, provider="equinix")
    attempt = env.attempt(session, work, Deadline(clock, 60, session.seconds_left))
    clock.now += 31
    with pytest.raises(SessionExpired):
        env.loop.work_on(attempt)
    assert env.reboots(machine) == 0
    assert env.api.calls.total() == 0


def test_a_session_that_ends_while_the_provider_is_asked_reboots_nothing(
    env: RecovererSetup, clock: ManualClock
) -> None:
    """The device is looked at first, which may take long; what counts is the moment of the effect."""
    machine = env.given(env.fleet.unhealthy_machine())
    session = env.fleet.open_session(30)
    (work,) = claimed(session, Process.RECOVERY, provider="equinix")

    left = iter([30.0, 0.0])
    attempt = env.attempt(session, work, Deadline(clock, 60, lambda: next(left, 0.0)))
    with pytest.raises(SessionExpired):
        env.loop.work_on(attempt)
    assert env.reboots(machine) == 0
    assert env.api.calls["GET", "/devices/{id}"] == 1


def test_a_dry_run_names_the_machines_and_reboots_none(env: RecovererSetup) -> None:
    """It is how operators look before they switch it on."""
    machine = env.given(env.fleet.unhealthy_machine())
    planned = env.dry_run().work
    assert [(work.machine_id, work.provider_id) for work in planned] == [
        (machine, ProviderId(env.provider_id(machine)))
    ]
    assert env.reboots(machine) == 0
    assert env.fleet.events(machine) == []
