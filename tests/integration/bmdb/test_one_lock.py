"""One lock for each machine, whatever the process: every one that there is, and one that somebody may add."""

from typing import cast
from uuid import UUID

import pytest
from shepherd_core.bmdb.session import Session
from shepherd_core.bmdb.work import work
from shepherd_core.domain.errors.bmdb import WorkConflict
from shepherd_core.domain.machine import Process

from tests.support.bmdb.fleet import Fleet

PROCESSES = [*Process, cast("Process", "ShepherdMadeUp")]


def locked(session: Session, process: Process, machine_id: UUID) -> bool:
    try:
        work.lock_machine(session, process, machine_id)
    except WorkConflict:
        return False
    return True


@pytest.mark.parametrize("second", PROCESSES)
@pytest.mark.parametrize("first", PROCESSES)
def test_two_sessions_never_hold_one_machine(fleet: Fleet, first: Process, second: Process) -> None:
    machine_id = fleet.provided_machine()
    session, other = fleet.open_session(), fleet.open_session()
    assert locked(session, first, machine_id)
    assert not locked(other, second, machine_id)
    assert work.claim(other, second, [machine_id]) == ()
    work.let_go(other)
    assert fleet.holders(machine_id) == [session.session_id]
    work.let_go(session)
    assert locked(other, second, machine_id)
    assert fleet.holders(machine_id) == [other.session_id]


def test_a_late_lost_statement_gives_up_no_later_lock(fleet: Fleet) -> None:
    """The session has gone on meanwhile, and counts on the lock."""
    machine_id = fleet.provided_machine()
    session = fleet.open_session()
    sent = session.key
    fleet.connection.run("fence_session", session_id=session.session_id, fence=1)
    session._fence = 1
    assert locked(session, Process.REMOVAL, machine_id)
    fleet.connection.run("let_go", **sent)
    assert fleet.holders(machine_id) == [session.session_id]
    work.let_go(session)
    assert fleet.holders(machine_id) == []
