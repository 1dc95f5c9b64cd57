"""
Every fault of provider, AWS, database and machines, tried on whole loops: it is named, and the fleet converges.

Each fault is tried on one loop, drawn by a seed (``CHAOS_SEED=N``); ``make chaos`` tries it on every loop.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from shepherd_core.adapters import ssh_keys
from shepherd_core.domain.clock import SystemClock
from shepherd_core.settings.functions import LOOPS
from shepherd_core.settings.functions.bmdb import BmdbSettings

from simulator.machines.pool import MachinePool
from tests.chaos.faults.fault import AgentStarts, FaultyScenario, Recoveries, Updates
from tests.chaos.faults.run import try_fault, try_machine_faults
from tests.chaos.faults.table import ELSEWHERE, FAULTS, MACHINES, NAMED
from tests.chaos.sample import SEED, drawn
from tests.chaos.scenarios.loops import Provisioning
from tests.support.agents.machine_client import Client
from tests.support.bmdb.fleet import Fleet
from tests.support.waiting import eventually


@pytest.fixture
def real_time(shared_database: BmdbSettings) -> Iterator[Fleet]:
    fleet = Fleet(shared_database, SystemClock())
    yield fleet
    fleet.close()


def _rack(folder: Path, machines: int) -> Iterator[tuple[MachinePool, str]]:
    private_key = ssh_keys.generate()
    with MachinePool(folder / "pool", 0, boot_seconds=0) as pool:
        client = Client(pool)
        client.authorized_key = ssh_keys.public_line(private_key)
        for number in range(machines):
            pool.rack(f"machine-{number}", client.authorized_key)
        eventually(lambda: {pool.state(name) for name in pool.names()} == {"Up"})
        yield pool, private_key


@pytest.fixture(scope="module")
def one_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[MachinePool, str]]:
    yield from _rack(tmp_path_factory.mktemp("one"), 1)


@pytest.fixture
def many_machines(tmp_path: Path) -> Iterator[tuple[MachinePool, str]]:
    yield from _rack(tmp_path, len(MACHINES) + 2)


@pytest.mark.parametrize("name", dict.fromkeys(fault.name for fault in FAULTS))
def test_a_fault_is_named_and_repaired_without_other_damage(
    name: str, real_time: Fleet, one_machine: tuple[MachinePool, str], tmp_path: Path
) -> None:
    """An operator must learn the cause, and must not have to clean up."""
    scenarios: dict[str, Callable[[], FaultyScenario]] = {
        "provisioner": lambda: Provisioning(real_time),
        "initializer": lambda: AgentStarts(real_time, *one_machine, tmp_path),
        "recoverer": lambda: Recoveries(real_time),
        "updater": lambda: Updates(real_time),
    }
    for fault in drawn((fault for fault in FAULTS if fault.name == name), name):
        assert try_fault(fault, scenarios[fault.loop]()) == [], f"{fault}, seed {SEED}"


def test_a_machine_fault_is_named_and_delays_no_other_machine(
    real_time: Fleet, many_machines: tuple[MachinePool, str], tmp_path: Path
) -> None:
    assert try_machine_faults(AgentStarts(real_time, *many_machines, tmp_path)) == []


def test_a_fault_that_shows_differently_is_reported(real_time: Fleet) -> None:
    """A table that cannot be wrong checks nothing."""
    assert try_fault(replace(FAULTS[0], shows=frozenset()), Provisioning(real_time)) == [
        "it showed as ['fails provider-unusable'] instead of []"
    ]


def test_every_named_fault_is_tried(request: pytest.FixtureRequest) -> None:
    tried = [(fault.name, fault.loop) for fault in FAULTS] + [(fault.name, "initializer") for fault in MACHINES]
    assert {name for name, _ in tried} == set(NAMED)
    assert {loop for _, loop in tried} == set(LOOPS)
    assert not set(tried) & set(ELSEWHERE)
    for place in ELSEWHERE.values():
        file, _, test = place.partition("::")
        assert f"\ndef {test}(" in (request.path.parents[1] / file).read_text()
