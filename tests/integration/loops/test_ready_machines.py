"""A tick that has room leaves no machine unclaimed that the facts call ready, and takes no other."""

from itertools import cycle
from uuid import UUID

from shepherd_core.domain.machine import Process
from shepherd_core.telemetry import Metric

from tests.conftest import ManualClock
from tests.integration.loops.test_control_loop import FakeLoop, Runner
from tests.support.bmdb.fleet import PROVIDER, Fleet
from tests.support.bmdb.recovery import RecoveryEnvironment
from tests.support.bmdb.reference.combinations import COMBINATIONS, plant
from tests.support.bmdb.reference.plain_eligibility import plainly_eligible

START, RECOVER = Process.AGENT_START, Process.RECOVERY

KEEPING = [
    "SELECT 1",
    "INSERT INTO work_backoff VALUES (:id, :process, now() + interval '1 minute', '?', 60)",
    "INSERT INTO work_backoff VALUES (:id, :process, now() - interval '1 minute', '?', 60)",
    "INSERT INTO work_backoff (machine_id, process, until, cause, deaths) VALUES (:id, :process, now(), '?', 1)",
    "INSERT INTO work VALUES (:id, 'ShepherdRemoval', :session, NULL)",
    "INSERT INTO work VALUES (:id, 'ShepherdRemoval', :session, now())",
    "INSERT INTO pauses (machine_id, owner, reason) VALUES (:id, '?', '?')",
    "INSERT INTO pauses (machine_id, owner, reason, expires_at) VALUES (:id, '?', '?', now())",
    "INSERT INTO pauses (machine_id, owner, reason, process) VALUES (:id, '?', '?', :process)",
    "INSERT INTO pauses (machine_id, owner, reason, provider) VALUES (:id, '?', '?', 'equinix')",
    "INSERT INTO work_backoff VALUES (:id, 'ShepherdAgentStart', now() - interval '1 minute', '?', 60)",
    "INSERT INTO machine_rebooted VALUES (:id, now(), now() + interval '1 minute')",
    "INSERT INTO machine_rebooted VALUES (:id, now() - interval '7 hours', now())",
]
"""What keeps a machine from its process, or only seems to."""


def plant_all(fleet: Fleet, process: Process) -> set[UUID]:
    """Plant machines with all facts that decide what they need; return those that are ready for the process."""
    combinations = [each for each in COMBINATIONS if each.provider == PROVIDER and each.provided and not each.gone]
    session = fleet.open_session()
    for machine_id, text in zip(plant(fleet, combinations), cycle(KEEPING), strict=False):
        values = {":id": machine_id, ":process": process, ":session": session.session_id}
        for name, value in values.items():
            text = text.replace(name, f"'{value}'")  # noqa: PLW2901
        fleet.sql(text)
    return plainly_eligible(fleet.sql, process)


def test_the_initializer_leaves_no_ready_machine(fleet: Fleet, clock: ManualClock) -> None:
    ready = plant_all(fleet, START)
    loop = FakeLoop()
    counts = Runner(fleet, clock)(loop)
    assert set(loop.machines) == ready
    assert counts[Metric.BACKLOG] == 0
    assert plainly_eligible(fleet.sql, START) == set()


def test_the_recoverer_leaves_no_ready_machine(fleet: Fleet, clock: ManualClock) -> None:
    ready = plant_all(fleet, RECOVER)
    env = RecoveryEnvironment(fleet, clock)
    counts = env.run()
    assert {row[0] for row in fleet.sql("SELECT machine_id FROM work_history WHERE event = 'Started'")} == ready
    assert counts[Metric.BACKLOG] == 0
    assert plainly_eligible(fleet.sql, RECOVER) == set()
