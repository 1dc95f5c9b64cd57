from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from queue import SimpleQueue
from typing import Any
from uuid import UUID

import pytest
from shepherd_core import telemetry
from shepherd_core.bmdb.machines import lookup, pauses
from shepherd_core.bmdb.session import Session
from shepherd_core.bmdb.work import history
from shepherd_core.bmdb.work.ticks import last_ticks
from shepherd_core.bmdb.work.work import AgentStarted, Work, finish_agent_start
from shepherd_core.domain.backoff import Backoff
from shepherd_core.domain.clock import MARGIN_SECONDS, Clock, Deadline, SystemClock
from shepherd_core.domain.errors import ConfigError, NoLongerDue, ShepherdError, TimeLimitExceeded
from shepherd_core.domain.errors.bmdb import BmdbUnavailable, SessionExpired
from shepherd_core.domain.errors.machine import SshRefused
from shepherd_core.domain.errors.provider import ProviderUnavailable
from shepherd_core.domain.machine import Process
from shepherd_core.loops.base import Admission, Closing, Loop, Task
from shepherd_core.loops.dry_run import dry_run
from shepherd_core.loops.runner import RunLimits
from shepherd_core.telemetry import Metric

from tests.conftest import ManualClock, log_lines
from tests.support.bmdb.breaking_connection import BreakingConnection
from tests.support.bmdb.fleet import PROVIDER, Fleet, claimed, invoke
from tests.support.waiting import WAIT_SECONDS

ENDED = (Metric.FINISHED, Metric.FAILED, Metric.CANCELED)


class FakeLoop(Loop[None]):
    """A loop whose work is what a test says; what comes of it is recorded as the start of an agent."""

    name = "fake"
    process = Process.AGENT_START
    backoff = Backoff(60, 3600, 1.2)

    def __init__(
        self,
        run_task: Callable[[Task], object] = lambda _: None,
        *,
        prepare: Callable[[Deadline], object] = lambda _: None,
        finish: Callable[[list[UUID]], object] = lambda _: None,
    ) -> None:
        """*run_task* is the work on one machine; *finish* hears what is committed together, just before."""
        self.tasks: list[Task] = []
        self.most_at_once = 0
        self.admitted = 0
        self._run_task = run_task
        self._prepare = prepare
        self._finish = finish
        self._working: set[UUID] = set()
        self._lock = threading.Lock()

    @property
    def machines(self) -> list[UUID]:
        return [task.work.machine_id for task in self.tasks]

    def admit(self, session: Session, provider: str) -> Admission:
        self.admitted += 1
        return super().admit(session, provider)

    def prepare(self, deadline: Deadline) -> None:
        self._prepare(deadline)

    def work_on(self, task: Task) -> None:
        machine_id = task.work.machine_id
        with self._lock:
            assert machine_id not in self._working, "two work on one machine"
            self._working.add(machine_id)
            self.tasks.append(task)
            self.most_at_once = max(self.most_at_once, len(self._working))
        try:
            self._run_task(task)
        finally:
            with self._lock:
                self._working.remove(machine_id)

    def finish(self, session: Session, done: Mapping[Work, None]) -> set[UUID]:
        self._finish([work.machine_id for work in done])
        return finish_agent_start(session, dict.fromkeys(done, AgentStarted(bytes(32), None)))


class Runner:
    def __init__(self, fleet: Fleet, clock: ManualClock) -> None:
        self.fleet = fleet
        self.clock = clock

    def __call__(
        self,
        loop: FakeLoop,
        *,
        seconds: float = 600,
        concurrency: int = 10,
        machine_seconds: float = 60,
        session_seconds: float = 60,
        clock: Clock | None = None,
    ) -> dict[Metric, float]:
        limits = RunLimits(concurrency, machine_seconds, session_seconds)
        return invoke(loop, self.fleet.connection, clock or self.clock, limits, seconds=seconds)

    def due(self) -> list[list[Any]]:
        return self.fleet.sql("SELECT machine_id, process, due_at FROM machine_eligibility WHERE ready ORDER BY 1, 2")


