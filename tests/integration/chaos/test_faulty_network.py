"""
A network that breaks between a loop and the database, the provider or a machine; the fleet must converge.

One exchange for each place is tried here, and all of them by ``make chaos``. ``CHAOS_SEED=N`` repeats a sample.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from shepherd_core.bmdb.wire.driver import TimeLimits
from shepherd_core.domain.errors.bmdb import CommitUnknown

from simulator.machines.pool import MachinePool
from tests.chaos.network import FaultyScenario, FewRecoveries, Link, explore, trickled
from tests.chaos.sample import SECONDS, WHOLE, chance
from tests.chaos.scenarios.loops import AgentStarts, Provisioning, Updates
from tests.integration.chaos.conftest import Check
from tests.support.bmdb.breaking_connection import WHERE, Break, BreakingConnection
from tests.support.bmdb.fleet import Fleet

# A connection that was cut off leaves its socket to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

PENALTY = {"capacity_id": "rack", "seconds": 60, "kind": "unexpected", "cause": "?"}
_LINKS: list[tuple[str, Link]] = [
    *((loop, "database") for loop in ("provisioner", "recoverer", "updater", "initializer")),
    *((loop, "provider") for loop in ("provisioner", "recoverer", "updater")),
    ("initializer", "ssh"),
]


@pytest.fixture
def faulty(real_time: Fleet, racked: tuple[MachinePool, str], tmp_path: Path) -> Callable[[str], FaultyScenario]:
    made: dict[str, Callable[[], FaultyScenario]] = {
        "provisioner": lambda: Provisioning(real_time),
        "initializer": lambda: AgentStarts(real_time, *racked, tmp_path),
        "recoverer": lambda: FewRecoveries(real_time),
        "updater": lambda: Updates(real_time),
    }
    return lambda loop: made[loop]()


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
def test_a_trickling_network_changes_nothing(faulty: Callable[[str], FaultyScenario], loop: str, link: Link) -> None:
    assert trickled(faulty(loop), link) == []


def test_a_connection_cut_off_soon_frees_its_locks(fleet: Fleet) -> None:
    """Without a timeout, the server would keep the locks on the provider and on due machines for hours."""
    with BreakingConnection(fleet.settings) as proxy:
        cut_off = fleet.connect(proxy.settings, TimeLimits(connect=0.5, statement=0.5))
        # Startup, setting limits, BEGIN, preparing and running the statement, COMMIT: that one never arrives.
        proxy.arm(Break(6, "request", "stall"))
        with pytest.raises(CommitUnknown):
            cut_off.transact(lambda: cut_off.run("penalize", provider="equinix", **PENALTY))
        assert proxy.names[5] == "COMMIT"
        other = fleet.connect(limits=TimeLimits(statement=5))
        other.run("penalize", provider="equinix", **PENALTY)


def test_a_transaction_that_the_server_ended_runs_again(fleet: Fleet) -> None:
    """The server ends the transaction of a suspended process and keeps nothing of it, so that it may run again."""
    connection = fleet.connect()
    runs: list[int] = []

    def unit() -> None:
        runs.append(1)
        if len(runs) == 1:
            connection.script("SET idle_in_transaction_session_timeout = 1")
            fleet.wait_until(
                "NOT EXISTS (SELECT 1 FROM pg_stat_activity WHERE application_name = 'shepherd' "
                "AND datname = current_database() AND state LIKE 'idle in transaction%')"
            )
        connection.run("now")

    connection.transact(unit)
    assert len(runs) == 2
