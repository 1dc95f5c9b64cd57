"""A tick that has room leaves no machine unclaimed that the facts call ready, and takes no other."""

import random
from collections import Counter
from itertools import cycle
from uuid import UUID

import pytest
from shepherd_core.bmdb.recovery import explain
from shepherd_core.bmdb.work import work
from shepherd_core.domain.machine import Process
from shepherd_core.loops.claims import Claims
from shepherd_core.telemetry import Metric

from tests.conftest import ManualClock
from tests.integration.bmdb.combinations import COMBINATIONS, plant
from tests.integration.loops.test_control_loop import FakeLoop, Runner
from tests.support.bmdb.fleet import PROVIDER, Fleet, ids
from tests.support.bmdb.recovery import RecoveryEnvironment

START, RECOVER = Process.AGENT_START, Process.RECOVERY

BOTH = {START, RECOVER}
KEEPING: list[tuple[str, set[Process]]] = [
    ("SELECT 1", set()),
    ("INSERT INTO work_backoff VALUES (:id, :process, now() + interval '1 minute', '?', 60)", BOTH),
    ("INSERT INTO work_backoff VALUES (:id, :process, now() - interval '1 minute', '?', 60)", set()),
    ("INSERT INTO work_backoff VALUES (:id, :process, now() + interval '1 minute', '?')", BOTH),
    (
        "INSERT INTO work_backoff (machine_id, process, until, cause, deaths) VALUES (:id, :process, now(), '?', 1)",
        set(),
    ),
    ("INSERT INTO work VALUES (:id, 'ShepherdRemoval', :session, NULL)", BOTH),
    ("INSERT INTO work VALUES (:id, 'ShepherdRemoval', :session, now())", BOTH),
    ("INSERT INTO pauses (machine_id, owner, reason) VALUES (:id, '?', '?')", BOTH),
    ("INSERT INTO pauses (machine_id, owner, reason, expires_at) VALUES (:id, '?', '?', now())", set()),
    ("INSERT INTO pauses (machine_id, owner, reason, process) VALUES (:id, '?', '?', :process)", BOTH),
    ("INSERT INTO pauses (machine_id, owner, reason, provider) VALUES (:id, '?', '?', 'equinix')", set()),
    ("INSERT INTO work_backoff VALUES (:id, 'ShepherdAgentStart', now() - interval '1 minute', '?', 60)", set()),
    ("INSERT INTO machine_rebooted VALUES (:id, now(), now() + interval '1 minute')", {START}),
    ("INSERT INTO machine_rebooted VALUES (:id, now() - interval '7 hours', now())", set()),
]
"""What keeps a machine from these processes, or only seems to."""


def plant_all(fleet: Fleet, process: Process) -> dict[UUID, bool]:
    """Plant machines with all facts that decide what they need; return which are ready for the process."""
    combinations = [each for each in COMBINATIONS if each.provider == PROVIDER and each.provided and not each.gone]
    session = fleet.open_session()
    ready = {}
    planted = zip(plant(fleet, combinations), combinations, cycle(KEEPING), strict=False)
    for machine_id, facts, (text, kept_from) in planted:
        values = {":id": machine_id, ":process": process, ":session": session.session_id}
        for name, value in values.items():
            text = text.replace(name, f"'{value}'")  # noqa: PLW2901
        fleet.sql(text)
        model = facts.model()
        if "work_backoff" in text and START in text:  # an agent start has failed
            model.machines[0].backoffs[START] = (model.now, 60)
        ready[machine_id] = model.obstacle(0, process) is None and process not in kept_from
    return ready


@pytest.mark.parametrize("process", [START, RECOVER])
def test_operators_are_told_which_machines_are_ready(fleet: Fleet, process: Process) -> None:
    """Of every eleventh, by which each thing that keeps a machine away meets each kind of facts."""
    ready = plant_all(fleet, process)
    fleet.sql(f"INSERT INTO recovery_budgets VALUES ('{PROVIDER}', '', 0, 'silent', '?')")
    for machine_id, is_ready in list(ready.items())[::11]:
        told = {each.process for each in explain.why(fleet.connection, machine_id) if each.eligible}
        assert (process in told) is is_ready


def test_the_initializer_leaves_no_ready_machine(fleet: Fleet, clock: ManualClock) -> None:
    ready = plant_all(fleet, START)
    loop = FakeLoop()
    counts = Runner(fleet, clock)(loop)
    assert set(loop.machines) == {each for each in ready if ready[each]}
    assert counts[Metric.BACKLOG] == 0


def test_the_recoverer_leaves_no_ready_machine(fleet: Fleet, clock: ManualClock) -> None:
    ready = plant_all(fleet, RECOVER)
    env = RecoveryEnvironment(fleet, clock)
    counts = env.run()
    started = {row[0] for row in fleet.sql("SELECT machine_id FROM work_history WHERE event = 'Started'")}
    assert started == {each for each in ready if ready[each]}
    assert counts[Metric.BACKLOG] == 0


def test_a_tick_that_meets_another_goes_on_elsewhere(fleet: Fleet, clock: ManualClock) -> None:
    """Both begin at the machine that waits longest; they would meet at every batch. None is left."""
    random.seed(1)
    machines = [fleet.provided_machine() for _ in range(40)]
    one, two = (
        Claims(FakeLoop(), fleet.open_session(connection=fleet.connect()), clock, PROVIDER, Counter()) for _ in range(2)
    )
    assert two.claim(0) == ()  # it has read the fleet
    assert ids(one.claim(2)) == machines[:2]
    place = machines.index(ids(two.claim(2))[0])
    assert 2 < place < 32
    work.claim(one.session, START, machines[place + 2 : place + 4])
    assert ids(two.claim(4)) == machines[place + 4 : place + 8]  # half of a batch is no sign of another
    assert set(ids(two.claim(40))) == {*machines[2:place], *machines[place + 8 :]}
