"""
Every fault of the outside, met by whole loops: it is named, harms nothing else, and when it is gone, all is well.

Here one loop is drawn to meet each fault (``CHAOS_SEED=N`` draws it again); in ``make chaos`` all do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from shepherd_core.adapters import ssh_keys
from shepherd_core.domain.clock import SystemClock

from simulator.machines.pool import MachinePool
from tests.chaos.faults.fault import AgentStarts, Provisions, Recoveries, Updates
from tests.chaos.faults.run import endure, endure_machines
from tests.chaos.faults.stage import LOOPS
from tests.chaos.faults.table import ELSEWHERE, FAULTS, MACHINES, NAMED
from tests.chaos.sample import SEED, drawn
from tests.support.agents.machine_client import Client, eventually
from tests.support.bmdb.fleet import Fleet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from shepherd_core.settings.functions import BmdbSettings

    from tests.chaos.faults.fault import Bendable


@pytest.fixture
def real_time(shared_database: BmdbSettings) -> Iterator[Fleet]:
    """Return a fleet in the time of the day."""
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
    """Return a machine and the key that opens it."""
    yield from _rack(tmp_path_factory.mktemp("one"), 1)


@pytest.fixture
def many_machines(tmp_path: Path) -> Iterator[tuple[MachinePool, str]]:
    """Return a machine for every fault, two with which nothing is wrong, and the key that opens them."""
    yield from _rack(tmp_path, len(MACHINES) + 2)


@pytest.mark.parametrize("name", dict.fromkeys(fault.name for fault in FAULTS))
def test_a_fault_is_named_harms_nothing_else_and_leaves_nothing_behind(
    name: str, real_time: Fleet, one_machine: tuple[MachinePool, str], tmp_path: Path
) -> None:
    """An operator has to learn what it was, and nobody should have to clean up after it."""
    scenarios: dict[str, Callable[[], Bendable]] = {
        "provisioner": lambda: Provisions(real_time),
        "initializer": lambda: AgentStarts(real_time, *one_machine, tmp_path),
        "recoverer": lambda: Recoveries(real_time),
        "updater": lambda: Updates(real_time),
    }
    for fault in drawn((fault for fault in FAULTS if fault.name == name), name):
        assert endure(fault, scenarios[fault.loop]()) == [], f"{fault}, seed {SEED}"


def test_a_machine_with_a_fault_fails_by_its_name_and_holds_up_nobody(
    real_time: Fleet, many_machines: tuple[MachinePool, str], tmp_path: Path
) -> None:
    """Every fault that a machine can have, at the same time, beside two healthy ones."""
    assert endure_machines(AgentStarts(real_time, *many_machines, tmp_path)) == []


def test_a_fault_that_shows_otherwise_is_noticed(real_time: Fleet) -> None:
    """A table that nothing contradicts is no check."""
    assert endure(replace(FAULTS[0], shows=frozenset()), Provisions(real_time)) == [
        "it showed as ['fails ProviderUnusable'] instead of []"
    ]


def test_no_fault_is_forgotten(request: pytest.FixtureRequest) -> None:
    """A fault that is named and not tried is a promise that nobody keeps."""
    tried = [(fault.name, fault.loop) for fault in FAULTS] + [(fault.name, "initializer") for fault in MACHINES]
    assert {name for name, _ in tried} == set(NAMED)
    assert {loop for _, loop in tried} == set(LOOPS)
    assert not set(tried) & set(ELSEWHERE)
    for place in ELSEWHERE.values():
        file, _, test = place.partition("::")
        assert f"\ndef {test}(" in (request.path.parents[1] / file).read_text()
