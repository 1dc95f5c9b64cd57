from collections.abc import Callable
from dataclasses import replace
from typing import cast
from uuid import UUID, uuid4

import pytest
from shepherd_core.bmdb.agents import host_keys
from shepherd_core.bmdb.machines import pauses
from shepherd_core.bmdb.recovery import remediation
from shepherd_core.bmdb.session import Session
from shepherd_core.bmdb.work import work
from shepherd_core.bmdb.work.work import AgentStarted, Failure
from shepherd_core.domain.backoff import Backoff
from shepherd_core.domain.errors import SecretMissing, ShepherdError
from shepherd_core.domain.errors.bmdb import MachineUnknown, WorkConflict
from shepherd_core.domain.errors.machine import NoAddress, SshTimedOut
from shepherd_core.domain.machine import HostKeyOrigin, Process, ProviderId
from shepherd_core.domain.remediation import REINSTALL, USUAL_TIMEOUTS, NextStep, Step
from shepherd_core.settings.functions.specs import PROCESS_OF_LOOP

from tests.support import defaults
from tests.support.bmdb import work_ends
from tests.support.bmdb.fleet import PROVIDER, Fleet, claimed, ids
from tests.support.bmdb.work_ends import ENDS, End

START, RECOVER = Process.AGENT_START, Process.RECOVERY
KEY = bytes(range(32))

PROCESSES = [*Process, cast("Process", "ShepherdMadeUp")]
"""Every one that there is, and one that somebody may add."""


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


def test_an_agent_behind_another_host_key_is_not_recorded(fleet: Fleet, session: Session) -> None:
    """An operator named the right key while Shepherd talked to somebody else; the next contact is compared with it."""
    machine_id, other = fleet.provided_machine(), fleet.provided_machine()
    works = {held: AgentStarted(KEY, "another host key") for held in claimed(session, START, 2)}
    host_keys.pin_host_key(fleet.connection, machine_id, "pinned", reason="?")
    assert work.finish_agent_start(session, works) == {other}
    assert fleet.sql("SELECT machine_id FROM machine_agent_started") == [[other]]
    assert fleet.sql("SELECT host_key FROM machine_host_key WHERE machine_id = :id", id=machine_id) == [["pinned"]]
    assert (fleet.events(machine_id), fleet.holders(machine_id)) == (["Started", "HostKeyPinned", "Canceled"], [])
    (held,) = claimed(session, START)
    assert (held.machine_id, held.host_key) == (machine_id, "pinned")


@pytest.mark.parametrize("origin", HostKeyOrigin)
def test_a_host_key_that_still_holds_is_pinned_again(fleet: Fleet, session: Session, origin: HostKeyOrigin) -> None:
    """A step that would have changed it was not taken; where the key is from stays known, whatever deleted the row."""
    machine_id = fleet.unhealthy_machine()
    fleet.sql("INSERT INTO machine_host_key VALUES (:id, 'pinned', now(), :origin)", id=machine_id, origin=origin)
    (held,) = claimed(session, RECOVER)
    assert (held.host_key, held.host_key_origin) == ("pinned", origin)
    work_ends.attempt(session, [held], NextStep(Step(REINSTALL, 1, USUAL_TIMEOUTS), 1))
    assert fleet.sql("SELECT 1 FROM machine_host_key") == []
    remediation.leave_alone(session, {held: ShepherdError("no luck")}, defaults.RULES.backoff)
    assert fleet.sql("SELECT host_key, origin FROM machine_host_key") == [["pinned", origin]]


def test_a_step_that_was_not_taken_undoes_no_other_reboot(fleet: Fleet, session: Session) -> None:
    """That one would not count for the budget."""
    for _ in range(2):
        fleet.unhealthy_machine()
    works = claimed(session, RECOVER, 2)
    work_ends.attempt(session, works)
    remediation.leave_alone(session, {works[0]: ShepherdError("no luck")}, defaults.RULES.backoff)
    counting = fleet.sql("SELECT machine_id FROM machine_rebooted WHERE rebooted_at <> '-infinity'")
    assert counting == [[works[1].machine_id]]