@pytest.fixture
def run(fleet: Fleet, clock: ManualClock) -> Runner:
    return Runner(fleet, clock)


@pytest.fixture
def hang() -> Iterator[Callable[[], None]]:
    over = threading.Event()

    def wait() -> None:
        over.wait(WAIT_SECONDS)

    yield wait
    over.set()


def kill_sessions(fleet: Fleet) -> None:
    fleet.sql("UPDATE sessions SET deadline = clock_timestamp() - interval '1 second'")


def raises(error: Exception) -> Callable[[Task], None]:
    def run_task(_: Task) -> None:
        raise error

    return run_task


def test_everything_that_is_due_is_worked_on_and_counted(fleet: Fleet, run: Runner) -> None:
    """One invocation claims again and again, ends each work once, and records what it returns as its tick."""
    machines = [fleet.provided_machine() for _ in range(12)]
    errors = dict(zip(machines, 4 * (None, SshRefused(), ValueError("a bug")), strict=True))

    def run_task(task: Task) -> None:
        if error := errors[task.work.machine_id]:
            raise error

    telemetry.bind(settings="5e771465", code="c0de")
    loop = FakeLoop(run_task)
    counts = run(loop, concurrency=5)
    telemetry.unbind()
    assert counts == {
        Metric.CLAIMED: 12,
        Metric.FINISHED: 4,
        Metric.FAILED: 8,
        Metric.CANCELED: 0,
        Metric.BACKLOG: 0,
        Metric.OLDEST_DUE_AGE: 0,
        Metric.INCOMPLETE: 0,
    }
    assert sorted(loop.machines) == sorted(machines)
    for machine, error in errors.items():
        assert fleet.events(machine) == ["Started", "Failed" if error else "Finished"]
    assert fleet.sql("SELECT count(*) FROM sessions") == [[0]]
    (found,) = last_ticks(fleet.connection)
    assert found.counts == {metric.value: count for metric, count in counts.items()}
    assert (found.loop, found.provider, found.outcome) == ("fake", PROVIDER, "Succeeded")
    assert (found.settings_hash, found.code_version, found.runtime_info) == ("5e771465", "c0de", "a test")


def test_the_concurrency_limits_the_machines_in_work(fleet: Fleet, run: Runner) -> None:
    for _ in range(9):
        fleet.provided_machine()
    together = threading.Barrier(3)
    loop = FakeLoop(lambda _: together.wait(WAIT_SECONDS))
    assert run(loop, concurrency=3)[Metric.FINISHED] == 9
    assert loop.most_at_once == 3


def test_no_machine_is_begun_without_the_time_for_it(fleet: Fleet, run: Runner, clock: ManualClock) -> None:
    """Lambda kills without asking. How much is still due, and for how long, says whether there are enough workers."""
    for _ in range(3):
        fleet.provided_machine()
    fleet.pass_time(100)

    def run_task(_: Task) -> None:
        clock.now += 50

    counts = run(FakeLoop(run_task), concurrency=1, seconds=120)
    assert (counts[Metric.CLAIMED], counts[Metric.FINISHED]) == (2, 2)
    assert (counts[Metric.BACKLOG], counts[Metric.INCOMPLETE]) == (1, 1)
    assert 150 <= counts[Metric.OLDEST_DUE_AGE] < 150 + WAIT_SECONDS  # as of the last reading, and 50 s since


