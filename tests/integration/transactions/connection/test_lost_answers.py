"""Where a connection broke, the BMDB is asked; a statement that still runs is neither abandoned nor executed twice."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, get_args
from uuid import UUID

import pytest
from shepherd_core.bmdb.agents import host_keys
from shepherd_core.bmdb.connection import Connection, as_rows
from shepherd_core.bmdb.listings import decommissioning, provider_facts, provisioning
from shepherd_core.bmdb.listings.decommissioning import RemovalRequest
from shepherd_core.bmdb.recovery import remediation
from shepherd_core.bmdb.session import Session
from shepherd_core.bmdb.statements import statements
from shepherd_core.bmdb.wire.driver import TimeLimits
from shepherd_core.bmdb.work import work
from shepherd_core.bmdb.work.work import Work
from shepherd_core.domain.errors.bmdb import CommitUnknown, SessionExpired, WorkConflict
from shepherd_core.domain.machine import Process
from shepherd_core.domain.records import Intent

from tests.integration.bmdb.test_listings import MACHINE
from tests.support.bmdb.breaking_connection import BreakingConnection, Lost
from tests.support.bmdb.fleet import PROVIDER, Fleet, claimed, ids
from tests.support.bmdb.work_ends import ENDS, STEP, End, attempt

START, RECOVER = Process.AGENT_START, Process.RECOVERY

either = pytest.mark.parametrize("lost", get_args(Lost))


@pytest.fixture
def session(fleet: Fleet, breaking: BreakingConnection) -> Session:
    return fleet.open_session(connection=fleet.connect(breaking.settings))


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
    assert ids(claimed(fleet.open_session(connection=connection), Process.AGENT_START)) == [machine_id]


def test_a_session_that_is_lost_again_is_not_opened(fleet: Fleet, breaking: BreakingConnection) -> None:
    connection = fleet.connect(breaking.settings)
    for _ in range(2):
        breaking.lose("request")
    with pytest.raises(CommitUnknown):
        fleet.open_session(connection=connection)


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


def test_a_step_that_is_recorded_late_is_recorded_once(
    fleet: Fleet, session: Session, breaking: BreakingConnection
) -> None:
    """Otherwise one reboot counts as two, and the machine is quarantined too early."""
    fleet.unhealthy_machine()
    (held,) = claimed(session, RECOVER)
    breaking.lose("late")
    assert attempt(session, [held]) == [held]
    assert fleet.sql("SELECT step FROM work_history WHERE event = 'Attempted'") == [["reboot"]]


@pytest.mark.parametrize(("statement", "events"), [(0, []), (1, ["Started", "Expired"])], ids=["lock", "begin"])
def test_a_statement_that_does_not_end_blocks_its_session(
    fleet: Fleet, breaking: BreakingConnection, statement: int, events: list[str]
) -> None:
    """Its session is left to expire: closing it would abandon what is committed a moment later."""
    machine_id = fleet.provided_machine()
    hasty = fleet.open_session(connection=fleet.connect(breaking.settings, TimeLimits(statement=0.5)))
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


Arrange = Callable[[Fleet, Session], Callable[[], object]]
ORDER = RemovalRequest("me", "it is gone", fresh_seconds=0)
BUDGETS = as_rows([{"location": "", "per_hour": 1, "brake": "share", "reason": "8 of 10 are dead", "lasts": False}])


def _given(prepare: Callable[[Fleet, Session], Any], write: Callable[[Session, Any], object]) -> Arrange:
    def arrange(fleet: Fleet, session: Session) -> Callable[[], object]:
        prepared = prepare(fleet, session)
        return lambda: write(session, prepared)

    return arrange


def _machine(fleet: Fleet, session: Session) -> UUID:
    provisioning.take_lock(session, PROVIDER)
    return fleet.provided_machine()


def _locked(fleet: Fleet, session: Session) -> None:
    work.lock_machine(session, START, fleet.provided_machine())


def _to_recover(fleet: Fleet, session: Session) -> Work:
    fleet.unhealthy_machine()
    (held,) = claimed(session, RECOVER)
    return held


def _to_end(end: End) -> Callable[[Fleet, Session], list[Work]]:
    return lambda fleet, session: (end.due_machine(fleet), list(claimed(session, end.process)))[1]


def _intended(_: Fleet, session: Session) -> UUID:
    provisioning.take_lock(session, PROVIDER)
    machine_id = provisioning.create_intent(session, PROVIDER, "rack")
    assert machine_id is not None
    return machine_id


def _leaving(fleet: Fleet, session: Session) -> UUID:
    machine_id = _machine(fleet, session)
    decommissioning.request_release(session, PROVIDER, machine_id, ORDER)
    return machine_id


def _facts(fleet: Fleet, session: Session) -> list[provider_facts.FactsChange]:
    fleet.provided_machine()
    assert provider_facts.begin(session, PROVIDER, None)
    return [
        provider_facts.FactsChange(known, provider_facts.ProviderFacts.of(MACHINE))
        for known in provider_facts.known(session.connection, PROVIDER, everything=True)
    ]


# These take several statements.
TRANSACTIONS: dict[str, Arrange] = {
    "record_attempts with a permission": _given(
        _to_recover,
        lambda session, held: remediation.permit_attempts(session, PROVIDER, {held: STEP}, lambda _: {held.machine_id}),
    ),
    "decommission": _given(_machine, lambda session, ours: decommissioning.forget(session, PROVIDER, ours, ORDER)),
    "request_release": _given(
        _machine, lambda session, ours: decommissioning.request_release(session, PROVIDER, ours, ORDER)
    ),
    "cancel_release": _given(_leaving, lambda session, ours: decommissioning.cancel_release(session, PROVIDER, ours)),
}
WRITES: dict[str, Arrange] = {
    **TRANSACTIONS,
    "lock_machines": _given(_machine, lambda session, ours: work.claim(session, START, [ours])),
    "begin_work": _given(
        _locked, lambda session, _: session.fetch_once(Work, "begin_work", process=START, remark=None, known=None)
    ),
    "let_go": _given(_locked, lambda session, _: work.let_go(session)),
    **{name: _given(_to_end(end), end.end) for name, end in ENDS.items()},
    "record_attempts": _given(_to_recover, lambda session, held: attempt(session, [held])),
    "quarantine": _given(_to_recover, lambda session, held: remediation.quarantine(session, {held: "enough"})),
    "set_budgets": _given(
        lambda *_: None, lambda session, _: session.run("set_budgets", provider=PROVIDER, rows=BUDGETS)
    ),
    "create_intent": _given(_machine, lambda session, _: provisioning.create_intent(session, PROVIDER, "rack")),
    "provide": _given(_intended, lambda session, begun: provisioning.provide(session, PROVIDER, begun, MACHINE)),
    "delete_intent": _given(
        _intended, lambda session, begun: provisioning.delete_intent(session, PROVIDER, Intent(begun, "rack"))
    ),
    "rebind": _given(_machine, lambda session, ours: provisioning.rebind(session, PROVIDER, ours, MACHINE, "me")),
    "write_facts": _given(_facts, lambda session, changes: provider_facts.write(session, PROVIDER, changes)),
    "renew_session": _given(lambda *_: None, lambda session, _: session.renew()),
}
each_write = pytest.mark.parametrize("arrange", WRITES.values(), ids=WRITES)


@each_write
def test_a_session_write_locks_the_session_until_the_commit(
    fleet: Fleet, session: Session, breaking: BreakingConnection, arrange: Arrange
) -> None:
    """So a session that lost an answer can wait for its end; the reaper skips it, and closing the session waits."""
    write = arrange(fleet, session)
    free: list[list[list[object]]] = []

    def check() -> None:
        free.append(fleet.sql("SELECT 1 FROM sessions FOR UPDATE SKIP LOCKED"))

    breaking.lose("late", commit=arrange in TRANSACTIONS.values(), meanwhile=check)
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


def test_every_statement_with_a_fence_was_tried() -> None:
    """A new statement that does not lock its session would not be noticed otherwise."""
    fenced = {name for name, text in statements().items() if "fence = :fence" in text} - {"fence_session"}
    assert fenced == {name.partition(" ")[0] for name in WRITES}
