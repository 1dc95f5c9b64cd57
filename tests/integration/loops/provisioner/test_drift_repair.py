import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from shepherd_core.bmdb.agents import installation
from shepherd_core.bmdb.listings import decommissioning, provisioning
from shepherd_core.bmdb.listings.decommissioning import RemovalRequest
from shepherd_core.bmdb.machines import lookup, pauses
from shepherd_core.bmdb.machines.search import matching
from shepherd_core.bmdb.recovery import remediation
from shepherd_core.bmdb.statements import statements
from shepherd_core.domain.clock import Clock, Deadline, SystemClock
from shepherd_core.domain.errors.bmdb import SessionExpired, WorkConflict
from shepherd_core.domain.errors.provider import NotSupported, ProviderRefused, ProviderUnavailable
from shepherd_core.domain.machine import Process, ProviderId
from shepherd_core.domain.provider import Capability, Provider
from shepherd_core.operator.adopt_forget import ActionOutcome, ActionResult, Adopt, Forget, OperatorAction, Rebind
from shepherd_core.operator.drift_repair import DriftRepair
from shepherd_core.operator.release import CancelRelease, Release
from shepherd_core.rules.drift import FRESH_SECONDS, YOUNG_SECONDS, DriftKind
from shepherd_core.telemetry import Metric

from tests.conftest import ManualClock
from tests.integration.transactions.connection.test_lost_answers import WRITES
from tests.support.agents.heartbeats import record_heartbeat
from tests.support.bmdb.capacity import Edge, Killed, failing, intents, provided, provisioner, static
from tests.support.bmdb.fleet import HOUR, MOMENT, Fleet, claimed, ids
from tests.support.bmdb.listings import Listed, name_of
from tests.support.providers.fake_provider import Cloud
from tests.support.waiting import WAIT_SECONDS

ORDER = RemovalRequest("me", "it is slow", FRESH_SECONDS)


@pytest.fixture
def cloud() -> Cloud:
    return Cloud(2)


@pytest.fixture
def edge(cloud: Cloud) -> Edge:
    return Edge(cloud)


class Operator:
    def __init__(self, fleet: Fleet, provider: Provider, clock: Clock) -> None:
        self.fleet = fleet
        self.provider = provider
        self.clock = clock
        self.repair = DriftRepair(provider, fleet.connection, clock, 0, 60)

    def resolve(self, remedy: OperatorAction, meanwhile: Callable[[], object] = lambda: None) -> list[ActionOutcome]:
        """Ask for it, let happen what happens *meanwhile*, confirm, and do it."""
        deadline = Deadline(self.clock, 600)
        confirmed = remedy.evaluate(self.repair.compare(deadline))
        meanwhile()
        return self.repair.carry_out(remedy, confirmed, deadline, "a test")

    def adopt(
        self, *names: str, kind: DriftKind = DriftKind.ADOPTABLE, most: int = 0, **how: Any
    ) -> list[ActionOutcome]:
        return self.resolve(Adopt(tuple(map(ProviderId, names)), kind, most, ORDER.owner), **how)

    def rebind(self, machine_id: UUID, name: str) -> list[ActionOutcome]:
        return self.resolve(Rebind(machine_id, ProviderId(name), ORDER.owner))

    def forget(self, *machine_ids: UUID, **how: Any) -> list[ActionOutcome]:
        return self.resolve(Forget(machine_ids, ORDER), **how)

    def release(self, *machine_ids: UUID, **how: Any) -> list[ActionOutcome]:
        return self.resolve(Release(machine_ids, ORDER), **how)

    def keep(self, *machine_ids: UUID) -> list[ActionOutcome]:
        return self.resolve(CancelRelease(machine_ids, ORDER))

    def provision(self, **limits: Any) -> dict[Metric, float]:
        found = provisioner(self.provider, self.fleet.connection, self.clock, **limits)
        return found.run(Deadline(self.clock, 600), "a test")