@pytest.mark.parametrize(
    ("error", "recorded", "logged"),
    [
        (SshRefused("nobody at home"), ("ssh-refused", "unreached", "nobody at home"), "WARNING"),
        (ValueError("a bug"), ("unexpected", "machine", "ValueError: a bug"), "ERROR"),
        (ShepherdError("NUL \0 and \ud800"), ("unexpected", "machine", "NUL ? and ?"), "WARNING"),
        (ShepherdError("x" * 1_000_000), ("unexpected", "machine", "x" * 1000), "WARNING"),
    ],
    ids=["expected", "a bug", "what the database cannot hold", "too long"],
)
def test_a_failure_is_kept_with_its_cause(
    fleet: Fleet,
    run: Runner,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    recorded: tuple[str, ...],
    logged: str,
) -> None:
    machine, sound = fleet.provided_machine(), fleet.provided_machine()

    def run_task(task: Task) -> None:
        if task.work.machine_id == machine:
            raise error

    assert run(FakeLoop(run_task))[Metric.FAILED] == 1
    assert fleet.facts(sound) == {"agent_started"}
    last = history.read_history(fleet.connection, machine)[0]
    assert (last.kind, last.fault, last.failed_cause) == recorded
    (line,) = log_lines(capsys)
    assert (line["level"], line["machine_id"], line["retry_in_seconds"]) == (logged, str(machine), 60)
    assert ("in run_task" in line.get("exception", "")) is (logged == "ERROR")


@pytest.mark.parametrize("error", [None, SshRefused()])
def test_a_result_after_the_time_limit_counts_for_nothing(
    fleet: Fleet, run: Runner, clock: ManualClock, capsys: pytest.CaptureFixture[str], error: Exception | None
) -> None:
    """The work was given up and may be another's by now; a work that ends twice would be counted twice."""
    stuck, _ = fleet.provided_machine(), fleet.provided_machine()
    other_began = threading.Event()
    threads: list[threading.Thread] = []

    def run_task(task: Task) -> None:
        if task.work.machine_id == stuck:
            threads.append(threading.current_thread())
            clock.now += 60 + MARGIN_SECONDS
            assert other_began.wait(WAIT_SECONDS)
            if error is not None:
                raise error
        else:
            other_began.set()
            threads[0].join(WAIT_SECONDS)

    counts = run(FakeLoop(run_task), concurrency=1)
    assert (counts[Metric.FINISHED], counts[Metric.FAILED]) == (1, 1)
    assert fleet.events(stuck) == ["Started", "Failed"]
    cause = history.read_history(fleet.connection, stuck)[0].failed_cause
    assert cause == "the work did not end within machine_seconds, 60"
    assert fleet.facts(stuck) == set()
    assert [line["message"] for line in log_lines(capsys)] == ["work failed"]


def test_an_invocation_that_could_never_finish_a_machine_is_refused(fleet: Fleet, run: Runner) -> None:
    """A timeout that is too short for its settings would look like a fleet without work."""
    fleet.provided_machine()
    loop = FakeLoop()
    with pytest.raises(ConfigError, match="64 s left, but work on one machine may take 65 s"):
        run(loop, seconds=64, machine_seconds=60)
    assert loop.tasks == []


@pytest.mark.parametrize(
    ("slow", "error"),
    [("work", None), ("prepare", None), ("prepare", ProviderUnavailable("no agent")), ("prepare", ValueError("a bug"))],
)
def test_work_without_time_or_preparation_is_canceled_and_stays_due(
    fleet: Fleet, run: Runner, clock: ManualClock, hang: Callable[[], None], slow: str, error: Exception | None
) -> None:
    """With a mistyped bucket name, the whole fleet would back off and take hours to come back."""
    machine = fleet.provided_machine()
    fleet.pass_time(100)
    due = run.due()

    def take_too_long(_: object) -> None:
        clock.now += 10_000 if slow == "work" else 550
        if error:
            raise error
        if slow == "work":
            hang()

    loop = FakeLoop(take_too_long) if slow == "work" else FakeLoop(prepare=take_too_long)
    with pytest.raises(type(error), match=str(error)) if error else nullcontext():
        counts = run(loop)
        wanted = (Metric.CLAIMED, *ENDED, Metric.BACKLOG, Metric.INCOMPLETE)
        assert [counts[metric] for metric in wanted] == [1, 0, 0, 1, 1, 1]
    assert fleet.events(machine) == ["Started", "Canceled"]
    assert lookup.show_machine(fleet.connection, machine).backoffs == []
    assert run.due() == due
    assert fleet.sql("SELECT count(*) FROM sessions") == [[0]]
    assert len(loop.tasks) == (slow == "work")
    for task in loop.tasks:
        with pytest.raises((TimeLimitExceeded, SessionExpired)):
            task.deadline.check()


