"""
A network that breaks between a loop and the database, the provider or a machine; the fleet must converge.

A sample of the places is tried here, and all of them by ``make chaos``. ``CHAOS_SEED=N`` repeats the sample of a seed.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from shepherd_core.adapters import ssh_keys

from simulator.machines.pool import MachinePool
from tests.chaos.faults.fault import AgentStarts, FaultyScenario, Provisions, Recoveries, Updates
from tests.chaos.faults.network import Link, explore, slowly
from tests.chaos.sample import SEED, WHOLE
from tests.chaos.stage.proxy import HOW, WHERE
from tests.support.agents.machine_client import Client
from tests.support.bmdb.fleet import Fleet

# A connection that was cut off leaves its socket to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def racked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[MachinePool, str]]:
    """Return two machines and the private key for them."""
    private_key = ssh_keys.generate()
    with MachinePool(tmp_path_factory.mktemp("pool"), 0, boot_seconds=0) as pool:
        client = Client(pool)
        client.authorized_key = ssh_keys.public_line(private_key)
        for name in ("a", "b"):
            client.rack(name)
        yield pool, private_key


@pytest.fixture
def scenario(
    request: pytest.FixtureRequest, real_time: Fleet, racked: tuple[MachinePool, str], tmp_path: Path
) -> FaultyScenario:
    """Return the scenario of the test's loop."""
    if request.param == "initializer":
        return AgentStarts(real_time, *racked, tmp_path)
    kinds: dict[str, type[Provisions | Recoveries | Updates]] = {
        "provisioner": Provisions,
        "recoverer": Recoveries,
        "updater": Updates,
    }
    return kinds[request.param](real_time)


_LINKS: list[tuple[str, Link, int]] = [
    ("provisioner", "database", 31),
    ("recoverer", "database", 29),
    ("updater", "database", 23),
    ("initializer", "database", 23),
    ("provisioner", "provider", 5),
    ("recoverer", "provider", 4),
    ("updater", "provider", 3),
    ("initializer", "ssh", 31),
]
"""Loop, link, and stride: every so-manieth place is tried."""

every_link = pytest.mark.parametrize(
    ("scenario", "link", "stride"), _LINKS, indirect=["scenario"], ids=[f"{loop}, {link}" for loop, link, _ in _LINKS]
)


@every_link
def test_a_connection_broken_at_any_exchange_keeps_every_promise(
    scenario: FaultyScenario, link: Link, stride: int
) -> None:
    """After a lost answer, the function must read the outcome: it cannot know it."""
    # Stalls are left out: an adapter waits ten seconds for the provider's answer, which is too long here.
    commits = (scenario.name, link) == ("provisioner", "database")
    stride = min(stride, 7) if WHOLE else stride  # dense enough for every commit that may come late
    explored = explore(scenario, link, stride=stride, seed=SEED, stalls=link != "provider", commits=commits)
    assert explored.broken == [], f"seed {SEED}"
    assert {each.where for each in explored.breaks} == {*WHERE, *(["commit"] if link == "database" else [])}
    assert len({each.how for each in explored.breaks}) >= 3
    if commits:
        commit = explored.names.index("COMMIT") + 1
        tried = {
            (each.where, each.how)
            for each in explored.breaks
            if each.number == commit and each.where in {"request", "answer", "after"}
        }
        assert tried == {(where, how) for where in ("request", "answer", "after") for how in HOW}


@every_link
def test_a_slow_network_changes_nothing(scenario: FaultyScenario, link: Link, stride: int) -> None:
    """Messages may come late, and in pieces of any size."""
    trickling = bool((SEED + stride) % 2)
    assert slowly(scenario, link, trickling=trickling) == [], f"seed {SEED}"
