"""Machines whose function died while it worked on them: they are worked on alone, and quarantined if that repeats."""

import threading
from collections import Counter
from collections.abc import Collection
from uuid import UUID

import pytest
from shepherd_core.bmdb.machines import lookup
from shepherd_core.bmdb.recovery import explain, remediation
from shepherd_core.bmdb.session import Session
from shepherd_core.bmdb.work import work
from shepherd_core.bmdb.work.ticks import TickHead
from shepherd_core.domain.clock import Deadline, SystemClock
from shepherd_core.domain.errors.bmdb import SessionExpired
from shepherd_core.domain.errors.machine import SshRefused
from shepherd_core.domain.machine import Process
from shepherd_core.loops import runner
from shepherd_core.loops.base import Closing, Task
from shepherd_core.loops.claims import THREAD, Claims
from shepherd_core.loops.runner import RunLimits

from tests.conftest import ManualClock
from tests.integration.loops.test_control_loop import FakeLoop, kill_sessions
from tests.support.bmdb.fleet import PROVIDER, Fleet, claimed, ids
from tests.support.waiting import WAIT_SECONDS

START = Process.AGENT_START
LONGEST = 3840
"""Seconds of the longest backoff."""


class Functions:
    """Invocations of one loop, which *killers* kill; any machine may, if it is None."""

    def __init__(self, fleet: Fleet, clock: ManualClock) -> None:
        self.fleet = fleet
        self.clock = clock
        self.killers: Collection[UUID] | None = ()
        self.refusing: Collection[UUID] = ()
        """Machines on which no agent can be started."""
        self.together = 0
        """Machines in hand before the first killer kills."""
        self._reaper = fleet.connect()
        self._one = threading.Lock()

    def invoke(self, concurrency: int = 50) -> FakeLoop:
        loop = FakeLoop(self._run_task)
        self._in_hand = threading.Semaphore(0)
        self._dead = threading.Event()
        deadline = Deadline(self.clock, 600)
        limits = RunLimits(concurrency, 60, 60)
        try:
            runner.run(
                loop, PROVIDER, self.fleet.connection, self.clock, limits, deadline=deadline, runtime_info="a test"
            )
        except SessionExpired:
            # In Lambda they would be gone; here they would keep suspects waiting.
            for thread in threading.enumerate():
                if thread.name == THREAD:
                    thread.join(WAIT_SECONDS)
        return loop

    def _run_task(self, task: Task) -> None:
        machine_id = task.work.machine_id
        if self.killers is None or machine_id in self.killers:
            for _ in range(self.together - 1):
                assert self._in_hand.acquire(timeout=WAIT_SECONDS)
            self.together = 0
            with self._one:
                if not self._dead.is_set():
                    kill_sessions(self.fleet)
                    self.fleet.open_session(connection=self._reaper).close()
                self._dead.set()
        elif self.together:
            self._in_hand.release()
            assert self._dead.wait(WAIT_SECONDS)
        if machine_id in self.refusing:
            raise SshRefused

    def quarantined(self) -> set[UUID]:
        return {row[0] for row in self.fleet.sql("SELECT machine_id FROM machine_quarantine")}

    def open(self) -> set[UUID]:
        """Return the machines that still need an agent."""
        return {row[0] for row in self.fleet.sql("SELECT machine_id FROM machine_need WHERE process = :p", p=START)}


@pytest.fixture
def functions(fleet: Fleet, clock: ManualClock) -> Functions:
    return Functions(fleet, clock)


def die_together(functions: Functions, machines: list[UUID]) -> None:
    was, functions.killers, functions.together = functions.killers, machines[:1], len(machines)
    functions.invoke()
    functions.killers = was
    assert {tuple(functions.fleet.events(machine)) for machine in machines} == {("Started", "Expired")}


