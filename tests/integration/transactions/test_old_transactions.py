"""A transaction that somebody leaves open, which keeps PostgreSQL from removing dead rows."""

import pytest
from shepherd_core.bmdb.wire import server

from shepherdctl.descriptions.conditions import old_transaction
from tests.support.bmdb.fleet import Fleet, administrator
from tests.support.command_line import CommandLine

MINUTE = 60
END = "an administrator ends it with SELECT pg_terminate_backend(42)"
END_PREPARED = "an administrator ends it with COMMIT PREPARED or ROLLBACK PREPARED"


@pytest.mark.parametrize("begin", ["BEGIN ISOLATION LEVEL REPEATABLE READ", "BEGIN; SELECT pg_current_xact_id()"])
def test_an_open_transaction_is_found_by_its_pid(fleet: Fleet, begin: str) -> None:
    with administrator(fleet.settings) as somebody:
        for statement in begin.split("; "):
            somebody.run(statement)
        (pid,) = somebody.run("SELECT pg_backend_pid()")[0]
        found = server.oldest_transaction(fleet.connection, 0)
        assert found is not None
        assert found.seconds > 0
        assert found == server.Transaction("open", pid, "postgres", "", "idle in transaction", found.seconds)
        assert server.oldest_transaction(fleet.connection, MINUTE) is None
        somebody.run("ROLLBACK")
    assert server.oldest_transaction(fleet.connection, 0) is None


def test_status_says_that_it_cannot_see_the_transactions_of_others(fleet: Fleet) -> None:
    with administrator(fleet.settings) as somebody:
        somebody.run('CREATE ROLE "blind" LOGIN')
        try:
            for grant in ("SELECT ON ALL TABLES IN SCHEMA public", "USAGE ON SCHEMA public"):
                somebody.run(f'GRANT {grant} TO "blind"')
            shepherdctl = CommandLine(fleet.settings.model_copy(update={"bmdb_user": "blind", "bmdb_roles": None}))
            assert shepherdctl.load("status", status=3)["sees_all_transactions"] is False
            said = " ".join(shepherdctl("status").stderr.split())
            assert 'not shown; an administrator can change that: GRANT pg_read_all_stats TO "blind"' in said
        finally:
            somebody.run('DROP OWNED BY "blind"')
            somebody.run('DROP ROLE "blind"')


@pytest.mark.parametrize(
    ("kind", "application", "told"),
    [
        ("open", "psql", ("a transaction of alice (psql) has been open for 11 min, and slows every claim", END)),
        ("open", "", ("a transaction of alice has been open for 11 min, and slows every claim", END)),
        (
            "prepared",
            "night",
            ("the transaction 'night' of alice was prepared 11 min ago, and slows every claim", END_PREPARED),
        ),
    ],
)
def test_an_old_transaction_is_told_with_its_end(kind: str, application: str, told: tuple[str, str]) -> None:
    found = server.Transaction(kind, 42, "alice", application, None, 11 * MINUTE)
    assert old_transaction(found) == told