@pytest.fixture
def operator(fleet: Fleet, edge: Edge, clock: ManualClock) -> Operator:
    return Operator(fleet, edge, clock)


@pytest.fixture
def listed() -> Listed:
    """Return a provider that lists what a test says, and takes machines back without any effect that it shows."""
    provider = Listed()
    provider.capabilities = frozenset({Capability.RELEASE})
    provider.release = lambda provider_id, deadline: None  # type: ignore[method-assign]  # that is all it does
    return provider


@pytest.fixture
def lister(fleet: Fleet, listed: Listed, clock: ManualClock) -> Operator:
    return Operator(fleet, listed, clock)


def results(verdicts: list[ActionOutcome]) -> list[ActionResult]:
    return [verdict.result for verdict in verdicts]


def old(fleet: Fleet, machine_id: UUID, provider: str = "cloud") -> UUID:
    fleet.watch(provider)
    fleet.change(f"UPDATE machine_provided SET provider = '{provider}' WHERE machine_id = '{machine_id}'")
    fleet.sql("UPDATE machines SET machine_created_at = now() - interval '1 day'")
    return machine_id


def at_provider(fleet: Fleet, cloud: Cloud, machine_id: UUID) -> UUID:
    made = cloud.add(machine_id)
    fleet.sql("UPDATE machine_provided SET provider_id = :name WHERE machine_id = :id", name=made, id=machine_id)
    return old(fleet, machine_id)


def tombstones(fleet: Fleet) -> list[list[Any]]:
    return fleet.sql(
        "SELECT machine_id, how, decommissioned_by, reason FROM machine_tombstone ORDER BY decommissioned_at"
    )


def asked(fleet: Fleet) -> list[list[Any]]:
    return fleet.sql("SELECT machine_id, accepted_at IS NOT NULL FROM machine_release")


def test_an_adopted_machine_is_one_of_ours(fleet: Fleet, operator: Operator, cloud: Cloud) -> None:
    """It is due for its agent, and no difference any more; to adopt it again changes nothing."""
    made = cloud.add()
    (verdict,) = operator.adopt(made)
    assert (verdict.result, verdict.machine_id) == (ActionResult.DONE, provided(fleet)[made])
    assert ids(claimed(fleet.open_session(), Process.AGENT_START, provider="cloud")) == [verdict.machine_id]
    assert operator.adopt(made)[0] == replace(verdict, text="is in the BMDB")
    assert intents(fleet) == []
    assert operator.provision(drift_limit=0, max_machines=1)[Metric.DRIFTED] == 0
    strange = cloud.add(fleet.bare_machine())
    (refused,) = operator.adopt(strange)
    assert refused.result is ActionResult.REFUSED
    assert refused.text.startswith("it is foreign, and adoptable machines were to be adopted")
    assert results(operator.adopt(strange, kind=DriftKind.FOREIGN)) == [ActionResult.DONE]


def test_copies_that_are_adopted_together_are_machines_of_their_own(
    fleet: Fleet, operator: Operator, cloud: Cloud
) -> None:
    """One id for both would be refused by the database, in the middle of it; only one of them counts already."""
    begun = fleet.bare_machine()
    fleet.sql("INSERT INTO machine_creation_intent (machine_id, provider) VALUES (:id, 'cloud')", id=begun)
    names = [cloud.add(begun) for name in "xyz"]
    verdicts = operator.adopt(*names, kind=DriftKind.DUPLICATED, most=2)
    assert results(verdicts) == [ActionResult.DONE, ActionResult.DONE, ActionResult.REFUSED]
    assert verdicts[0].machine_id == begun
    assert provided(fleet) == {verdict.provider_id: verdict.machine_id for verdict in verdicts[:2]}
    assert intents(fleet) == []


