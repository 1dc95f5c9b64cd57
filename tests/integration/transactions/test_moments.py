"""Clocks, locks and windows of single statements, each in the one interleaving that shows whether it is right."""

from collections.abc import Callable, Sequence
from datetime import datetime

import pytest
from shepherd_core.bmdb.listings import provisioning
from shepherd_core.bmdb.recovery import budget, remediation
from shepherd_core.bmdb.session import Session
from shepherd_core.bmdb.work import work
from shepherd_core.bmdb.work.work import Failure
from shepherd_core.domain.budget import Brake, Budget
from shepherd_core.domain.errors import HeldBack, NoLongerDue, ShepherdError
from shepherd_core.domain.machine import Process
from shepherd_core.domain.records import Provided

from tests.support import defaults
from tests.support.bmdb.fleet import HOUR, MOMENT, PROVIDER, Fleet, claimed
from tests.support.bmdb.work_ends import ENDS, attempt, finish_recovery

START, RECOVER = Process.AGENT_START, Process.RECOVERY
HERE = "rack 1"


def times(fleet: Fleet) -> set[datetime]:
    return {value for rows in fleet.content().values() for row in rows for value in row if isinstance(value, datetime)}


def delayed(fleet: Fleet, call: Callable[[], object], meanwhile: Callable[[], object] = lambda: None) -> datetime:
    """Run *call*, which has to wait for its session, and return when that was released."""
    moments: list[datetime] = []

    def look() -> None:
        meanwhile()
        moments.append(fleet.sql("SELECT clock_timestamp()")[0][0])

    fleet.held_up("UPDATE sessions SET fence = fence", call, look)
    return moments[0]


def test_an_agent_counts_as_started_when_it_is_recorded(fleet: Fleet, session: Session) -> None:
    """A heartbeat of an earlier agent that arrived during the wait would count as the new agent's first."""
    machine_id = fleet.provided_machine()
    held = claimed(session, START)

    def say() -> None:
        fleet.sql("INSERT INTO machine_agent_heartbeat VALUES (:id, clock_timestamp())", id=machine_id)

    moment = delayed(fleet, lambda: ENDS["finish_agent_start"].end(session, held), meanwhile=say)
    assert fleet.sql("SELECT process, reported FROM machine_need") == [["ShepherdRecovery", False]]
    assert fleet.sql("SELECT pinned_at >= :moment FROM machine_host_key", moment=moment) == [[True]]


def test_a_backoff_begins_when_it_is_recorded(fleet: Fleet, session: Session) -> None:
    fleet.provided_machine()
    held = claimed(session, START)
    moment = delayed(fleet, lambda: ENDS["end_undone (failed)"].end(session, held))
    later = fleet.sql("SELECT :moment::timestamptz + interval '60 seconds'", moment=moment)[0][0]
    assert fleet.sql("SELECT until >= :later FROM work_backoff", later=later) == [[True]]


CONCLUSIONS: dict[str, Callable[[Session, Sequence[work.Work]], object]] = {
    "finish_recovery": lambda session, held: finish_recovery(session, held, 0, 0),
    "fail": lambda session, held: work.fail(session, {each: Failure(ShepherdError("no luck"), 0) for each in held}),
    "cancel": work.cancel,
    "leave_alone": lambda session, held: remediation.leave_alone(
        session, {each: NoLongerDue("it is paused") for each in held}, defaults.RULES.backoff
    ),
    "leave_alone for a while": lambda session, held: remediation.leave_alone(
        session, {each: HeldBack("?", 0) for each in held}, defaults.RULES.backoff
    ),
    "quarantine": lambda session, held: remediation.quarantine(session, dict.fromkeys(held, "no step is left")),
    "close": lambda session, _: session.close(),
}


@pytest.mark.parametrize("conclusion", CONCLUSIONS.values(), ids=CONCLUSIONS)
def test_a_recovery_ends_when_that_is_recorded(
    fleet: Fleet, session: Session, conclusion: Callable[[Session, Sequence[work.Work]], object]
) -> None:
    """Boot waits and cooldowns begin then, and what happened during the wait happened before it."""
    fleet.make_overdue(fleet.provided_machine(), retry_in=HOUR)
    before = times(fleet)
    held = claimed(session, RECOVER, 1)
    assert attempt(session, held) == held
    before |= times(fleet)
    moment = delayed(fleet, lambda: conclusion(session, held))
    assert min(times(fleet) - before) >= moment


def test_a_session_that_expires_during_a_wait_loses_its_lock(fleet: Fleet, session: Session) -> None:
    """Whether the holder is alive is decided after the lock was obtained, not by the begin of the transaction."""
    holder = fleet.open_session(seconds=HOUR)
    assert provisioning.take_lock(holder, PROVIDER) is not None
    fleet.die_in(MOMENT, holder)
    taken = fleet.held_up(
        "UPDATE provisioner_lock SET last_creation_at = last_creation_at",
        lambda: provisioning.take_lock(session, PROVIDER),
        lambda: fleet.wait_until_dead(holder),
    )
    assert taken is not None


def test_a_session_that_is_being_renewed_keeps_its_lock(fleet: Fleet, session: Session) -> None:
    """Others still see the old deadline, which has passed, but the renewal came in time and is being committed."""
    holder = fleet.open_session(connection=fleet.connect())
    assert provisioning.take_lock(holder, PROVIDER) is not None
    fleet.die_in(2 * MOMENT, holder)

    def renew() -> None:
        holder.renew()
        fleet.wait_until_dead(holder)

    assert fleet.behind(renew, lambda: provisioning.take_lock(session, PROVIDER), holder.connection) is None


def test_ages_are_those_of_the_moment(fleet: Fleet, session: Session) -> None:
    """Measured from the begin of the transaction, what happened since would lie in the future."""
    machine_id = fleet.started_machine(started_ago=HOUR)

    def unit() -> list[Provided]:
        session.connection.run("now")
        fleet.sql("UPDATE machines SET machine_created_at = clock_timestamp()")
        fleet.sql("INSERT INTO machine_agent_heartbeat VALUES (:id, clock_timestamp())", id=machine_id)
        fleet.sql(
            "INSERT INTO machine_release VALUES (:id, clock_timestamp(), 'me', '?', clock_timestamp())", id=machine_id
        )
        return session.connection.fetch(Provided, "unusual_machines", provider=PROVIDER)

    (row,) = session.connection.transact(unit)
    ages = (row.age_seconds, row.heartbeat_seconds, row.asked_seconds, row.released_seconds)
    assert all(age is not None and age >= 0 for age in ages)


def test_only_a_brake_that_comes_again_begins_anew(fleet: Fleet, session: Session) -> None:
    """Operators read since when it holds; only its reason changes with the figures."""

    def shown(brake: Brake, reason: str) -> datetime:
        budget.show_budgets(session, PROVIDER, {HERE: Budget(1, brake, reason)})
        (found,) = budget.shown_budgets(fleet.connection)
        assert (found.location, found.per_hour, found.brake, found.reason) == (HERE, 1, brake, reason)
        return found.began_at

    began = shown(Brake.SHARE, "8 of 10")
    assert shown(Brake.SHARE, "9 of 10") == began
    other = shown(Brake.SSH, "3 machines")
    assert other > began
    budget.show_budgets(session, PROVIDER, {})
    assert budget.shown_budgets(fleet.connection) == []
    assert shown(Brake.SSH, "3 machines") > other
