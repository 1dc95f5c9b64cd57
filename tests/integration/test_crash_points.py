"""
Death at the outside effects of every loop, and what becomes of the world afterwards.

Every third effect here, each of them in ``make chaos``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from shepherd_core import ssh_key
from shepherd_core.clock import SystemClock

from simulator.machines import MachinePark
from tests.chaos.departures import Departures
from tests.chaos.explore import explore
from tests.chaos.invariants import violations
from tests.chaos.points import Death, Points, alive
from tests.chaos.scenarios import AgentStarts, GivingUp, Provisioning, Recoveries
from tests.integration.fleet import Fleet
from tests.integration.machine_client import Client

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shepherd_core.config import BmdbSettings

STRIDE = 3

# The dead close no sockets. The operating system does that for a process, and here nobody.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def real_time(shared_database: BmdbSettings) -> Iterator[Fleet]:
    """Return a fleet in the time of the day: it is the functions that read the clock here."""
    fleet = Fleet(shared_database, SystemClock())
    yield fleet
    fleet.close()


def test_a_provisioner_that_dies_anywhere_loses_and_doubles_nothing(real_time: Fleet) -> None:
    """A machine that was created and not recorded would be paid for by somebody and used by nobody."""
    explored = explore(Provisioning(real_time), stride=STRIDE)
    assert explored.deaths >= 2 * explored.effects // STRIDE
    assert explored.broken == []


def test_a_recoverer_that_dies_anywhere_reboots_no_healthy_machine(real_time: Fleet) -> None:
    """And those that are silent come back all the same."""
    explored = explore(Recoveries(real_time), stride=STRIDE)
    assert explored.deaths >= 2 * explored.effects // STRIDE
    assert explored.broken == []


def test_a_recoverer_that_dies_anywhere_gives_up_on_a_machine_once(real_time: Fleet) -> None:
    """It has no step left; whoever dies on the way to quarantine leaves it to the next, and nobody reboots it again."""
    explored = explore(GivingUp(real_time), stride=STRIDE)
    assert explored.deaths >= 2 * explored.effects // STRIDE
    assert explored.broken == []


def test_an_operator_who_dies_anywhere_types_it_again_and_it_is_done_once(real_time: Fleet) -> None:
    """A machine that was given back, and is not known to be, would be missed for ever."""
    explored = explore(Departures(real_time), stride=2 * STRIDE)
    assert explored.deaths >= explored.effects // STRIDE
    assert explored.broken == []


def test_an_initializer_that_dies_anywhere_leaves_agents_that_are_known_by_their_key(
    real_time: Fleet, tmp_path: Path
) -> None:
    """An agent whose key is not on record is never heard."""
    private_key = ssh_key.generate()
    with MachinePark(tmp_path / "park", 0, boot_seconds=0) as park:
        client = Client(park)
        client.authorized_key = ssh_key.public_line(private_key)
        for name in ("a", "b"):
            client.rack(name)
        explored = explore(AgentStarts(real_time, park, private_key, tmp_path), stride=STRIDE)
    assert explored.deaths >= 2 * explored.effects // STRIDE
    assert explored.broken == []


def test_a_release_without_a_record_is_noticed(real_time: Fleet) -> None:
    """What the exploration of releases stands on."""
    scenario = Departures(real_time)
    world = scenario.arrange()
    try:
        with Points(Death()) as points:
            scenario.tick(world, points)
        assert violations(world) == scenario.missing(world) == []
        real_time.sql("UPDATE machine_departed SET how = 'Forgotten'")
        assert [found.split(":")[0] for found in violations(world)] == ["every_release_is_explained_by_a_record"]
    finally:
        world.close()


def test_the_dead_have_no_effect(real_time: Fleet) -> None:
    """A death that let a ``finally`` close its session would prove nothing about real ones."""
    scenario = Provisioning(real_time)
    world = scenario.arrange()
    try:
        death = Death(20)
        with Points(death) as points:
            assert alive(lambda: scenario.tick(world, points)) is None
        assert death.dead
        assert len(death.names) == 20
        assert real_time.sql("SELECT count(*) FROM sessions") == [[1]]
    finally:
        world.close()


@pytest.mark.parametrize(
    ("harm", "promise"),
    [
        ("UPDATE machine_due SET process = NULL", "nobody_waits_for_ever"),
        ("UPDATE machine_due SET not_before = now() + interval '1 day'", "nobody_waits_for_ever"),
        ("UPDATE machine_due SET process = 'ShepherdAgentStart'", "a_due_row_leads_to_what_is_needed"),
        ("DELETE FROM work_history WHERE event = 'Finished'", "every_started_work_ends_once"),
        ("UPDATE work_history SET event = 'Failed' WHERE event = 'Finished'", "every_failure_names_its_cause"),
        ("DELETE FROM work_history WHERE event = 'Attempted'", "every_effect_is_explained_by_a_record"),
        ("INSERT INTO machine_quarantine SELECT machine_id, 'epoch', '?', '' FROM work_history WHERE event = 'Started'",
         "a_machine_in_quarantine_is_not_touched"),
        ("UPDATE pauses SET machine_id = (SELECT machine_id FROM work_history LIMIT 1), created_at = 'epoch'",
         "a_paused_machine_is_not_touched"),
    ],
)  # fmt: skip
def test_a_broken_promise_is_noticed(real_time: Fleet, harm: str, promise: str) -> None:
    """An invariant that nothing breaks is no check."""
    scenario = Recoveries(real_time)
    world = scenario.arrange()
    try:
        with Points(Death()) as points:
            scenario.tick(world, points)
        assert violations(world) == []
        real_time.sql(harm)
        assert promise in {found.split(":")[0] for found in violations(world)}
    finally:
        world.close()
