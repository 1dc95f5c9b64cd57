"""A machine whose function died is a suspect: it is claimed alone, and quarantined if that repeats."""

import random
import threading
from collections import Counter
from collections.abc import Collection
from itertools import cycle
from uuid import UUID

import pytest
from shepherd_core.bmdb.recovery import explain, remediation
from shepherd_core.bmdb.session import Session
from shepherd_core.bmdb.work import work
from shepherd_core.bmdb.work.ticks import TickHead
from shepherd_core.domain.clock import SystemClock
from shepherd_core.domain.errors.bmdb import SessionExpired
from shepherd_core.domain.machine import Process
from shepherd_core.loops.base import Closing, Task
from shepherd_core.loops.claims import THREAD, Claims
from shepherd_core.telemetry import Metric

from tests.conftest import ManualClock
from tests.integration.bmdb.combinations import COMBINATIONS, plant
from tests.integration.loops.test_control_loop import FakeLoop, Runner, kill_sessions
from tests.support.bmdb.fleet import HOUR, PROVIDER, Fleet, claimed, ids
from tests.support.bmdb.recovery import RecoveryEnvironment
from tests.support.waiting import WAIT_SECONDS

START, RECOVER = Process.AGENT_START, Process.RECOVERY

BOTH = {START, RECOVER}
KEEPING: list[tuple[str, set[Process]]] = [
    ("SELECT 1", set()),
    ("INSERT INTO work_backoff VALUES (:id, :process, now() + interval '1 minute', '?', 60)", BOTH),
    ("INSERT INTO work_backoff VALUES (:id, :process, now() - interval '1 minute', '?', 60)", set()),
    ("INSERT INTO work_backoff VALUES (:id, :process, now() + interval '1 minute', '?')", BOTH),
    (
        "INSERT INTO work_backoff (machine_id, process, until, cause, deaths) VALUES (:id, :process, now(), '?', 1)",
        set(),
    ),
    ("INSERT INTO work VALUES (:id, 'ShepherdRemoval', :session, NULL)", BOTH),
    ("INSERT INTO work VALUES (:id, 'ShepherdRemoval', :session, now())", BOTH),
    ("INSERT INTO pauses (machine_id, owner, reason) VALUES (:id, '?', '?')", BOTH),
    ("INSERT INTO pauses (machine_id, owner, reason, expires_at) VALUES (:id, '?', '?', now())", set()),
    ("INSERT INTO pauses (machine_id, owner, reason, process) VALUES (:id, '?', '?', :process)", BOTH),
    ("INSERT INTO pauses (machine_id, owner, reason, provider) VALUES (:id, '?', '?', 'equinix')", set()),
    ("INSERT INTO work_backoff VALUES (:id, 'ShepherdAgentStart', now() - interval '1 minute', '?', 60)", set()),
    ("INSERT INTO machine_rebooted VALUES (:id, now(), now() + interval '1 minute')", {START}),
    ("INSERT INTO machine_rebooted VALUES (:id, now() - interval '7 hours', now())", set()),
]
"""What keeps a machine from these processes, or only seems to."""


def plant_all(fleet: Fleet, process: Process) -> dict[UUID, bool]:
    """Plant machines with all facts that decide what they need; return which are ready for the process."""
    combinations = [each for each in COMBINATIONS if each.provider == PROVIDER and each.provided and not each.gone]
    session = fleet.open_session()
    ready = {}
    planted = zip(plant(fleet, combinations), combinations, cycle(KEEPING), strict=False)
    for machine_id, facts, (text, kept_from) in planted:
        values = {":id": machine_id, ":process": process, ":session": session.session_id}
        for name, value in values.items():
            text = text.replace(name, f"'{value}'")  # noqa: PLW2901
        fleet.sql(text)
        model = facts.model()
        if "work_backoff" in text and START in text:  # an agent start has failed
            model.machines[0].backoffs[START] = (model.now, 60)
        ready[machine_id] = model.obstacle(0, process) is None and process not in kept_from
    return ready


@pytest.mark.parametrize("process", [START, RECOVER])
def test_operators_are_told_which_machines_are_ready(fleet: Fleet, process: Process) -> None:
    """Of every eleventh, by which each thing that keeps a machine away meets each kind of facts."""
    ready = plant_all(fleet, process)
    fleet.sql(f"INSERT INTO recovery_budgets VALUES ('{PROVIDER}', '', 0, 'silent', '?')")
    for machine_id, is_ready in list(ready.items())[::11]:
        told = {each.process for each in explain.why(fleet.connection, machine_id) if each.eligible}
        assert (process in told) is is_ready


def test_the_initializer_leaves_no_ready_machine(fleet: Fleet, clock: ManualClock) -> None:
    ready = plant_all(fleet, START)
    loop = FakeLoop()
    counts = Runner(fleet, clock)(loop)
    assert set(loop.machines) == {each for each in ready if ready[each]}
    assert counts[Metric.BACKLOG] == 0


def test_the_recoverer_leaves_no_ready_machine(fleet: Fleet, clock: ManualClock) -> None:
    ready = plant_all(fleet, RECOVER)
    counts = RecoveryEnvironment(fleet, clock).run()
    started = {row[0] for row in fleet.sql("SELECT machine_id FROM work_history WHERE event = 'Started'")}
    assert started == {each for each in ready if ready[each]}
    assert counts[Metric.BACKLOG] == 0