@pytest.mark.parametrize("slow", ["prepare", "run_task"])
def test_the_session_is_kept_alive_however_long_the_work_takes(fleet: Fleet, run: Runner, slow: str) -> None:
    """A session is much shorter than work may take, so that a killed worker's machines are soon due again."""
    fleet.provided_machine()

    def outlive(_: object) -> None:
        fleet.wait_until("(SELECT deadline > created_at + interval '5.1 seconds' FROM sessions)")

    loop = FakeLoop(prepare=outlive) if slow == "prepare" else FakeLoop(outlive)
    assert run(loop, session_seconds=4.5, clock=SystemClock())[Metric.FINISHED] == 1


def test_the_fleet_is_read_again_after_half_a_minute(fleet: Fleet, run: Runner, clock: ManualClock) -> None:
    """What has become due by then does not wait for the next invocation; but no claim has a reading of its own."""
    for machines, admitted in ((3, 1), (4, 2)):
        wanted = {fleet.provided_machine() for _ in range(machines)}
        added: set[UUID] = set()

        def run_task(_: Task, added: set[UUID] = added) -> None:
            clock.now += 10
            if not added:
                added.add(fleet.provided_machine())

        loop = FakeLoop(run_task)
        run(loop, concurrency=1)
        assert loop.admitted == admitted
        assert set(loop.machines) == (wanted if admitted == 1 else wanted | added)
        run(FakeLoop())


@pytest.mark.parametrize("concurrency", [1, 10])
@pytest.mark.parametrize("error", [None, SshRefused()])
def test_nothing_is_committed_when_the_session_was_lost(
    fleet: Fleet, run: Runner, error: Exception | None, concurrency: int
) -> None:
    """Another session may have the machine by now, and the caller must learn that the invocation failed."""
    machine = fleet.provided_machine()

    def run_task(_: Task) -> None:
        kill_sessions(fleet)
        if error is not None:
            raise error

    with pytest.raises(SessionExpired):
        run(FakeLoop(run_task), concurrency=concurrency)
    assert not {"Finished", "Failed"} & set(fleet.events(machine))
    assert fleet.facts(machine) == set()
    assert lookup.show_machine(fleet.connection, machine).backoffs == []


def test_when_the_runner_fails_no_effect_may_begin_any_more(
    fleet: Fleet, run: Runner, hang: Callable[[], None]
) -> None:
    """The machines are given back at once, so another may work on them while a thread of ours still runs."""
    machines = [fleet.provided_machine() for _ in range(2)]

    def run_task(task: Task) -> None:
        if task.work.machine_id == machines[1]:
            hang()

    def finish(_: list[UUID]) -> None:
        raise RuntimeError("a bug")

    loop = FakeLoop(run_task, finish=finish)
    with pytest.raises(RuntimeError):
        run(loop)
    assert all(fleet.events(machine) == ["Started", "Canceled"] for machine in machines)
    for task in loop.tasks:
        with pytest.raises(SessionExpired):
            task.deadline.check()


def test_a_dry_run_changes_nothing_and_returns_the_next_claim(fleet: Fleet, run: Runner, clock: ManualClock) -> None:
    """It claims, and undoes that; so it cannot differ from what would happen."""
    for _ in range(5):
        fleet.provided_machine()
    dead = fleet.open_session()
    (held,) = claimed(dead, FakeLoop.process, 1)
    run(FakeLoop(raises(SshRefused())))
    pauses.pause(fleet.connection, owner="me", reason="a test", machine_id=fleet.provided_machine())
    fleet.expire(dead)
    fleet.open_session()
    fleet.pass_time(61)

    limits = RunLimits(10, 60, 60)
    before = fleet.content()
    planned = dry_run(FakeLoop(), PROVIDER, fleet.connection, clock, limits).work
    assert fleet.content() == before
    loop = FakeLoop()
    run(loop)
    assert loop.machines[-1] == held.machine_id, "its function died: it comes last, alone"
    assert len(planned) == 4
    assert set(planned) == {task.work for task in loop.tasks[:-1]}
    before = fleet.content()
    assert dry_run(FakeLoop(), PROVIDER, fleet.connection, clock, limits).work == [], "there is one that is paused"
    assert fleet.content() == before


