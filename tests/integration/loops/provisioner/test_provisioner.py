import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.listings import provisioning
from shepherd_core.bmdb.machines import pauses
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.errors import DriftLimitExceeded
from shepherd_core.domain.errors.bmdb import SessionExpired
from shepherd_core.domain.errors.provider import (
    CapacityTaken,
    ProviderForbidden,
    ProviderRefused,
    ProviderUnavailable,
    ProviderUnusable,
)
from shepherd_core.domain.machine import Process
from shepherd_core.loops.provisioner import Provisioner
from shepherd_core.telemetry import Metric

from tests.conftest import ManualClock, log_lines
from tests.support.bmdb.capacity import Edge, Killed, assert_settled, failing, intents, provided, provisioner, static
from tests.support.bmdb.fleet import HOUR, Fleet, claimed, ids
from tests.support.providers.fake_provider import Cloud
from tests.support.waiting import WAIT_SECONDS

Counts = dict[Metric, float]
Run = Callable[..., Counts]

NO_ANSWER = ProviderUnavailable("no answer")
FORBIDDEN = ProviderForbidden("403: not this plan")
STEPS = (
    ("before", "list_machines"),
    ("after", "list_machines"),  # before an intent is written
    ("before", "create_machine"),  # after it
    ("after", "create_machine"),  # the machine exists, and nobody wrote it down
)


@pytest.fixture
def cloud() -> Cloud:
    return Cloud(3)


@pytest.fixture
def edge(cloud: Cloud) -> Edge:
    return Edge(cloud)


@pytest.fixture
def make(fleet: Fleet, clock: ManualClock) -> Callable[..., Provisioner]:
    def make(edge: Edge, *, connection: Connection | None = None, **settings: Any) -> Provisioner:
        return provisioner(edge, connection or fleet.connection, clock, session_seconds=30, **settings)

    return make


@pytest.fixture
def run(make: Callable[..., Provisioner], clock: ManualClock) -> Run:
    def run(edge: Edge, *, seconds: float = 600, **settings: Any) -> Counts:
        return make(edge, **settings).run(Deadline(clock, seconds), "a test")

    return run


def penalties(fleet: Fleet) -> dict[str, str]:
    return {row[0]: row[1] for row in fleet.sql("SELECT capacity_id, cause FROM capacity_penalties")}


def test_capacity_becomes_machines_that_are_due_for_their_agent(
    fleet: Fleet, cloud: Cloud, edge: Edge, run: Run
) -> None:
    counts = run(edge)
    assert {metric: count for metric, count in counts.items() if count} == {Metric.CREATED: 3, Metric.MACHINES_TOTAL: 3}
    assert_settled(fleet, cloud, 3)
    assert len(claimed(fleet.open_session(), Process.AGENT_START, provider="cloud")) == 3
    again = run(edge)
    assert {metric: count for metric, count in again.items() if count} == {Metric.MACHINES_TOTAL: 3}
    assert edge.calls["create_machine"] == 3
    assert fleet.sql("SELECT waiting, waiting_seen_at FROM provisioner_lock") == [[0, None]]


def test_a_new_machine_is_due_when_it_may_have_booted(fleet: Fleet, edge: Edge, run: Run) -> None:
    """SSH cannot answer earlier, and each attempt would ask the provider for the address."""
    edge.boot_seconds = 300
    edge.after["create_machine"] = failing(NO_ANSWER)
    run(edge)
    fleet.pass_time(200)  # the boot began before the listing shows the machine
    counts = run(edge)
    assert (counts[Metric.INTENTS_COMPLETED], counts[Metric.CREATED]) == (1, 2)
    for seconds, due in ((0, 0), (90, 0), (20, 1), (180, 0), (20, 2)):
        fleet.pass_time(seconds)
        assert len(claimed(fleet.open_session(), Process.AGENT_START, provider="cloud")) == due


def test_machines_that_exist_already_are_taken_over_without_waiting(fleet: Fleet, run: Run, clock: ManualClock) -> None:
    """Nothing is created at the provider, which the time between creations protects; twenty machines took 95 s."""
    names = list("abcdefghijklmnopqrst")
    counts = run(static(names), creation_seconds=5)
    assert (counts[Metric.CREATED], counts[Metric.INCOMPLETE]) == (20, 0)
    assert clock.slept == []
    assert fleet.sql("SELECT last_creation_at FROM provisioner_lock") == [[None]]
    assert set(provided(fleet)) == set(names)