@pytest.mark.parametrize("same", [True, False])
def test_no_machine_is_created_beside_one_that_got_another_id(fleet: Fleet, clock: ManualClock, same: bool) -> None:
    """Two rows for one machine would have each loop work on it twice; an operator says whether it is the same."""
    names = ["a1", "b"]  # their first letters are their addresses
    operator = Operator(fleet, static(names), clock)
    operator.provision()
    machine_id, other = (provided(fleet)[name] for name in names)
    fleet.pass_time(30 * HOUR)  # the ledger has little more than its id then
    names[:] = ["a2", "b", "c"]
    for _ in range(3):
        assert operator.provision()[Metric.DRIFTED] == 1
    assert set(provided(fleet)) == {"a1", "b", "c"}
    assert results(operator.rebind(machine_id, "b")) == [ActionResult.REFUSED]
    if not same:
        operator.forget(machine_id)
        operator.provision()
        assert provided(fleet)["a2"] != machine_id
        return

    for text in ("was a1", "has this id"):
        (verdict,) = operator.rebind(machine_id, "a2")
        assert (verdict.result, verdict.text) == (ActionResult.DONE, text)
    assert operator.provision(drift_limit=0)[Metric.DRIFTED] == 0
    assert {name: provided(fleet)[name] for name in names[:2]} == {"a2": machine_id, "b": other}
    assert len(provided(fleet)) == 3
    assert pauses.pauses_in_force(fleet.connection) == []
    assert fleet.sql("SELECT failed_cause FROM work_history WHERE event = 'Rebound'") == [["me: a1 is now a2"]]


def test_a_machine_refused_at_the_confirmation_is_left_alone(fleet: Fleet, operator: Operator, cloud: Cloud) -> None:
    """The operator confirmed the release of one machine; the other was not among them, and is ready by now."""
    dead, alive = (at_provider(fleet, cloud, fleet.provided_machine()) for _ in range(2))
    fleet.sql("INSERT INTO machine_agent_heartbeat VALUES (:id, clock_timestamp())", id=alive)

    def pass_time() -> None:
        fleet.sql("UPDATE machine_agent_heartbeat SET agent_heartbeat_at = now() - interval '3 hours'")

    verdicts = operator.release(dead, alive, meanwhile=pass_time)
    assert results(verdicts) == [ActionResult.DONE, ActionResult.REFUSED]
    assert verdicts[1].text.startswith("when you confirmed, it was refused: its agent reported")
    assert set(provided(fleet).values()) == {alive}
    assert results(operator.release(alive)) == [ActionResult.DONE]


def test_a_forgotten_machine_is_out_of_every_loops_care(fleet: Fleet, operator: Operator) -> None:
    """It frees its place under the limit; what it was, and its history, can still be looked up."""
    machine_id = old(fleet, fleet.unhealthy_machine())
    name = name_of(fleet, machine_id)
    session = fleet.open_session()
    claimed(session, Process.RECOVERY, provider="cloud")
    session.close()
    fleet.request_installation(machine_id, 1)
    pauses.pause(fleet.connection, owner="me", reason="?", machine_id=machine_id)
    assert operator.provision(max_machines=1)[Metric.CREATED] == 0

    (verdict,) = operator.forget(machine_id)
    assert (verdict.result, verdict.machine_id, verdict.provider_id) == (ActionResult.DONE, machine_id, name)
    assert tombstones(fleet) == [[machine_id, "Forgotten", "me", "it is slow"]]
    shown = lookup.show_machine(fleet.connection, machine_id)
    assert (shown.decommissioned_provider_id, shown.provider, shown.agent_public_key) == (name, None, None)
    assert fleet.events(machine_id) == ["Started", "Canceled"]
    assert list(matching(fleet.connection)) == []
    assert pauses.pauses_in_force(fleet.connection) == []
    assert installation.load(fleet.connection, machine_id).request is None
    assert operator.provision(max_machines=1)[Metric.CREATED] == 1
    assert operator.forget(machine_id)[0] == replace(verdict, text="forgotten")