class AnsweringLoop(FakeLoop):
    """A loop whose work asks; *reasons* says who is refused."""

    metrics = (Metric.NOT_TAKEN,)

    def __init__(self, run_task: Callable[[Task], object]) -> None:
        super().__init__(run_task)
        self.reasons: dict[UUID, NoLongerDue] = {}
        self.asked: list[set[UUID]] = []
        self.answering: Callable[[], object] = lambda: None

    def answer(self, _: Session, asked: Mapping[Work, str]) -> Mapping[Work, NoLongerDue | None]:
        assert set(asked.values()) == {"may I?"}
        self.asked.append({work.machine_id for work in asked})
        self.answering()
        return {work: self.reasons.get(work.machine_id) for work in asked}

    def counted_as(self, _: object) -> tuple[Metric, ...]:
        return Metric.FINISHED, Metric.NOT_TAKEN


def test_machines_that_wait_for_an_answer_together_get_it_together(fleet: Fleet, run: Runner) -> None:
    machines = [fleet.provided_machine() for _ in range(6)]
    together = threading.Barrier(6)

    def run_task(task: Task) -> None:
        together.wait(WAIT_SECONDS)
        task.ask("may I?")

    loop = AnsweringLoop(run_task)
    loop.reasons = {machine: NoLongerDue("it is back", recovered=True) for machine in machines[:2]}
    counts = run(loop)
    assert set().union(*loop.asked) == set(machines)
    assert sum(len(asked) for asked in loop.asked) == 6
    assert (counts[Metric.NOT_TAKEN], counts[Metric.FINISHED], counts[Metric.FAILED]) == (4, 4, 2)
    assert Metric.NOT_TAKEN not in run(FakeLoop())


def asking(refusals: SimpleQueue[BaseException], before: Callable[[], object]) -> Callable[[Task], None]:
    """Return work that asks, and leaves the refusal."""

    def run_task(task: Task) -> None:
        before()
        try:
            task.ask("may I?")
        except ShepherdError as refusal:
            refusals.put(refusal)
            raise

    return run_task


@pytest.mark.parametrize("error", [SessionExpired(), BmdbUnavailable("gone")])
def test_an_expired_session_ends_the_wait_for_an_answer(fleet: Fleet, run: Runner, error: Exception) -> None:
    """Such a thread would occupy a request slot at the provider in the next invocation."""
    fleet.provided_machine()
    ended: SimpleQueue[BaseException] = SimpleQueue()
    loop = AnsweringLoop(asking(ended, lambda: None))
    loop.answering = lambda: raises(error)(None)  # type: ignore[arg-type]  # it does not look at it
    with pytest.raises(type(error)):
        run(loop)
    assert isinstance(ended.get(timeout=WAIT_SECONDS), SessionExpired)


def test_an_abandoned_worker_may_not_interrupt_its_machine(fleet: Fleet, run: Runner, clock: ManualClock) -> None:
    fleet.provided_machine()
    late: SimpleQueue[BaseException] = SimpleQueue()
    given_up = threading.Event()

    def outlive() -> None:
        clock.now += 100  # its time is over
        assert given_up.wait(WAIT_SECONDS)

    loop = AnsweringLoop(asking(late, outlive))
    assert run(loop, machine_seconds=60, session_seconds=600)[Metric.FAILED] == 1
    given_up.set()
    assert isinstance(late.get(timeout=WAIT_SECONDS), (SessionExpired, TimeLimitExceeded))
    assert loop.asked == []


def test_a_session_that_stays_open_hides_no_error(fleet: Fleet) -> None:
    with BreakingConnection(fleet.settings) as way:
        session = fleet.open_session(connection=fleet.connect(way.settings))
    with pytest.raises(ValueError, match="first"), Closing(session, dict):
        raise ValueError("first")
    with pytest.raises(BmdbUnavailable), Closing(session, dict):
        pass