def test_a_failure_pins_no_host_key(fleet: Fleet, session: Session) -> None:
    """Somebody who poses as a machine for a minute would lock the real one out."""
    fleet.provided_machine()
    (held,) = claimed(session, START)
    work.fail(session, {held: Failure(ShepherdError("disk full"), 1)})
    machine_id = fleet.unhealthy_machine()
    fleet.sql("INSERT INTO machine_host_key VALUES (:id, 'pinned', now())", id=machine_id)
    (held,) = claimed(session, RECOVER)
    host_keys.forget_host_key(fleet.connection, machine_id, reason="reinstalled")
    remediation.leave_alone(session, {held: ShepherdError("no luck")}, defaults.RULES.backoff)
    assert fleet.sql("SELECT 1 FROM machine_host_key") == []


NO_LUCK = End(
    RECOVER,
    "Failed",
    lambda session, held: remediation.leave_alone(
        session, dict.fromkeys(held, ShepherdError("?")), Backoff(60, None, None)
    ),
)


@pytest.mark.parametrize(
    ("end", "kept"),
    [
        (ENDS["finish_agent_start"], []),
        (ENDS["finish_recovery"], [[None, 0]]),
        (ENDS["leave_alone"], []),
        (ENDS["end_undone (failed)"], [[60.0, 0]]),
        (NO_LUCK, [[60.0, 0]]),
    ],
    ids=lambda value: value.event if isinstance(value, End) else None,
)
def test_what_an_end_keeps_of_backoff_and_deaths(fleet: Fleet, session: Session, end: End, kept: list[object]) -> None:
    """The function survived the machine, and what ended well backs off no further."""
    fleet.sql(
        "INSERT INTO work_backoff (machine_id, process, until, cause, last_interval_seconds, deaths) "
        "VALUES (:id, :process, now(), '?', 30, 3)",
        id=end.due_machine(fleet),
        process=end.process,
    )
    end.end(session, claimed(session, end.process))
    assert fleet.sql("SELECT last_interval_seconds, deaths FROM work_backoff") == kept


@pytest.mark.parametrize("other", [START, RECOVER])
def test_a_backoff_is_of_one_machine_and_process(fleet: Fleet, session: Session, other: Process) -> None:
    fleet.provided_machine() if other is START else fleet.unhealthy_machine()
    (held,) = claimed(session, other)
    work.fail(session, {held: Failure(ShepherdError("no luck"), 3600)})
    fleet.provided_machine() if other is START else fleet.change("DELETE FROM machine_agent_started")
    (held,) = claimed(session, START)
    assert held.last_interval_seconds is None


def test_work_on_a_named_machine_begins_due_or_not(fleet: Fleet, session: Session) -> None:
    """An operator's reboot does not wait for a schedule, and no loop interferes."""
    machine_id = fleet.provided_machine()
    held = work.start_work(session, machine_id, "?")
    assert held == replace(held, machine_id=machine_id, process=RECOVER, provider_id=ProviderId("machine-1"))
    assert fleet.events(machine_id) == ["Started"]
    assert claimed(session, START) == []
    work.cancel(session, [held])
    assert ids(claimed(session, START)) == [machine_id]
    with pytest.raises(MachineUnknown):
        work.lock_machine(session, START, uuid4())


def test_a_paused_machine_takes_no_place_of_another(fleet: Fleet, session: Session) -> None:
    """At most 2,000 candidates are read: those that no claim would take could fill all places."""
    paused, other = fleet.provided_machine(), fleet.provided_machine()
    pauses.pause(fleet.connection, owner="me", reason="?", machine_id=paused)
    found = work.candidates(session, START, PROVIDER)
    assert ([each.machine_id for each in found.machines], found.total) == ([other], 1)


# The machines that a claim returns, at the boundaries of time; tests of ready machines have every kind of facts.


def failed(process: Process, interval: int, ago: float, error: ShepherdError | None = None) -> Callable[[Fleet], UUID]:
    def plant(fleet: Fleet) -> UUID:
        machine_id = work_ends.failed(fleet, error or ShepherdError("no luck"), interval, process)
        fleet.pass_time(ago)
        return machine_id

    return plant