@pytest.mark.parametrize(("quarantined", "words"), [(False, "its agent reported 71"), (True, "its agent reported ")])
def test_a_sign_of_life_protects_a_machine(fleet: Fleet, operator: Operator, quarantined: bool, words: str) -> None:
    """Whatever the provider says: it runs our agent, though refused after a quarantine, and perhaps somebody's work."""
    machine_id = old(fleet, fleet.unhealthy_machine(reported_ago=2 * HOUR - 60))
    if quarantined:
        fleet.quarantine(machine_id)
        assert record_heartbeat(fleet.connection, machine_id)
        assert remediation.unquarantine(fleet.connection, machine_id, reason="?")
        assert not record_heartbeat(fleet.connection, machine_id)
    (verdict,) = operator.forget(machine_id)
    assert verdict.result is ActionResult.REFUSED
    assert words in verdict.text
    fleet.pass_time(2 * HOUR + 1 if quarantined else 61)
    assert results(operator.forget(machine_id)) == [ActionResult.DONE]


@pytest.mark.parametrize("leave", [decommissioning.forget, decommissioning.request_release])
def test_a_heartbeat_that_comes_at_the_last_moment_protects_too(
    fleet: Fleet, edge: Edge, leave: Callable[..., object]
) -> None:
    machine_id = old(fleet, fleet.unhealthy_machine())
    session = fleet.open_session()
    assert provisioning.take_lock(session, edge.name) is not None
    concurrent = fleet.connect()
    with pytest.raises(WorkConflict, match=r"reported \d s ago"):
        fleet.behind(
            lambda: record_heartbeat(concurrent, machine_id),
            lambda: leave(session, edge.name, machine_id, ORDER),
            concurrent,
        )
    assert (tombstones(fleet), asked(fleet), pauses.pauses_in_force(fleet.connection)) == ([], [], [])


def test_a_machine_that_is_there_is_not_forgotten(fleet: Fleet, operator: Operator, cloud: Cloud) -> None:
    gone = old(fleet, fleet.provided_machine())
    assert results(operator.forget(gone)) == [ActionResult.DONE]  # and its tombstone is not another's
    there = at_provider(fleet, cloud, fleet.provided_machine())
    (made,) = cloud.machines
    young = fleet.provided_machine("cloud")
    begun = fleet.bare_machine()
    fleet.sql("INSERT INTO machine_creation_intent (machine_id, provider) VALUES (:id, 'cloud')", id=begun)
    other = fleet.provided_machine("static")
    refused = operator.forget(there, young, begun, other)
    assert results(refused) == [ActionResult.REFUSED] * 4
    assert [each.text for each in refused[2:]] == [
        "its creation is in progress; the Provisioner completes it",
        "it is not a machine of this provider",
    ]
    fleet.sql("UPDATE machines SET machine_created_at = now() - interval '1 day'")
    (verdict,) = operator.forget(there, meanwhile=lambda: cloud.machines.pop(made))
    assert (verdict.result, len(provided(fleet))) == (ActionResult.REFUSED, 3)
    assert verdict.text == "when you confirmed, it was refused: the provider has it in use; release gives it back"


def test_the_listing_that_decides_is_read_under_the_lock(fleet: Fleet, lister: Operator, listed: Listed) -> None:
    machine_id = old(fleet, fleet.provided_machine(), "static")
    other = fleet.open_session(connection=fleet.connect())
    locks: list[object] = []

    def confirmed() -> None:
        listed.meanwhile = lambda: locks.append(provisioning.take_lock(other, "static"))

    assert results(lister.forget(machine_id, meanwhile=confirmed)) == [ActionResult.DONE]
    assert locks == [None]
    assert listed.asked == 2  # for the operator to see, and to decide