def test_machines_waiting_for_the_limit_are_counted(
    fleet: Fleet, edge: Edge, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise the fleet stops growing, and no message names the setting that is the cause."""
    assert run(edge, max_machines=2)[Metric.WAITING_FOR_LIMIT] == 1
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "machine limit reached" in line)
    told = json.loads(line)
    assert (told["level"], told["waiting"], told["max_machines"]) == ("INFO", 1, 2)
    (seen,) = provisioning.waiting(fleet.connection)
    assert (seen.provider, seen.waiting, seen.max_machines) == ("cloud", 1, 2)
    assert run(edge, max_machines=3)[Metric.WAITING_FOR_LIMIT] == 0
    assert provisioning.waiting(fleet.connection) == []
    assert "the limit" not in capsys.readouterr().out


def test_a_creation_is_not_begun_without_the_time_for_it(fleet: Fleet, cloud: Cloud, edge: Edge, run: Run) -> None:
    counts = run(edge, creation_seconds=5, seconds=62)
    assert (counts[Metric.CREATED], counts[Metric.INCOMPLETE]) == (1, 1)
    assert run(edge, seconds=59)[Metric.CREATED] == 0
    assert run(edge)[Metric.CREATED] == 2
    assert_settled(fleet, cloud, 3)


def test_both_sides_are_read_at_the_same_time(fleet: Fleet, edge: Edge, run: Run) -> None:
    """Each may take seconds; and a provider that does not answer must not hold a transaction open."""

    def check() -> None:
        fleet.wait_until(
            "EXISTS (SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name = 'shepherd' AND state = 'idle' AND query = 'COMMIT')"
        )

    edge.before["list_machines"] = check
    assert run(edge)[Metric.CREATED] == 3


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("step", STEPS, ids=" ".join)
@pytest.mark.parametrize("kind", ["cloud", "static"])
def test_an_invocation_killed_anywhere_is_completed_by_the_next(
    fleet: Fleet, cloud: Cloud, edge: Edge, run: Run, *, kind: str, step: tuple[str, str], nth: int
) -> None:
    """Exactly one machine for one capacity, none lost, none doubled, nothing for people to clear away."""
    used = edge if kind == "cloud" else static(["a", "b", "c"])
    when, method = step
    calls = iter(range(1, 100))

    def kill() -> None:
        if next(calls) == nth:
            raise Killed

    getattr(used, when)[method] = kill
    if method == "list_machines" and nth > 1:
        run(used)
    with pytest.raises(Killed):
        run(used)
    assert run(used, drift_limit=0)[Metric.DRIFTED] == 0
    if kind == "cloud":
        assert_settled(fleet, cloud, 3)
    else:
        assert set(provided(fleet)) == {"a", "b", "c"}
        assert intents(fleet) == []
        assert fleet.sql("SELECT count(*) FROM machines") == [[3]]


def test_a_creation_that_was_interrupted_delays_the_next_one(fleet: Fleet, run: Run) -> None:
    """The provider has created a machine, whoever records it."""
    edge = Edge(Cloud(1))
    edge.after["create_machine"] = failing(Killed())
    with pytest.raises(Killed):
        run(edge)
    assert run(edge)[Metric.INTENTS_COMPLETED] == 1
    assert fleet.sql("SELECT last_creation_at > now() - interval '1 minute' FROM provisioner_lock") == [[True]]


@pytest.mark.parametrize("seconds", [0, 31], ids=["as it was", "with its session over"])
@pytest.mark.parametrize("step", STEPS, ids=" ".join)
def test_an_invocation_whose_session_expired_does_nothing(
    fleet: Fleet, cloud: Cloud, edge: Edge, run: Run, clock: ManualClock, *, step: tuple[str, str], seconds: float
) -> None:
    """Schedules deliver twice. The lock is free once its session expired; its holder may still continue."""
    frozen, thawed = threading.Event(), threading.Event()

    def freeze() -> None:
        frozen.set()
        assert thawed.wait(WAIT_SECONDS)

    sleeper = Edge(cloud)
    when, method = step
    getattr(sleeper, when)[method] = freeze
    with ThreadPoolExecutor(1) as pool:
        pass_ = pool.submit(run, sleeper, connection=fleet.connect())
        assert frozen.wait(WAIT_SECONDS)
        assert run(edge) == {}
        assert fleet.sql("SELECT counts FROM ticks") == [[{"left": 1}]]
        fleet.sql("UPDATE sessions SET deadline = clock_timestamp() - interval '1 second'")
        counts = run(edge, drift_limit=0)
        assert counts[Metric.CREATED] + counts[Metric.INTENTS_COMPLETED] == 3
        before = fleet.content("sessions", "ticks")  # its own, which it closes at last
        clock.now += seconds
        thawed.set()
        with pytest.raises(SessionExpired):
            pass_.result(WAIT_SECONDS)
    assert fleet.content("sessions", "ticks") == before
    assert_settled(fleet, cloud, 3)


@pytest.mark.parametrize(
    ("error", "times", "counted", "begun"),
    [
        (ProviderRefused("422: it is broken"), 1, (4, 1, 1, 0), 0),
        (ProviderRefused("quota"), 0, (0, 3, 3, 0), 0),  # no fault of the capacity: not all of it is tried
        (FORBIDDEN, 1, (4, 1, 1, 0), 0),
        (NO_ANSWER, 0, (0, 1, 0, 1), 1),  # concerns all requests; each would leave another creation open
        (ProviderUnavailable("429", retry_after=1), 0, (0, 0, 0, 1), 1),  # has nothing against the capacity
    ],
    ids=repr,
)
def test_what_a_failed_creation_costs(
    fleet: Fleet, run: Run, error: Exception, times: int, counted: tuple[int, ...], begun: int
) -> None:
    edge = Edge(Cloud(5))
    edge.before["create_machine"] = failing(error, times)
    metrics = (Metric.CREATED, Metric.CAPACITY_PENALIZED, Metric.INTENTS_ABANDONED, Metric.INCOMPLETE)
    counts = run(edge)
    assert tuple(counts[metric] for metric in metrics) == counted
    assert (len(intents(fleet)), len(penalties(fleet))) == (begun, counted[1])


def test_capacity_that_fails_is_left_alone_for_a_while(fleet: Fleet, cloud: Cloud, edge: Edge, run: Run) -> None:
    """It would fail again, and keep the rest waiting; a restart must not forget it, and success lifts it."""
    edge.before["create_machine"] = failing(ProviderRefused("422: it is \0 broken"))
    first = run(edge)
    assert (first[Metric.CREATED], first[Metric.CAPACITY_PENALIZED], first[Metric.INTENTS_ABANDONED]) == (2, 1, 1)
    assert_settled(fleet, cloud, 2)
    ((capacity, cause),) = penalties(fleet).items()
    assert cause == "422: it is ? broken"

    fleet.pass_time(HOUR - WAIT_SECONDS)
    assert run(edge)[Metric.CREATED] == 0
    assert edge.calls["create_machine"] == 3
    fleet.pass_time(WAIT_SECONDS)
    assert run(edge)[Metric.CREATED] == 1
    assert penalties(fleet) == {}
    assert capacity in {machine.reservation_id for machine in cloud.machines.values()}


def test_a_lost_creation_on_taken_capacity_is_given_up(fleet: Fleet, edge: Edge, run: Run) -> None:
    """A provider may create no other machine for its token, so that the intent would wait without end."""
    edge.before["create_machine"] = failing(NO_ANSWER)
    run(edge)
    fleet.pass_time(HOUR)
    edge.before["create_machine"] = failing(CapacityTaken("its instance has ended"))
    counts = run(edge)
    assert (counts[Metric.INTENTS_ABANDONED], counts[Metric.CREATED]) == (1, 2)
    assert intents(fleet) == []


@pytest.mark.parametrize("max_machines", [0, 1, 2])
def test_a_permission_that_we_lack_penalizes_no_capacity(fleet: Fleet, edge: Edge, run: Run, max_machines: int) -> None:
    """A key that may only read is refused for all capacity; that is solved at the key, and then all goes on at once."""
    edge.before["create_machine"] = failing(FORBIDDEN, times=0)
    with pytest.raises(ProviderUnusable, match="403: not this plan"):
        run(edge, max_machines=max_machines)
    assert (intents(fleet), penalties(fleet), edge.calls["create_machine"]) == ([], {}, 3)
    edge.before.clear()
    assert run(edge, max_machines=max_machines)[Metric.CREATED] == (max_machines or 3)


@pytest.mark.parametrize("call", ["list_machines", "create_machine"])
def test_a_provider_that_refuses_us_ends_the_invocation(fleet: Fleet, edge: Edge, run: Run, call: str) -> None:
    edge.before[call] = failing(ProviderUnusable("401"), times=0)
    with pytest.raises(ProviderUnusable, match="401"):
        run(edge)
    assert (intents(fleet), penalties(fleet)) == ([], {})
    assert edge.calls["create_machine"] == (call == "create_machine")


def test_a_pause_stops_a_running_invocation(
    fleet: Fleet, cloud: Cloud, edge: Edge, run: Run, clock: ManualClock
) -> None:
    edge.after["create_machine"] = lambda: pauses.pause(fleet.connect(), owner="me", reason="stop")
    assert run(edge, creation_seconds=5)[Metric.CREATED] == 1
    assert_settled(fleet, cloud, 1)
    assert len(clock.slept) == 1, "it sees the pause at the second creation, and waits for no third"


def test_a_vanished_machine_is_set_aside_until_it_is_back(fleet: Fleet, run: Run) -> None:
    """The loops would try in vain to reach it; the rest of the fleet goes on, and so does it when it is back."""
    names = ["a", "b"]
    edge = static(names)
    run(edge)
    machines = provided(fleet)
    fleet.pass_time(HOUR)
    names[:] = ["b", "c"]
    for _ in range(2):
        assert run(edge)[Metric.DRIFTED] == 1
        (pause,) = pauses.pauses_in_force(fleet.connection)
        assert (pause.machine_id, pause.owner) == (machines["a"], "provisioner")
    assert set(provided(fleet)) == {"a", "b", "c"}
    session = fleet.open_session()
    taken = ids(claimed(session, Process.AGENT_START))
    assert machines["b"] in taken
    assert machines["a"] not in taken

    names.append("a")
    assert run(edge)[Metric.DRIFTED] == 0
    assert pauses.pauses_in_force(fleet.connection) == []
    assert ids(claimed(session, Process.AGENT_START)) == [machines["a"]]


def test_a_quarantined_machine_counts_and_is_left_alone(fleet: Fleet, run: Run) -> None:
    """It occupies its capacity. An operator works on it, so that its absence from the listing is no drift."""
    names = ["a", "b"]
    edge = static(names)
    run(edge)
    machines = [fleet.quarantine(machine_id) for machine_id in provided(fleet).values()]
    fleet.pass_time(HOUR)
    names.clear()
    assert run(edge, drift_limit=1)[Metric.MACHINES_TOTAL] == 2
    provisioning.set_aside(fleet.open_session(), machines[0], "a plan from before")
    assert pauses.pauses_in_force(fleet.connection) == []


def test_a_discrepancy_in_bulk_changes_nothing_and_is_raised(
    fleet: Fleet, cloud: Cloud, edge: Edge, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    strangers = [cloud.add() for _ in range(4)]
    before = fleet.content("provisioner_lock", "ticks")
    with pytest.raises(DriftLimitExceeded) as caught:
        run(edge)
    assert fleet.content("provisioner_lock", "ticks") == before
    assert fleet.sql("SELECT outcome, kind FROM ticks") == [["Failed", "drift-limit-exceeded"]]
    assert edge.calls["create_machine"] == 0
    assert [text.split()[0] for text in caught.value.drift] == sorted(strangers)
    logged = log_lines(capsys)
    assert [line["drift"] for line in logged if line["level"] == "ERROR"] == list(caught.value.drift)


@pytest.mark.parametrize(
    ("on_hold", "held"),
    [
        ({}, True),
        ({"provider": "cloud"}, True),
        ({"provider": "static"}, False),
        ({"process": Process.RECOVERY}, False),
        ({"process": Process.AGENT_START, "provider": "cloud"}, False),
    ],
    ids=str,
)
def test_a_pause_of_all_or_of_the_provider_holds_it(
    fleet: Fleet, edge: Edge, run: Run, on_hold: dict[str, Any], held: bool
) -> None:
    """Operators stop all loops with one command; a pause of one machine must not stop the fleet from growing."""
    pauses.pause(fleet.connection, owner="me", reason="migration", seconds=100, **on_hold)
    pauses.pause(fleet.connection, owner="me", reason="migration", machine_id=fleet.provided_machine())
    assert run(edge).get(Metric.CREATED) == (None if held else 3)
    assert bool(edge.calls) is not held
    fleet.pass_time(100)
    assert run(edge)[Metric.CREATED] == (3 if held else 0)


def test_a_dry_run_changes_nothing_and_returns_the_next_plan(
    fleet: Fleet, cloud: Cloud, edge: Edge, make: Callable[..., Provisioner], clock: ManualClock
) -> None:
    planner = make(edge, max_machines=2)
    before = fleet.content()
    plan = planner.plan(Deadline(clock, 600))
    assert fleet.content() == before
    assert cloud.machines == {}
    planner.run(Deadline(clock, 600), "a test")
    made = [machine.reservation_id for machine in cloud.machines.values()]
    assert [creation.capacity.reservation_id for creation in plan.create] == made