def rebooted(settle: float, ago: float) -> Callable[[Fleet], UUID]:
    def plant(fleet: Fleet) -> UUID:
        machine_id = fleet.unhealthy_machine()
        session = fleet.open_session()
        held = claimed(session, Process.RECOVERY)
        work_ends.attempt(session, held)
        work_ends.finish_recovery(session, held, settle)
        session.close()
        fleet.pass_time(ago)
        return machine_id

    return plant


def restarted(started_ago: float) -> Callable[[Fleet], UUID]:
    return lambda fleet: fleet.unhealthy_machine(reported_ago=started_ago + 60, started_ago=started_ago)


STATES: dict[str, tuple[Callable[[Fleet], UUID], Process | None]] = {
    "bare": (Fleet.bare_machine, None),
    "provided": (Fleet.provided_machine, START),
    "provided by another provider": (lambda fleet: fleet.provided_machine("equinix"), None),
    "agent start failed just now": (failed(START, 300, 0), None),
    "agent start failed, not quite long enough ago": (failed(START, 300, 295), None),
    "agent start failed, long enough ago": (failed(START, 300, 300), START),
    "no first heartbeat, not quite for 30 minutes": (lambda fleet: fleet.started_machine(1795), None),
    "no first heartbeat for 30 minutes": (lambda fleet: fleet.started_machine(1800), RECOVER),
    "no heartbeat, not quite for 10 minutes": (lambda fleet: fleet.unhealthy_machine(595), None),
    "no heartbeat for 10 minutes": (lambda fleet: fleet.unhealthy_machine(600), RECOVER),
    "no heartbeat for 10 minutes, started 15 minutes ago": (lambda fleet: fleet.unhealthy_machine(600, 900), RECOVER),
    "heartbeat older than the agent, not quite 30 minutes": (restarted(1795), None),
    "heartbeat older than the agent, 30 minutes": (restarted(1800), RECOVER),
    "recovery failed just now": (failed(RECOVER, 60, 0), None),
    "recovery failed, long enough ago": (failed(RECOVER, 60, 60), RECOVER),
    "never up, an agent start failed, not quite for six hours": (failed(START, 30_000, 21_595), None),
    "never up, an agent start failed, for six hours": (failed(START, 30_000, 21_600), RECOVER),
    "never up, nothing answered, for six hours": (failed(START, 30_000, 21_600, SshTimedOut()), RECOVER),
    "never up for six hours, by our own fault": (failed(START, 30_000, 21_600, SecretMissing()), None),
    "never up for six hours, no access": (failed(START, 30_000, 21_600, NoAddress()), None),
    "rebooted, not quite settled": (rebooted(120, 115), None),
    "rebooted and settled": (rebooted(120, 120), START),
}


@pytest.mark.parametrize(("plant", "needs"), STATES.values(), ids=STATES)
def test_only_the_loop_that_a_machine_needs_claims_it(
    fleet: Fleet, plant: Callable[[Fleet], UUID], needs: Process | None
) -> None:
    machine_id = plant(fleet)
    session = fleet.open_session()
    for loop in PROCESS_OF_LOOP.values():
        assert ids(claimed(session, loop)) == ([machine_id] if loop is needs else [])


@pytest.mark.parametrize(("interval", "minutes"), [(0, 10), (10, 10), (240, 10), (300, 12.5), (600, 25), (3600, 150)])
def test_a_machine_is_unhealthy_after_two_and_a_half_intervals(fleet: Fleet, interval: int, minutes: float) -> None:
    """And after the timeout at the earliest; so no change of the interval makes a healthy machine look unhealthy."""
    machine_id = fleet.unhealthy_machine(60 * minutes - 20, started_ago=86_400)
    fleet.tell_interval(machine_id, interval)
    session = fleet.open_session()
    assert claimed(session, RECOVER) == []
    fleet.pass_time(20)
    assert ids(claimed(session, RECOVER)) == [machine_id]