def test_a_release_is_recorded_before_the_provider_hears(
    fleet: Fleet, operator: Operator, edge: Edge, cloud: Cloud
) -> None:
    machine_id = at_provider(fleet, cloud, fleet.provided_machine())

    def check() -> None:
        found.append(asked(fleet))
        concurrent = fleet.open_session(connection=fleet.connect())
        found.append(claimed(concurrent, Process.AGENT_START, provider="cloud"))

    found: list[Any] = []
    edge.before["release"] = check
    (verdict,) = operator.release(machine_id)
    assert found == [[[machine_id, False]], []]
    assert verdict.result is ActionResult.DONE
    assert (list(cloud.machines), provided(fleet), asked(fleet)) == ([], {}, [])
    assert tombstones(fleet) == [[machine_id, "Released", "me", "it is slow"]]
    assert pauses.pauses_in_force(fleet.connection) == []
    assert operator.release(machine_id)[0].text == "released"


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_release_that_was_cut_off_is_asked_for_again(
    fleet: Fleet, operator: Operator, edge: Edge, cloud: Cloud, moment: str
) -> None:
    """Between record and effect, or between effect and answer; it is stranded until then, and counts."""
    machine_id = at_provider(fleet, cloud, fleet.provided_machine())
    getattr(edge, moment)["release"] = failing(Killed())
    with pytest.raises(Killed):
        operator.release(machine_id)
    assert asked(fleet) == [[machine_id, False]]
    assert len(cloud.machines) == (moment == "before")
    del getattr(edge, moment)["release"]
    (difference,) = operator.repair.compare(Deadline(operator.clock, 60)).drift.values()
    assert difference.kind is (DriftKind.STRANDED if moment == "before" else DriftKind.VANISHED)
    assert operator.provision(max_machines=1)[Metric.CREATED] == 0
    assert results(operator.release(machine_id)) == [ActionResult.DONE]
    assert (list(cloud.machines), tombstones(fleet)) == ([], [[machine_id, "Released", "me", "it is slow"]])


def test_a_released_machine_counts_until_the_provider_drops_it(fleet: Fleet, lister: Operator, listed: Listed) -> None:
    """Providers take their time, and go on charging; the Provisioner brings it to its end."""
    machine_id = old(fleet, fleet.provided_machine(), "static")
    name = name_of(fleet, machine_id)
    listed.put(name)
    (verdict,) = lister.release(machine_id)
    assert verdict.result is ActionResult.BEGUN
    for _ in range(2):
        counts = lister.provision(drift_limit=0)
        assert (counts[Metric.MACHINES_TOTAL], counts[Metric.DRIFTED]) == (1, 0)
    assert asked(fleet) == [[machine_id, True]]
    assert [pause.owner for pause in pauses.pauses_in_force(fleet.connection)] == ["release"]

    del listed.machines[name]
    counts = lister.provision(drift_limit=0)
    assert (counts[Metric.MACHINES_TOTAL], counts[Metric.DRIFTED]) == (0, 0)
    assert tombstones(fleet) == [[machine_id, "Released", "me", "it is slow"]]

    listed.put(name)  # listings lag behind; and a token is not needed to know it again
    counts = lister.provision(assimilate=True)
    assert (counts[Metric.ASSIMILATED], counts[Metric.DRIFTED]) == (0, 1)
    assert results(lister.adopt(name)) == [ActionResult.REFUSED]
    assert results(lister.adopt(name, kind=DriftKind.DISPUTED)) == [ActionResult.DONE]


