"""
A network that breaks between a loop and the database, the provider or a machine; the fleet must converge.

One exchange for each place is tried here, and all of them by ``make chaos``. ``CHAOS_SEED=N`` repeats a sample.
"""

from pathlib import Path

import pytest

from simulator.machines.pool import MachinePool
from tests.chaos.faults.fault import AgentStarts, FaultyScenario, Recoveries, Updates
from tests.chaos.faults.network import Link, explore, slowly
from tests.chaos.sample import SECONDS, SEED, WHOLE, chance, drawn
from tests.chaos.scenarios.loops import Provisioning
from tests.integration.chaos.conftest import Check
from tests.support.bmdb.breaking_connection import WHERE, Break
from tests.support.bmdb.fleet import Fleet

# A connection that was cut off leaves its socket to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def scenario(
    request: pytest.FixtureRequest, real_time: Fleet, racked: tuple[MachinePool, str], tmp_path: Path
) -> FaultyScenario:
    if request.param == "initializer":
        return AgentStarts(real_time, *racked, tmp_path)
    kinds: dict[str, type[Provisioning | Recoveries | Updates]] = {
        "provisioner": Provisioning,
        "recoverer": Recoveries,
        "updater": Updates,
    }
    return kinds[request.param](real_time)


_LINKS: list[tuple[str, Link]] = [
    ("provisioner", "database"),
    ("recoverer", "database"),
    ("updater", "database"),
    ("initializer", "database"),
    ("provisioner", "provider"),
    ("recoverer", "provider"),
    ("updater", "provider"),
    ("initializer", "ssh"),
]

every_link = pytest.mark.parametrize(("scenario", "link"), _LINKS, indirect=["scenario"], ids=map(", ".join, _LINKS))


@every_link
def test_a_connection_broken_at_any_exchange_keeps_every_promise(
    scenario: FaultyScenario, link: Link, check: Check
) -> None:
    """After a lost answer, the function must read the outcome: it cannot know it."""
    explored = explore(
        scenario,
        link,
        sample=None if WHOLE else chance((scenario.name, link)),
        # An adapter waits ten seconds for the provider's answer, which is too long for a sample.
        stalls=bool(SECONDS) or link != "provider",
    )
    check(explored)
    breaks = [each for each in explored.breaks if isinstance(each, Break)]
    assert {each.where for each in breaks} == {*WHERE, *(["commit"] if link == "database" else [])}
    assert len({each.how for each in breaks}) >= 3


@every_link
def test_a_slow_network_changes_nothing(scenario: FaultyScenario, link: Link) -> None:
    for trickling in drawn((False, True), (scenario.name, link)):
        assert slowly(scenario, link, trickling=trickling) == [], f"seed {SEED}"