def test_a_machine_that_kills_its_functions_is_quarantined_alone(functions: Functions) -> None:
    fleet = functions.fleet
    machines = [fleet.provided_machine() for _ in range(5)]
    killer = machines[0]
    functions.killers = [killer]
    die_together(functions, machines)
    for _ in range(4):
        assert functions.quarantined() == set()
        fleet.pass_time(LONGEST)
        newcomer = fleet.provided_machine()
        loop = functions.invoke()
        assert newcomer not in functions.open(), "others come first, and are not harmed"
        if killer in loop.machines:
            assert loop.most_at_once == 1
            assert loop.machines[-1] == killer
    assert functions.quarantined() == {killer}
    assert functions.open() == set()
    assert all(fleet.events(machine) == ["Started", "Expired", "Started", "Finished"] for machine in machines[1:])


def test_the_third_death_alone_in_a_row_quarantines_a_machine(functions: Functions) -> None:
    """The first may be that of a neighbour; the next three happened with this machine alone."""
    fleet = functions.fleet
    killer = fleet.provided_machine()
    functions.killers = [killer]
    for seconds in (30, 120, 480, 1920):
        if seconds == 1920:
            fleet.provided_machine()
        functions.invoke()
        fleet.pass_time(seconds - 3)
        assert functions.invoke().machines == [], "the backoff grows"
        fleet.pass_time(3)
    assert functions.quarantined() == set()
    assert functions.invoke().machines == []
    assert fleet.events(killer) == ["Started", "Expired"] * 4 + ["Started", "Quarantined", "Finished"]
    ((cause,),) = fleet.sql("SELECT cause FROM machine_quarantine")
    died = "fake/static died or was cut off while it worked on this machine"
    assert cause == f"{died}, 4 times in a row"
    remediation.unquarantine(fleet.connection, killer, reason="me: mended")
    functions.killers = ()
    assert functions.invoke().machines == [killer]
    assert functions.open() == set()


def test_history_and_why_say_that_the_function_died(functions: Functions) -> None:
    fleet = functions.fleet
    machines = [fleet.provided_machine() for _ in range(3)]
    die_together(functions, machines)
    cause = "fake/static died or was cut off while it worked on this machine and 2 more, 1 times in a row"
    assert fleet.sql("SELECT DISTINCT failed_cause FROM work_history WHERE event = 'Expired'") == [[cause]]
    verdicts = explain.why(fleet.connection, machines[0])
    assert verdicts[0].because == f"waiting: {cause}"


@pytest.mark.parametrize("refused", [False, True])
def test_work_that_ends_starts_the_count_over(functions: Functions, refused: bool) -> None:
    """Also by a failure: the function survived it. So deaths at different times never add up."""
    fleet = functions.fleet
    machine = fleet.provided_machine()
    for _ in range(5):
        fleet.pass_time(LONGEST)
        fleet.provided_machine()
        functions.killers = [machine]
        functions.invoke()
        fleet.pass_time(30)
        functions.killers = ()
        functions.refusing = [machine] if refused else ()
        assert machine in functions.invoke().machines
        if not refused:
            fleet.change(f"DELETE FROM machine_agent_started WHERE machine_id = '{machine}'")
    assert functions.quarantined() == set()
    assert fleet.sql("SELECT 1 FROM work_backoff WHERE deaths > 0") == []


def test_an_outage_of_the_functions_quarantines_no_machine(functions: Functions) -> None:
    """
    A broken deployment kills every function, with any machine: none of them is proved to be the cause.

    Nor is it when functions work again, and work on other machines has ended.
    """
    fleet = functions.fleet
    for _ in range(4):
        fleet.provided_machine()
    functions.killers = None
    for _ in range(40):
        fleet.pass_time(LONGEST if functions.invoke().machines == [] else 61)
    assert fleet.sql("SELECT min(deaths) > 4 FROM work_backoff") == [[True]]
    functions.killers = ()
    for _ in range(3):
        fleet.provided_machine()
        fleet.pass_time(LONGEST)
        functions.invoke()
    assert functions.open() == functions.quarantined() == set()