def test_a_failing_machine_is_due_since_its_backoff_ended(fleet: Fleet, clock: ManualClock) -> None:
    """One that has failed for a day neither goes before the others nor looks as if nobody had worked on it."""
    env = RecoveryEnvironment(fleet, clock)
    env.add_reporting(10)
    failing, other = fleet.unhealthy_machine(24 * HOUR, 25 * HOUR), fleet.unhealthy_machine(660)
    fleet.sql(
        "INSERT INTO work_backoff VALUES (:id, 'ShepherdRecovery', now() - interval '10 seconds', '?', 3600)",
        id=failing,
    )
    planned = env.dry_run()
    assert [work.machine_id for work in planned.work] == [other, failing]
    assert (planned.due_at[failing] - planned.due_at[other]).total_seconds() == pytest.approx(50, abs=5)
    env.run(concurrency=1)
    started = fleet.sql("SELECT machine_id FROM work_history WHERE event = 'Started' ORDER BY timestamp")
    assert started == [[other], [failing]]


def two_ticks(fleet: Fleet, clock: ManualClock) -> list[Claims]:
    sessions = (fleet.open_session(connection=fleet.connect()) for _ in range(2))
    return [Claims(FakeLoop(), session, clock, PROVIDER, Counter()) for session in sessions]


def test_a_tick_that_meets_another_goes_on_elsewhere(fleet: Fleet, clock: ManualClock) -> None:
    """Both begin at the machine that waits longest; they would meet at every batch. None is left."""
    random.seed(1)
    machines = [fleet.provided_machine() for _ in range(40)]
    one, two = two_ticks(fleet, clock)
    assert two.claim(0) == ()  # it has read the fleet
    assert ids(one.claim(2)) == machines[:2]
    place = machines.index(ids(two.claim(2))[0])
    assert 2 < place < 32
    work.claim(one.session, START, machines[place + 2 : place + 4])
    assert ids(two.claim(4)) == machines[place + 4 : place + 8]  # half of a batch is no sign of another
    assert set(ids(two.claim(40))) == {*machines[2:place], *machines[place + 8 :]}


LONGEST = 3840
"""Seconds of the longest backoff."""


class Functions:
    """Invocations of one loop, which *killers* kill; any machine may, if it is None."""

    def __init__(self, fleet: Fleet, clock: ManualClock) -> None:
        self.fleet = fleet
        self.clock = clock
        self.killers: Collection[UUID] | None = ()
        self.together = 0
        """Machines in hand before the first killer kills."""
        self._reaper = fleet.connect()
        self._one = threading.Lock()

    def invoke(self) -> FakeLoop:
        loop = FakeLoop(self._run_task)
        self._in_hand = threading.Semaphore(0)
        self._dead = threading.Event()
        try:
            Runner(self.fleet, self.clock)(loop, concurrency=50)
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

    def quarantined(self) -> set[UUID]:
        return {row[0] for row in self.fleet.sql("SELECT machine_id FROM machine_quarantine")}

    def open(self) -> set[UUID]:
        return {row[0] for row in self.fleet.sql("SELECT machine_id FROM machine_need WHERE process = :p", p=START)}


@pytest.fixture
def functions(fleet: Fleet, clock: ManualClock) -> Functions:
    return Functions(fleet, clock)


def test_a_machine_that_kills_its_functions_is_quarantined_alone(functions: Functions) -> None:
    fleet = functions.fleet
    machines = [fleet.provided_machine() for _ in range(5)]
    killer = machines[0]
    functions.killers, functions.together = [killer], len(machines)
    functions.invoke()
    assert {tuple(fleet.events(machine)) for machine in machines} == {("Started", "Expired")}
    cause = "fake/static died or was cut off while it worked on this machine and 4 more, 1 times in a row"
    assert fleet.sql("SELECT DISTINCT failed_cause FROM work_history WHERE event = 'Expired'") == [[cause]]
    assert explain.why(fleet.connection, killer)[0].because == f"waiting: {cause}"
    for _ in range(4):
        assert functions.quarantined() == set()
        fleet.pass_time(LONGEST)
        newcomer = fleet.provided_machine()
        loop = functions.invoke()
        assert newcomer not in functions.open(), "others come first, and are not harmed"
        if killer in loop.machines:
            assert loop.most_at_once == 1
            assert loop.machines[-1] == killer
    assert (functions.quarantined(), functions.open()) == ({killer}, set())
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
    assert (functions.quarantined(), functions.invoke().machines) == (set(), [])
    assert fleet.events(killer) == ["Started", "Expired"] * 4 + ["Started", "Quarantined", "Finished"]
    cause = "fake/static died or was cut off while it worked on this machine, 4 times in a row"
    assert fleet.sql("SELECT cause FROM machine_quarantine") == [[cause]]
    remediation.unquarantine(fleet.connection, killer, reason="me: mended")
    functions.killers = ()
    assert (functions.invoke().machines, functions.open()) == ([killer], set())


def test_an_outage_of_the_functions_quarantines_no_machine(functions: Functions) -> None:
    """A broken deployment kills every function, with any machine; nor is one proved the cause when others end later."""
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
    one, two = two_ticks(fleet, clock)
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
