"""
A network that breaks between a loop and the database, the provider or a machine; the fleet must converge.

One exchange for each place is tried here, and all of them by ``make chaos``. ``CHAOS_SEED=N`` repeats a sample.
"""

from collections.abc import Callable

import pytest

from tests.chaos.faults.fault import FaultyScenario
from tests.chaos.faults.network import Link, explore, slowly
from tests.chaos.sample import SECONDS, SEED, WHOLE, chance, drawn
from tests.integration.chaos.conftest import Check
from tests.support.bmdb.breaking_connection import WHERE, Break

# A connection that was cut off leaves its socket to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


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

every_link = pytest.mark.parametrize(("loop", "link"), _LINKS, ids=map(", ".join, _LINKS))


@every_link
def test_a_connection_broken_at_any_exchange_keeps_every_promise(
    faulty: Callable[[str], FaultyScenario], loop: str, link: Link, check: Check
) -> None:
    """After a lost answer, the function must read the outcome: it cannot know it."""
    explored = explore(
        faulty(loop),
        link,
        sample=None if WHOLE else chance((loop, link)),
        # An adapter waits ten seconds for the provider's answer, which is too long for a sample.
        stalls=bool(SECONDS) or link != "provider",
    )
    check(explored)
    breaks = [each for each in explored.breaks if isinstance(each, Break)]
    assert {each.where for each in breaks} == {*WHERE, *(["commit"] if link == "database" else [])}
    assert len({each.how for each in breaks}) >= 3


@every_link
def test_a_slow_network_changes_nothing(faulty: Callable[[str], FaultyScenario], loop: str, link: Link) -> None:
    for trickling in drawn((False, True), (loop, link)):
        assert slowly(faulty(loop), link, trickling=trickling) == [], f"seed {SEED}"
