"""Statements that are still running at the server when their owner asks: neither abandoned nor executed twice."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from shepherd_core.bmdb.listings import provider_facts, provisioning
from shepherd_core.bmdb.listings.provider_facts import FactsChange, ProviderFacts
from shepherd_core.bmdb.recovery import remediation
from shepherd_core.bmdb.session import Session
from shepherd_core.bmdb.wire.driver import TimeLimits
from shepherd_core.bmdb.work import work
from shepherd_core.bmdb.work.work import Work
from shepherd_core.domain.errors.bmdb import CommitUnknown, SessionExpired, WorkConflict
from shepherd_core.domain.machine import Process
from shepherd_core.domain.remediation import REBOOT, NextStep, Step

from tests.integration.bmdb.listings.test_provisioning import MACHINE
from tests.support import defaults
from tests.support.bmdb.breaking_connection import BreakingConnection
from tests.support.bmdb.fleet import PROVIDER, Fleet, claimed
from tests.support.bmdb.work_ends import ENDS, End

START, RECOVER = Process.AGENT_START, Process.RECOVERY
SHORT = 0.5
"""Seconds that a statement may take where a test waits for that."""

each_end = pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)


@pytest.fixture
def hasty(fleet: Fleet, breaking: BreakingConnection) -> Session:
    return fleet.open_session(connection=fleet.connect(breaking.settings, TimeLimits(statement=SHORT)))


# A commit that hangs.


def test_a_step_that_is_recorded_late_is_recorded_once(
    fleet: Fleet, session: Session, breaking: BreakingConnection
) -> None:
    """Otherwise one reboot counts as two, and the machine is quarantined too early."""
    fleet.unhealthy_machine()
    (held,) = claimed(session, RECOVER)
    breaking.lose("late")
    step = NextStep(Step(REBOOT, 1, defaults.TIMEOUTS), 1)
    assert remediation.record_attempts(session, {held: step}) == [held]
    assert fleet.sql("SELECT step FROM work_history WHERE event = 'Attempted'") == [["reboot"]]


@pytest.mark.parametrize(("statement", "events"), [(0, []), (1, ["Started", "Expired"])], ids=["lock", "begin"])
def test_a_statement_that_does_not_end_blocks_its_session(
    fleet: Fleet, hasty: Session, breaking: BreakingConnection, statement: int, events: list[str]
) -> None:
    """Its session is left to expire: closing it would abandon what is committed a moment later."""
    machine_id = fleet.provided_machine()
    breaking.lose("late", stubborn=True, after=statement)

    def claim() -> object:
        return work.claim(hasty, START, [machine_id])

    with pytest.raises(CommitUnknown):
        claim()
    calls: list[Callable[[], object]] = [hasty.renew, claim, hasty.close]
    for call in calls:  # each waits
        with pytest.raises(CommitUnknown, match="the server is still running it"):
            call()
        assert hasty.seconds_left() < 0
    breaking.let_go()
    assert fleet.holders(machine_id) == [hasty.session_id]

    fleet.expire(hasty)
    fleet.open_session()
    assert fleet.events(machine_id) == events


class OldClaim:
    """A claim of a session that expired two hours ago; it began before that, and has been committing ever since."""

    def __init__(self, fleet: Fleet) -> None:
        self._connection = fleet.connect()
        self.machine_id = fleet.provided_machine()
        session_id = fleet.open_session().session_id
        fleet.sql("UPDATE sessions SET deadline = now() - interval '2 hours' WHERE session_id = :id", id=session_id)
        self._connection.script(f"""
            BEGIN;
            SELECT FROM sessions WHERE session_id = '{session_id}' FOR UPDATE;
            INSERT INTO work VALUES ('{self.machine_id}', 'ShepherdAgentStart', '{session_id}', now());
            INSERT INTO work_history VALUES
                ('{self.machine_id}', 'ShepherdAgentStart', 'Started', clock_timestamp(), NULL, '{session_id}')
        """)

    def commit(self) -> None:
        self._connection.script("COMMIT")


def test_an_expired_session_is_not_deleted_while_its_claim_commits(fleet: Fleet) -> None:
    """Its work is not visible yet; and no other statement waits for it."""
    late = OldClaim(fleet)
    fleet.open_session().close()
    late.commit()
    fleet.open_session().close()
    assert fleet.events(late.machine_id) == ["Started", "Expired"]


def test_work_that_commits_while_its_session_is_deleted_keeps_it(
    fleet: Fleet, session: Session, breaking: BreakingConnection
) -> None:
    """The reaper's snapshot lacks what was committed while it waited: the foreign key makes it run again."""
    fleet.sql("VACUUM FULL sessions")  # rows of earlier tests are gone: the closing session comes first, and waits
    late = OldClaim(fleet)
    fleet.connection.script("BEGIN")
    fleet.connection.script(f"SELECT FROM sessions WHERE session_id = '{session.session_id}' FOR UPDATE")
    before = breaking.requests
    with ThreadPoolExecutor(1) as pool:
        closed = pool.submit(session.close)
        fleet.wait_until_blocked()
        late.commit()
        fleet.connection.script("COMMIT")
        closed.result(timeout=20)
    assert breaking.requests - before == 3  # prepared, refused, and run again
    fleet.open_session()
    assert fleet.events(late.machine_id) == ["Started", "Expired"]


