"""What the tests that kill invocations have in common."""

import gc
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from shepherd_core.adapters import ssh_keys

from simulator.machines.pool import MachinePool
from tests.chaos.explore import Explored
from tests.chaos.faults.fault import AgentStarts, FaultyScenario, Recoveries, Updates
from tests.chaos.sample import SECONDS, SEED
from tests.chaos.scenarios.loops import Provisioning
from tests.support.bmdb.fleet import Fleet
from tests.support.waiting import eventually

Check = Callable[[Explored], None]

if SECONDS:
    logging.disable(logging.CRITICAL)  # a test that runs for minutes would keep what the functions log


@pytest.fixture(autouse=True)
def _abandoned_sockets() -> Iterator[None]:
    """Collect the sockets that killed threads left open, while their warning is ignored: it would fail a later test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def check(record_property: Callable[[str, object], None]) -> Check:
    """Return what fails for broken promises, and records for `make chaos` how much was tried."""

    def check(found: Explored) -> None:
        for name, value in {**vars(found), "breaks": len(found.breaks)}.items():
            if isinstance(value, int) and value:
                record_property(name, value)
        assert found.broken == [], "\n".join([f"seed {SEED}", *found.trace])

    return check


@contextmanager
def rack(folder: Path, count: int) -> Iterator[tuple[MachinePool, str]]:
    """Yield so many machines that are up, and the private key for them."""
    private_key = ssh_keys.generate()
    with MachinePool(folder / "pool", 0, boot_seconds=0) as pool:
        for number in range(count):
            pool.rack(f"machine-{number}", ssh_keys.public_line(private_key))
        eventually(lambda: {pool.state(name) for name in pool.names()} == {"Up"})
        yield pool, private_key


@pytest.fixture(scope="module")
def racked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[MachinePool, str]]:
    with rack(tmp_path_factory.mktemp("pool"), 2) as racked:
        yield racked


@pytest.fixture
def faulty(real_time: Fleet, racked: tuple[MachinePool, str], tmp_path: Path) -> Callable[[str], FaultyScenario]:
    """Return what makes the scenario for the faults of a loop."""
    made: dict[str, Callable[[], FaultyScenario]] = {
        "provisioner": lambda: Provisioning(real_time),
        "initializer": lambda: AgentStarts(real_time, *racked, tmp_path),
        "recoverer": lambda: Recoveries(real_time),
        "updater": lambda: Updates(real_time),
    }
    return lambda loop: made[loop]()
