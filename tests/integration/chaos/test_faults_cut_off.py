"""A function is cut off from the BMDB in the middle of a transaction: its locks, and its transaction."""

import pytest
from shepherd_core.bmdb.wire.driver import TimeLimits
from shepherd_core.domain.errors.bmdb import CommitUnknown

from tests.support.bmdb.breaking_connection import Break, BreakingConnection
from tests.support.bmdb.fleet import Fleet

PENALTY = {"capacity_id": "rack", "seconds": 60, "kind": "unexpected", "cause": "?"}


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