def test_operators_decide_about_a_release_of_unknown_outcome(
    fleet: Fleet, operator: Operator, edge: Edge, cloud: Cloud
) -> None:
    """The first request may have its effect yet, so the second one's refusal says nothing about it."""
    machine_id = at_provider(fleet, cloud, fleet.provided_machine())
    edge.before["release"] = failing(ProviderUnavailable("no answer"))
    assert results(operator.release(machine_id)) == [ActionResult.REFUSED]
    edge.before["release"] = failing(ProviderRefused("403"))
    assert results(operator.release(machine_id)) == [ActionResult.REFUSED]
    assert asked(fleet) == [[machine_id, False]]
    assert results(operator.keep(machine_id)) == [ActionResult.REFUSED]  # too early
    fleet.pass_time(YOUNG_SECONDS)
    there = dict(cloud.machines)
    cloud.machines.clear()
    assert results(operator.keep(machine_id)) == [ActionResult.REFUSED]  # it has taken effect
    cloud.machines.update(there)
    assert results(operator.keep(machine_id)) == [ActionResult.DONE]
    assert (asked(fleet), pauses.pauses_in_force(fleet.connection)) == ([], [])
    assert fleet.events(machine_id)[-1] == "ReleaseCanceled"
    assert results(operator.keep(machine_id)) == [ActionResult.DONE]


@pytest.mark.parametrize("error", [ProviderRefused("403"), NotSupported("not this machine")])
def test_a_refused_release_leaves_no_request(
    fleet: Fleet, operator: Operator, edge: Edge, cloud: Cloud, error: Exception
) -> None:
    edge.before["release"] = failing(error)
    assert results(operator.release(at_provider(fleet, cloud, fleet.provided_machine()))) == [ActionResult.REFUSED]
    assert asked(fleet) == []


LOSSES = {
    "dead": "UPDATE sessions SET deadline = clock_timestamp() - interval '1 hour' WHERE session_id = :session",
    "overtaken": "UPDATE provisioner_lock SET session_id = :successor",
    "late": "UPDATE provisioner_lock SET session_id = session_id",
}
"""What a transaction does that is under way when the write begins, and commits when the writer's deadline is over."""


@pytest.mark.parametrize("name", [name for name in WRITES if "FROM provisioner_lock" in statements().get(name, "")])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_session_that_loses_the_lock_while_waiting_writes_nothing(fleet: Fleet, name: str, loss: str) -> None:
    """Who holds it, and until when, is what the rows say when the write has them, not when it began."""
    session, successor = fleet.open_session(connection=fleet.connect()), fleet.open_session()
    write = WRITES[name](fleet, session)
    fleet.die_in(MOMENT if loss == "late" else HOUR, session)
    change = (
        LOSSES[loss].replace(":session", f"'{session.session_id}'").replace(":successor", f"'{successor.session_id}'")
    )
    before = fleet.content("sessions", "provisioner_lock", "work")
    with pytest.raises(SessionExpired):
        fleet.held_up(change, write, lambda: fleet.wait_until_dead(session) if loss == "late" else None)
    assert fleet.content("sessions", "provisioner_lock", "work") == before


@pytest.mark.parametrize("remedy", ["forget", "release", "adopt"])
def test_concurrent_commands_act_once_and_both_succeed(fleet: Fleet, cloud: Cloud, edge: Edge, remedy: str) -> None:
    machine_id = at_provider(fleet, cloud, fleet.provided_machine())
    (made,) = cloud.machines
    if remedy == "forget":
        cloud.machines.pop(made)
    strange = cloud.add()
    together = threading.Barrier(2)

    def run_once() -> list[ActionOutcome]:
        operator = Operator(fleet, edge, SystemClock())
        operator.repair = replace(operator.repair, connection=fleet.connect())
        named = strange if remedy == "adopt" else machine_id
        return getattr(operator, remedy)(named, meanwhile=lambda: together.wait(WAIT_SECONDS))  # type: ignore[no-any-return]

    with ThreadPoolExecutor(2) as pool:
        verdicts = [each.result()[0] for each in [pool.submit(run_once) for _ in range(2)]]
    assert results(verdicts) == [ActionResult.DONE, ActionResult.DONE]
    assert verdicts[0].machine_id == verdicts[1].machine_id
    assert len(tombstones(fleet)) == (remedy != "adopt")
    assert (strange in provided(fleet)) is (remedy == "adopt")
    assert edge.calls["release"] == (remedy == "release")