@pytest.mark.parametrize(
    ("who", "provider", "deaths", "begun", "proved"),
    [
        (TickHead("initializer", PROVIDER), PROVIDER, 3, False, True),
        ("shepherdctl", PROVIDER, 3, False, False),
        (TickHead("initializer", "other"), "other", 3, False, False),
        (TickHead("initializer", PROVIDER), PROVIDER, 2, False, False),
        (TickHead("initializer", PROVIDER), PROVIDER, 3, True, False),
    ],
    ids=["between the last two", "by an operator", "at another provider", "before", "when the last had begun"],
)
def test_only_work_ended_between_two_deaths_proves_that_functions_work(
    fleet: Fleet, who: TickHead | str, provider: str, deaths: int, begun: bool, proved: bool
) -> None:
    """A death is on record some time after it, when an outage may be over and other work may have ended."""
    suspect, other = fleet.provided_machine(), fleet.provided_machine(provider=provider)

    def end_other() -> None:
        with Closing(Session.open(fleet.connection, SystemClock(), who, "a test", 60), dict) as closing:
            started = dict.fromkeys(work.claim(closing.session, START, [other]), work.AgentStarted(bytes(32), None))
            assert work.finish_agent_start(closing.session, started) == {other}

    for times in range(4):
        if times == deaths and not begun:
            end_other()
        dead = fleet.open_session()
        assert ids(work.claim(dead, START, [suspect])) == [suspect]
        if times == deaths and begun:
            end_other()
        fleet.expire(dead)
        fleet.open_session()
        fleet.pass_time(LONGEST)
    session = fleet.open_session()
    (held,) = work.claim(session, START, [suspect])
    assert held.deaths == 4
    assert remediation.quarantine_killer(session, held) is proved


def test_many_killers_are_quarantined_while_others_are_worked_on(functions: Functions) -> None:
    """They must not pass for an outage: the work on other machines ends."""
    fleet = functions.fleet
    killers = functions.killers = {fleet.provided_machine() for _ in range(4)}
    for _ in range(30):
        fleet.pass_time(LONGEST)
        functions.invoke()
        fleet.provided_machine()
        functions.invoke()
    assert functions.quarantined() == killers
    assert functions.open() <= {max(functions.open(), default=None)}


def test_suspects_are_claimed_one_at_a_time_after_the_others(fleet: Fleet, clock: ManualClock) -> None:
    """Nothing is claimed beside one, and two claims at once never take the same one."""
    suspects = {fleet.provided_machine() for _ in range(2)}
    dead = fleet.open_session()
    assert len(claimed(dead, START, 10)) == 2
    fleet.expire(dead)
    fleet.open_session()
    fleet.pass_time(30)
    newcomer = fleet.provided_machine()
    one, two = (
        Claims(FakeLoop(), fleet.open_session(connection=fleet.connect()), clock, PROVIDER, Counter()) for _ in range(2)
    )
    others = one.claim(10)
    assert ids(others) == [newcomer]
    assert one.must_wait(others)
    assert one.claim(10, others) == ()
    first, second = one.claim(10), two.claim(10)
    assert (len(first), len(second)) == (1, 1)
    assert set(ids(first) + ids(second)) == suspects
    fleet.provided_machine()
    clock.now += 60
    assert two.must_wait(second)
    assert two.claim(10, second) == ()
    assert len(two.claim(10)) == 1


def test_a_suspect_waits_for_threads_of_abandoned_work(functions: Functions) -> None:
    """Such a thread could kill the function, and the suspect would be blamed."""
    fleet = functions.fleet
    suspect = fleet.provided_machine()
    functions.killers = [suspect]
    functions.invoke()
    functions.killers = ()
    fleet.pass_time(30)
    abandoned = threading.Event()
    thread = threading.Thread(target=abandoned.wait, name=THREAD, daemon=True)
    thread.start()
    assert functions.invoke().machines == []
    abandoned.set()
    thread.join()
    assert functions.invoke().machines == [suspect]


@pytest.mark.parametrize("seconds", [0, 60])
def test_an_operator_may_end_the_suspicion(functions: Functions, seconds: float) -> None:
    """After the cause is known, the machine is worked on as any other, also if its backoff is over."""
    fleet = functions.fleet
    machine = fleet.provided_machine()
    functions.killers = [machine]
    functions.invoke()
    fleet.pass_time(seconds)
    assert remediation.retry(fleet.connection, machine, reason="me: mended")
    assert [held.deaths for held in claimed(fleet.open_session(), START)] == [0]
    assert lookup.show_machine(fleet.connection, machine).backoffs == []
