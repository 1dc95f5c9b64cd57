"""Connections that break in the middle: the outcome is never guessed, the BMDB is asked."""

from typing import get_args

import pytest
from shepherd_core.bmdb.agents import host_keys
from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.session import Session
from shepherd_core.bmdb.work import work
from shepherd_core.domain.errors.bmdb import CommitUnknown
from shepherd_core.domain.machine import Process

from tests.support.bmdb.breaking_connection import BreakingConnection, Lost
from tests.support.bmdb.fleet import PROVIDER, Fleet, claimed, ids
from tests.support.bmdb.work_ends import ENDS, End

LOSSES = get_args(Lost)

either = pytest.mark.parametrize("lost", LOSSES)


@pytest.mark.parametrize("statement", [1, 2], ids=["that locks", "that begins"])
@either
def test_a_claim_returns_what_it_claimed_whatever_was_lost(
    fleet: Fleet, session: Session, breaking: BreakingConnection, lost: Lost, statement: int
) -> None:
    machines = {fleet.provided_machine() for _ in range(3)}
    fleet.sql("INSERT INTO machine_host_key SELECT machine_id, 'pinned', now() FROM machines")
    breaking.lose(lost, after=statement - 1)
    claim = work.claim(session, Process.AGENT_START, machines)

    assert set(ids(claim)) == machines
    assert {found.host_key for found in claim} == {"pinned"}
    assert all(found.provider_id and found.provider_id.startswith("machine-") for found in claim)
    assert work.cancel(session, claim) == machines


@either
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_an_end_of_work_happens_once_whatever_was_lost(
    fleet: Fleet, session: Session, breaking: BreakingConnection, end: End, lost: Lost
) -> None:
    """Wrongly reported lost, finished work is repeated: a second reboot. Wrongly reported done, it never happens."""
    machine_id = end.due_machine(fleet)
    held = claimed(session, end.process)
    breaking.lose(lost)
    assert end.end(session, held) == {machine_id}
    assert fleet.events(machine_id) == ["Started", end.event]
    assert fleet.holders(machine_id) == []


@either
def test_a_session_opens_although_the_first_answer_is_lost(
    fleet: Fleet, breaking: BreakingConnection, lost: Lost
) -> None:
    """A connection that broke while the function was frozen is the usual case, not an accident."""
    machine_id = fleet.provided_machine()
    connection = fleet.connect(breaking.settings)
    breaking.lose(lost)
    opened = fleet.open_session(connection=connection)
    assert ids(claimed(opened, Process.AGENT_START)) == [machine_id]


@either
def test_a_single_statement_whose_outcome_is_unknown_says_so(
    fleet: Fleet, breaking: BreakingConnection, lost: Lost
) -> None:
    """A statement that may have been carried out is never repeated without the caller's knowledge."""
    machine_id = fleet.provided_machine()
    connection = fleet.connect(breaking.settings)
    breaking.lose(lost)
    with pytest.raises(CommitUnknown, match="pin_host_key"):
        host_keys.pin_host_key(connection, machine_id, "pinned", reason="?")
    assert ("host_key" in fleet.facts(machine_id)) is (lost == "answer")
    assert host_keys.pin_host_key(connection, machine_id, "pinned", reason="?")


def penalize(connection: Connection, rack: str) -> None:
    connection.run("penalize", provider=PROVIDER, capacity_id=rack, seconds=60, kind="unexpected", cause="broke")


@either
def test_a_transaction_that_broke_before_its_commit_runs_again(
    fleet: Fleet, breaking: BreakingConnection, lost: Lost
) -> None:
    """None of it can have been committed, so the caller need not know."""
    connection = fleet.connect(breaking.settings)
    runs: list[int] = []

    def unit() -> None:
        runs.append(1)
        penalize(connection, f"rack {len(runs)}")

    breaking.lose(lost)
    connection.transact(unit)
    assert len(runs) == 2
    assert fleet.sql("SELECT capacity_id FROM capacity_penalties") == [["rack 2"]]


@either
def test_a_commit_whose_outcome_is_unknown_says_so(fleet: Fleet, breaking: BreakingConnection, lost: Lost) -> None:
    connection = fleet.connect(breaking.settings)
    racks = iter(["rack 1", "rack 2"])
    breaking.lose(lost, commit=True)
    with pytest.raises(CommitUnknown):
        connection.transact(lambda: penalize(connection, next(racks)))
    assert next(racks) == "rack 2", "it ran twice"
    assert len(fleet.sql("SELECT 1 FROM capacity_penalties")) == (lost == "answer")
