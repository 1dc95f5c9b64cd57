"""
Every fault of provider, AWS, database and machines, tried on whole loops: it is named, and the fleet converges.

Each fault is tried on one loop, drawn by a seed (``CHAOS_SEED=N``); ``make chaos`` tries it on every loop.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from shepherd_core.domain.clock import SystemClock
from shepherd_core.settings.functions.bmdb import BmdbSettings

from simulator.machines.pool import MachinePool
from tests.chaos.faults.at_machines import MACHINES
from tests.chaos.faults.at_provider import PROVIDER
from tests.chaos.faults.at_services import AWS, DATABASE
from tests.chaos.faults.fault import AgentStarts, FaultyScenario, try_fault, try_machine_faults
from tests.chaos.sample import SEED, drawn
from tests.chaos.scenarios.loops import Provisioning
from tests.integration.chaos.conftest import rack
from tests.support.bmdb.fleet import Fleet

FAULTS = (*PROVIDER, *AWS, *DATABASE)


@pytest.fixture
def real_time(shared_database: BmdbSettings) -> Iterator[Fleet]:
    fleet = Fleet(shared_database, SystemClock())
    yield fleet
    fleet.close()


@pytest.fixture
def many_machines(tmp_path: Path) -> Iterator[tuple[MachinePool, str]]:
    with rack(tmp_path, len(MACHINES) + 2) as racked:
        yield racked


@pytest.mark.parametrize("name", dict.fromkeys(fault.name for fault in FAULTS))
def test_a_fault_is_named_and_repaired_without_other_damage(name: str, faulty: Callable[[str], FaultyScenario]) -> None:
    """An operator must learn the cause, and must not have to clean up."""
    for fault in drawn((fault for fault in FAULTS if fault.name == name), name):
        assert try_fault(fault, faulty(fault.loop)) == [], f"{fault}, seed {SEED}"


def test_a_machine_fault_is_named_and_delays_no_other_machine(
    real_time: Fleet, many_machines: tuple[MachinePool, str], tmp_path: Path
) -> None:
    assert try_machine_faults(AgentStarts(real_time, *many_machines, tmp_path), MACHINES) == []


def test_a_fault_that_shows_differently_is_reported(real_time: Fleet) -> None:
    """A table that cannot be wrong checks nothing."""
    assert try_fault(replace(FAULTS[0], shows=frozenset()), Provisioning(real_time)) == [
        "it showed as ['fails provider-unusable'] instead of []"
    ]
