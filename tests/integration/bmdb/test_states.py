from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import product
from uuid import UUID

from shepherd_core.bmdb.agents import installation, reports
from shepherd_core.bmdb.listings import decommissioning, provider_facts, provisioning
from shepherd_core.bmdb.listings.decommissioning import RemovalRequest
from shepherd_core.bmdb.machines import overview
from shepherd_core.bmdb.machines.search import Search, matching
from shepherd_core.bmdb.recovery import remediation
from shepherd_core.bmdb.session import Session
from shepherd_core.bmdb.wire import server
from shepherd_core.bmdb.work import work
from shepherd_core.domain.health import HealthTimeouts
from shepherd_core.domain.machine import Availability, Machine, Process, ProviderId, ProviderStatus
from shepherd_core.domain.pb.callback_pb2 import MetropolisInstallation
from shepherd_core.domain.states import State

from shepherdctl.descriptions.state import Observer, with_pauses
from tests.conftest import ManualClock
from tests.integration.bmdb.combinations import COMBINATIONS, Combination, drawn, plant
from tests.support.bmdb.fleet import HOUR, PROVIDER, Fleet, claimed, ids
from tests.support.bmdb.work_ends import ENDS, finish_recovery


def test_the_bmdb_derives_the_state_from_every_combination_of_facts(fleet: Fleet) -> None:
    states = plant(fleet, COMBINATIONS)
    found = fleet.sql("SELECT machine_id, state FROM machine_states")
    assert len(found) == len(states)
    assert [(each, state) for each, state in found if state != states[each]] == []
    assert set(states.values()) == set(State)
    fleet.empty()  # some have facts that exclude each other


def test_lists_and_counts_have_the_states_of_the_bmdb(fleet: Fleet) -> None:
    states = plant(fleet, (each for each in COMBINATIONS if each.gone is None))
    assert {each.machine_id: each.state for each in matching(fleet.connection)} == states
    for counts in (overview.fleet_counts(fleet.connection), overview.fleet_counts(fleet.connection, [60.0, HOUR])):
        counted: Counter[State] = Counter()
        for each in counts:
            counted[each.state] += each.machines
        assert counted == Counter(states.values())
    fleet.empty()


def test_a_machine_is_listed_in_the_state_searched_for(fleet: Fleet) -> None:
    """A list of unhealthy machines had running ones, if their timeout ended after the command had read the time."""
    fleet.unhealthy_machine()
    fleet.sql("UPDATE recovery_policy SET heartbeat_timeout_seconds = :s", s=2 * HOUR)
    (found,) = matching(fleet.connection, Search(states=(State.UNHEALTHY,)))
    observer = Observer(server.now(fleet.connection) - timedelta(minutes=1), [])
    assert with_pauses(found, observer)["state"] == State.UNHEALTHY
    assert observer.describe(found).plain.startswith("unhealthy")


FAILED = ProviderStatus.PROVISIONING_FAILED_PERMANENT
KEY = bytes.fromhex("5e" * 32)
"""Of every agent."""
IMAGE = MetropolisInstallation(image_url="https://images.example.com/a.img", image_sha256=bytes(32))
ORDER = RemovalRequest("me", "?", 0, despite_heartbeat=True)
KNOWN = [
    Combination(quarantined=quarantined, installation=installation, started=started, heard=heard, failed=failed)
    for quarantined, installation, started, heard, failed in product(
        (False, True),
        ((None, None, ""), (2, None, ""), (2, 2, "Success")),
        (None, 10, 5_000),
        (None, 5, 4_000),
        (False, True),
    )
    # An agent that reports a success reports.
    if quarantined or installation[2] != "Success" or started is None or (heard is not None and heard < started)
]
"""Facts that provided machines can have."""