# A statement that still waits for a lock.


def left_waiting(fleet: Fleet, breaking: BreakingConnection, lock: str, call: Callable[[], object]) -> object:
    """Break the connection of *call* while it waits for that lock, and again wait; return its result."""
    left = threading.Event()

    def leave() -> None:
        fleet.wait_until_blocked()
        left.set()

    fleet.connection.script(f"BEGIN; {lock}")
    breaking.leave(leave)
    with ThreadPoolExecutor(1) as pool:
        called = pool.submit(call)
        assert left.wait(20)
        fleet.wait_until_blocked(2)
        fleet.connection.script("COMMIT")
        result = called.result(timeout=20)
    fleet.wait_until_idle()
    return result


@each_end
def test_an_end_that_still_waits_is_repeated_and_happens_once(
    fleet: Fleet, session: Session, breaking: BreakingConnection, end: End
) -> None:
    machine_id = end.due_machine(fleet)
    held = claimed(session, end.process)
    lock = "UPDATE sessions SET fence = fence"
    assert left_waiting(fleet, breaking, lock, lambda: end.end(session, held)) == {machine_id}
    assert fleet.events(machine_id) == ["Started", end.event]


# Statements that write for a session; that all others do it in the same way is read in their text (test_statements.py).


Arrange = Callable[[Fleet, Session], Callable[[], object]]


def _beginning(fleet: Fleet, session: Session) -> Callable[[], object]:
    work.lock_machine(session, START, fleet.provided_machine())
    return lambda: session.fetch_once(Work, "begin_work", process=START, remark=None, known=None)


def _creating(_: Fleet, session: Session) -> Callable[[], object]:
    provisioning.take_lock(session, PROVIDER)
    return lambda: provisioning.create_intent(session, PROVIDER, "rack")


def _permitting(fleet: Fleet, session: Session) -> Callable[[], object]:
    fleet.unhealthy_machine()
    (held,) = claimed(session, RECOVER)
    step = NextStep(Step(REBOOT, 1, defaults.TIMEOUTS), 1)
    return lambda: remediation.permit_attempts(session, PROVIDER, {held: step}, lambda _: {held.machine_id})


def _updating(fleet: Fleet, session: Session) -> Callable[[], object]:
    fleet.provided_machine()
    assert provider_facts.begin(session, PROVIDER, None)
    (known,) = provider_facts.known(session.connection, PROVIDER, everything=True)
    return lambda: provider_facts.write(session, PROVIDER, [FactsChange(known, ProviderFacts.of(MACHINE))])


each_write = pytest.mark.parametrize(
    "arrange", [_beginning, _creating, _permitting, _updating, lambda _, session: session.renew]
)


@each_write
def test_a_session_write_locks_the_session_until_the_commit(
    fleet: Fleet, session: Session, breaking: BreakingConnection, arrange: Arrange
) -> None:
    """So a session that lost an answer can wait for its end; the reaper skips it, and closing the session waits."""
    write = arrange(fleet, session)
    free: list[list[list[object]]] = []

    def check() -> None:
        free.append(fleet.sql("SELECT 1 FROM sessions FOR UPDATE SKIP LOCKED"))

    breaking.lose("late", commit=arrange is _permitting, meanwhile=check)
    with suppress(CommitUnknown):
        write()
    assert free == [[]]


@each_write
def test_a_fenced_statement_writes_nothing(fleet: Fleet, arrange: Arrange) -> None:
    """However late it arrives: its owner has continued by then."""
    write = arrange(fleet, fleet.open_session())
    fleet.sql("UPDATE sessions SET fence = 1")
    before = fleet.content()
    with suppress(SessionExpired, WorkConflict):
        assert not write()
    assert fleet.content() == before
