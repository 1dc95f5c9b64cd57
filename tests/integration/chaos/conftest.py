import gc
import logging
import warnings
from collections.abc import Callable, Iterator

import pytest
from shepherd_core.adapters import ssh_keys

from simulator.machines.pool import MachinePool
from tests.chaos.explore import Explored
from tests.chaos.sample import SECONDS, SEED
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


@pytest.fixture(scope="module")
def racked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[MachinePool, str]]:
    """Yield two machines that are up, and the private key for them."""
    private_key = ssh_keys.generate()
    with MachinePool(tmp_path_factory.mktemp("pool"), 0, boot_seconds=0) as pool:
        for name in ("machine-0", "machine-1"):
            pool.rack(name, ssh_keys.public_line(private_key))
        eventually(lambda: {pool.state(name) for name in pool.names()} == {"Up"})
        yield pool, private_key