class Recorder:
    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.connection = fleet.connection
        self.seen: set[tuple[State | None, State | None]] = set()
        self.machines: list[UUID] = []
        """Those that are provided at first."""
        self.states: dict[UUID, State] = {}
        self.session: Session
        """It holds the lock of the provider."""

    def begin(self) -> None:
        self.fleet.empty()
        self.machines = list(plant(self.fleet, KNOWN))
        self.states = self._read()
        self.session = self.fleet.open_session()
        assert provisioning.take_lock(self.session, PROVIDER) is not None

    def look(self) -> None:
        before, self.states = self.states, self._read()
        pairs = {(before.get(each), self.states.get(each)) for each in before.keys() | self.states.keys()}
        self.seen |= {pair for pair in pairs if pair[0] != pair[1]}

    def _read(self) -> dict[UUID, State]:
        return {row[0]: State(row[1]) for row in self.fleet.sql("SELECT machine_id, state FROM machine_states")}

    def create(self) -> None:
        created, not_created = (provisioning.create_intent(self.session, PROVIDER, None) for _ in range(2))
        assert created is not None
        assert not_created is not None
        self.look()
        machines = [Machine(provider_id=ProviderId(each), availability=Availability.KNOWN_USED) for each in "abc"]
        provisioning.provide(self.session, PROVIDER, created, machines[0])
        failed = provisioning.create_intent(self.session, PROVIDER, None)
        assert failed is not None
        self.look()
        provisioning.provide(self.session, PROVIDER, failed, replace(machines[2], status=FAILED))
        provisioning.delete_intent(self.session, PROVIDER, provisioning.ledger(self.connection, PROVIDER).intents[0])
        provisioning.adopt(self.session, PROVIDER, machines[1])

    def start_agents(self) -> None:
        ENDS["finish_agent_start"].end(self.session, claimed(self.session, Process.AGENT_START))

    def recover(self) -> None:
        """Take a step on unhealthy machines, some of which report just before it is recorded."""
        works = claimed(self.session, Process.RECOVERY)
        self.report(works=works[::2])
        finish_recovery(self.session, works, 0)

    def quarantine(self, process: Process = Process.RECOVERY, installed: bool | None = None) -> None:
        """Put machines into quarantine on which a loop works; not None: their agents have just reported."""
        works = claimed(self.session, process)
        if installed is not None:
            self.report(installed=installed, works=works)
        remediation.quarantine(self.session, dict.fromkeys(works, "?"))

    def give_up_failed(self) -> None:
        """Use up the steps for machines that failed for good at their provider."""
        self.watch(HOUR, failed_steps=True)
        failed = [each for each, state in self.states.items() if state is State.FAILED]
        works = work.claim(self.session, Process.RECOVERY, failed)
        remediation.quarantine(self.session, dict.fromkeys(works, "?"))

    def report(self, *, installed: bool = False, works: Sequence[work.Work] | None = None) -> None:
        """Let the agents report, perhaps also that the installation succeeded."""
        outcome = reports.ReportedInstallation(raw=b"", generation=2, result="Success") if installed else None
        now = int(server.now(self.connection).timestamp() * 1000)
        for each in self.machines if works is None else ids(works):
            heartbeat = reports.Heartbeat(machine_id=each, public_key=KEY, signed_at=now, installation=outcome)
            reports.accept_heartbeat(self.connection, heartbeat)
        self.look()

    def list_all(self, status: ProviderStatus) -> None:
        assert provider_facts.begin(self.session, PROVIDER, None)
        known = provider_facts.known(self.connection, PROVIDER, everything=True)
        changes = [provider_facts.FactsChange(each, replace(each.facts, status=status)) for each in known]
        provider_facts.write(self.session, PROVIDER, changes)

    def request_installations(self) -> None:
        for each in self.machines:
            assert installation.request(self.connection, each, IMAGE, installation.load(self.connection, each))

    def unquarantine(self) -> None:
        for each in self.machines:
            remediation.unquarantine(self.connection, each, reason="?")

    def reboot(self) -> None:
        finish_recovery(self.session, [work.start_work(self.session, each, "?") for each in self.machines], 0)

    def wait(self) -> None:
        self.fleet.pass_time(HOUR)

    def watch(self, timeout: float, *, failed_steps: bool = False) -> None:
        timeouts = HealthTimeouts(
            startup_timeout_seconds=timeout,
            heartbeat_timeout_seconds=timeout,
            grace_seconds=HOUR,
            failed_steps=failed_steps,
        )
        Session.open(self.connection, ManualClock(), "test", "a test", HOUR, (PROVIDER, timeouts))

    def forget(self) -> None:
        for each in self.machines:
            decommissioning.forget(self.session, PROVIDER, each, ORDER)

    def release(self) -> None:
        for each in self.machines:
            decommissioning.request_release(self.session, PROVIDER, each, ORDER)
            decommissioning.accept_release(self.session, each)
            self.look()
            decommissioning.remove_released(self.session, PROVIDER, each)


ACTS: list[Callable[[Recorder], object]] = [
    Recorder.create,
    Recorder.start_agents,
    Recorder.recover,
    Recorder.quarantine,
    partial(Recorder.quarantine, process=Process.AGENT_START),
    Recorder.give_up_failed,
    partial(Recorder.quarantine, installed=False),
    partial(Recorder.quarantine, installed=True),
    Recorder.report,
    partial(Recorder.report, installed=True),
    Recorder.request_installations,
    partial(Recorder.list_all, status=FAILED),
    partial(Recorder.list_all, status=ProviderStatus.RUNNING),
    Recorder.unquarantine,
    Recorder.reboot,
    Recorder.wait,
    partial(Recorder.watch, timeout=60),
    partial(Recorder.watch, timeout=2 * HOUR),
    Recorder.forget,
    Recorder.release,
]
"""All that loops, agents, operators and time do to the state of machines."""


def test_what_becomes_of_machines_is_what_is_drawn(fleet: Fleet) -> None:
    """Where an arrow is missing, an operator finds a machine in a state that it cannot be in."""
    recorder = Recorder(fleet)
    for act in ACTS:
        recorder.begin()
        act(recorder)
        recorder.look()
    provided = {after for _, after in drawn()} - {None, State.CREATING}
    assert recorder.seen == drawn() | set(product(provided, (State.FORGOTTEN, State.RELEASED)))
