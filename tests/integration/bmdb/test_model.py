"""
Sessions and work compared with a model, over random histories.

Hypothesis chooses what functions, agents, operators and time do, and at which
moment of a statement. After every step the BMDB must look like the model, and
claims must return what the model's would. An assertion that fails begins with
the name of the broken promise.

    pytest tests/integration/bmdb/test_model.py --hypothesis-profile=long --hypothesis-seed=1
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal
from uuid import UUID

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from shepherd_core.bmdb.machines import pauses
from shepherd_core.bmdb.recovery import budget, remediation
from shepherd_core.bmdb.session import Session
from shepherd_core.bmdb.work import work
from shepherd_core.domain.backoff import Backoff
from shepherd_core.domain.budget import WHOLE_PROVIDER, Budget
from shepherd_core.domain.errors import HeldBack, NoLongerDue
from shepherd_core.domain.errors.bmdb import CommitUnknown, SessionExpired, WorkConflict
from shepherd_core.domain.errors.machine import SshRefused
from shepherd_core.domain.machine import Process, WorkEvent
from shepherd_core.rules.budget import BudgetLimits, permitted

from tests.conftest import ManualClock
from tests.integration.bmdb.model import (
    LOCATION_STEPS,
    LOOPS,
    PROVIDER_STEPS,
    STEPS_IN_SIX_HOURS,
    TIMEOUTS,
    UNIT,
    Model,
    Pause,
)
from tests.support.agents.heartbeats import record_heartbeat
from tests.support.bmdb.breaking_connection import BreakingConnection, Lost
from tests.support.bmdb.fleet import PROVIDER, Fleet, claimed, ids
from tests.support.bmdb.work_ends import STEP, attempt, finish_recovery
from tests.support.waiting import WAIT_SECONDS, eventually

MACHINES = 3
FUNCTIONS = 2
HERE = "rack 1"

SESSION_SECONDS = 20 * UNIT
SETTLE_SECONDS = 2 * UNIT
WAIT_FOR_BUDGET = UNIT
HOURLY, OFTEN = 3600, 60
"""Intervals at which agents report: of the first, the timeout follows; of the second, it is that of the policy."""
BACKOFF = Backoff(UNIT, 10 * UNIT, 2)
BUDGETS = {HERE: Budget(LOCATION_STEPS), WHOLE_PROVIDER: Budget(PROVIDER_STEPS)}
LIMITS = BudgetLimits(per_hour=STEPS_IN_SIX_HOURS // 2, dead_share=1)

_CONNECTIONS = "FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'shepherd'"

_EVENTS = {
    "fail": WorkEvent.FAILED,
    "cancel": WorkEvent.CANCELED,
    "hold back": WorkEvent.CANCELED,
    "spare": WorkEvent.RECOVERED,
}
"""The event that each way of ending work leaves in the history; otherwise it is finished."""

Moment = Literal["before", "between", "after", "request lost", "answer lost", "late commit", "old transaction"]
LOST: dict[str, Lost] = {"request lost": "request", "answer lost": "answer", "late commit": "late"}
Event = Literal["death", "pause", "heartbeats", "hourly", "often", "failover", "clock"]


@dataclass
class Function:
    """A running function: its session, the session's number in the model, and a clock that jumps."""

    session: Session
    number: int
    clock: ManualClock
    driver: Any = None
    """Its connection when it began its last step; None: it had to open one."""

    def broke(self) -> bool:
        return self.driver not in (None, self.session.connection._driver)


class Bmdb(RuleBasedStateMachine):
    """The possible steps, each carried out on the BMDB and on the model."""

    def __init__(self, fleet: Fleet, way: BreakingConnection) -> None:
        super().__init__()
        fleet.disconnect()
        fleet.empty()
        self.fleet = fleet
        self.way = way
        """To the database, for functions."""
        self.model = Model()
        self.machines: list[UUID] = []
        self.numbers: dict[UUID, int] = {}
        """The sessions."""
        self.functions: list[Function] = []
        self.handed_out: list[tuple[Function, work.Work]] = []
        """Whatever was handed out to a function, also what it has ended or lost since."""
        self.by_name: list[work.Work] = []
        """What operators began; they give up no machine."""
        self.pauses: list[tuple[UUID, Pause]] = []
        self.fleet.timeouts = TIMEOUTS
        self.appear(None)
        for _ in range(FUNCTIONS):
            self.functions.append(self._function())

    # Functions.

    @rule(at=st.integers(0, FUNCTIONS - 1), close=st.booleans())
    def invoke(self, at: int, close: bool) -> None:
        if close:
            function = self.functions[at]
            function.session.close()
            self.model.close(function.number)
        self._replace(at)

    def _replace(self, at: int) -> None:
        """Begin another function; the server has no room for the connections of all that there ever were."""
        self.functions[at].session.connection.close()
        self.functions[at] = self._function()

    def _function(self) -> Function:
        clock = ManualClock()
        connection = self.fleet.connect(self.way.settings)
        session = Session.open(connection, clock, "test", "a test", SESSION_SECONDS, (PROVIDER, TIMEOUTS))
        number = self.model.open(SESSION_SECONDS)
        self.numbers[session.session_id] = number
        return Function(session, number, clock)

    @rule(
        at=st.integers(0, FUNCTIONS - 1),
        units=st.sampled_from([1, 2, 5, 10, 20, 30]),
        event=st.sampled_from([None, None, "death", "heartbeats", "hourly", "often", "failover", "clock"]),
    )
    def wait(self, at: int, units: int, event: Event | None) -> None:
        self.pass_time(units)
        if event is not None:
            self._happen(self.functions[at], event)

    # Each of these is one statement, or locks first, so what happens in the middle of it has happened before it.

    moments = st.sampled_from([None] * 9 + ["between", "after", *LOST, "old transaction"])
    own_moments = st.sampled_from([None] * 6 + ["between", "after", *LOST])
    events = st.sampled_from(["death", "pause", "heartbeats", "hourly", "often", "failover"])

    def _both(
        self,
        function: Function,
        real: Callable[[], Any],
        modelled: Callable[[], Any],
        moment: Moment | None,
        event: Event,
        *,
        transaction: bool = False,
    ) -> tuple[Any, Any]:
        """Return the result of a step with an event in it, and the expected one; a *transaction* loses its commit."""
        happening = partial(self._happen, function, event)
        if moment is not None:
            self._connect(function)  # nothing is promised if two connections break in a row
        function.driver = function.session.connection._driver
        if moment == "old transaction":
            connection = function.session.connection

            def unit() -> Any:
                connection.run("now")
                self._happen(function, "death")
                return real()

            return _outcome(lambda: connection.transact(unit)), _outcome(modelled)
        if moment is None:
            return _outcome(real), _outcome(modelled)
        if moment in LOST:
            self.way.lose(LOST[moment], commit=transaction)
            seen = _outcome(real)
            self.way.let_go()  # a late commit: when the function waits for it, or continues
            wanted = _outcome(modelled)
            if transaction or moment == "late commit":
                happening()
            return seen, wanted
        self.way.before(2 if moment == "after" else 1, happening)
        seen = _outcome(real)
        wanted = _outcome(modelled)
        if self.way.armed:  # there was one statement only, and it is over
            self.way.let_go()
            happening()
        return seen, wanted

    def _connect(self, function: Function) -> None:
        """Connect anew if need be, and ask for what the session may have lost: what breaks now is the step itself."""
        try:
            function.session.connection.run("now")
        except CommitUnknown:
            function.session.connection.run("now")
        function.session.run("fence_session")

    def _happen(self, function: Function, event: Event) -> None:
        match event:
            case "death":
                if self.model.alive(function.number):
                    self.fleet.expire(function.session)
                    # In this moment, which is later than the start of any transaction.
                    self.fleet.sql(
                        "UPDATE sessions SET deadline = clock_timestamp() WHERE session_id = :id",
                        id=function.session.session_id,
                    )
                    self.model.expire(function.number)
            case "pause":
                self.pause(None, None, 5)
            case "heartbeats":
                for machine in range(len(self.machines)):
                    self.heartbeat(machine)
            case "hourly" | "often":
                for machine in range(len(self.machines)):
                    self.heartbeat(machine, HOURLY if event == "hourly" else OFTEN)
            case "failover":
                self.fail_over()
            case "clock":  # the database has its own time, so this must have no effect
                function.clock.now += 3600 * (-1) ** len(self.handed_out)

    @rule(at=st.integers(0, FUNCTIONS - 1), moment=moments, event=events)
    def renew(self, at: int, moment: Moment | None, event: Event) -> None:
        function = self.functions[at]
        seen, wanted = self._both(
            function, function.session.renew, lambda: self.model.renew(function.number), moment, event
        )
        assert seen == wanted, "an_expired_session_commits_nothing"

    @rule(
        at=st.integers(0, FUNCTIONS - 1),
        process=st.sampled_from(LOOPS),
        limit=st.integers(1, MACHINES),
        moment=moments,
        event=events,
    )
    def claim(self, at: int, process: Process, limit: int, moment: Moment | None, event: Event) -> None:
        function = self.functions[at]
        found: list[work.Work] = []

        def real() -> None:
            found.extend(claimed(function.session, process, limit))

        def modelled() -> None:
            numbers = {self.machines.index(held.machine_id) for held in found}
            assert len(numbers) == len(found) <= limit, "no_machine_has_two_live_works"
            if not found:
                return  # what was read as ready may not be so any more, and an empty claim asks nothing
            if not self.model.alive(function.number):
                raise AssertionError("an_expired_session_commits_nothing")
            for held in found:
                number = self.machines.index(held.machine_id)
                broken = self.model.obstacle(number, process)
                assert broken is None, broken
                assert held.deaths == self.model.machines[number].deaths[process], "deaths_in_a_row_are_counted"
                _, seconds = self.model.machines[number].backoffs.get(process, (0, None))
                assert held.last_interval_seconds == seconds, "backoff_and_boot_wait_are_observed"
            self.model.claim(function.number, process, numbers)

        seen, wanted = self._both(function, real, modelled, moment, event)
        if found:
            assert seen == wanted, "an_expired_session_commits_nothing"
        self.handed_out += [(function, held) for held in found]

    @rule(
        at=st.integers(0, FUNCTIONS - 1),
        process=st.sampled_from(LOOPS),
        units=st.sampled_from([0, 0, 10, 30]),
        how=st.sampled_from([None, "do it", "do it", "fail", "give up"]),
        moment=moments,
        event=events,
    )
    def tick(
        self, *, at: int, process: Process, units: int, how: str | None, moment: Moment | None, event: Event
    ) -> None:
        """Carry out a whole invocation of a loop, which may be late, and may be killed in the middle."""
        self.pass_time(units)
        self._replace(at)
        self.claim(at, process, MACHINES, None, event)
        if self.handed_out and how is not None:
            if self.handed_out[-1][1].process is Process.RECOVERY:
                self.permit(0, True, None, event)
            self.end(0, True, how, moment, event)

    @rule(at=st.integers(0, FUNCTIONS - 1), machine=st.integers(0, MACHINES - 1))
    def access(self, at: int, machine: int) -> None:
        function, machine = self.functions[at], machine % len(self.machines)
        found: list[work.Work] = []
        try:
            seen = _outcome(lambda: found.append(work.start_work(function.session, self.machines[machine], "?")))
        except CommitUnknown:
            return  # the connection was broken, and this statement is not repeated
        wanted = _outcome(lambda: self.model.start(function.number, machine))
        assert seen == wanted, "no_machine_has_two_live_works"
        self.by_name += found
        self.handed_out += [(function, held) for held in found]

    @precondition(lambda self: self.handed_out)
    @rule(
        which=st.integers(0, 7),
        batch=st.booleans(),
        how=st.sampled_from(["do it", "do it", "fail", "cancel", "spare", "hold back", "give up"]),
        moment=moments,
        event=events,
    )
    def end(self, which: int, batch: bool, how: str, moment: Moment | None, event: Event) -> None:
        function, works = self._chosen(self.handed_out, which, batch)
        process = next(iter(works.values())).process
        if process is Process.RECOVERY and how == "do it":  # only what was permitted is done
            taken = {each: held for each, held in works.items() if self._attempted(function, held)}
            works, how = taken or works, "do it" if taken else "hold back"
        if how in ("spare", "hold back", "give up") and process is not Process.RECOVERY:
            how = "cancel"
        if how == "give up" and self._of_operators(works):
            how = "cancel"
        wanted_event = _EVENTS.get(how, WorkEvent.FINISHED)

        def modelled() -> set[UUID]:
            ended = {
                machine_id
                for machine_id, held in works.items()
                if self._end_in_model(function, held, how, self.machines.index(machine_id))
            }
            if function.broke():  # then the history was asked, which knows of earlier ends too
                ended |= {
                    machine_id
                    for machine_id in works
                    if self.model.ended_last(function.number, process, self.machines.index(machine_id), wanted_event)
                }
            return ended

        seen, wanted = self._both(
            function, lambda: _end(function.session, list(works.values()), how), modelled, moment, event
        )
        if seen != wanted:
            alive = self.model.alive(function.number)
            promise = "every_started_work_ends_once" if alive else "an_expired_session_commits_nothing"
            raise AssertionError(f"{promise}: {seen}, not {wanted}")

    def _end_in_model(self, function: Function, held: work.Work, how: str, machine: int) -> bool:
        session, process = function.number, held.process
        model = self.model
        ways = {
            "fail": lambda: model.fail(session, process, machine, BACKOFF.next(held.last_interval_seconds)),
            "cancel": lambda: model.end(session, process, machine, WorkEvent.CANCELED),
            "spare": lambda: model.undone(session, process, machine, WorkEvent.RECOVERED),
            "hold back": lambda: model.hold_back(session, machine, WAIT_FOR_BUDGET),
            "give up": lambda: model.quarantine(session, machine),
            "do it": lambda: model.recovered(session, machine, SETTLE_SECONDS),
        }
        if how == "do it" and process is Process.AGENT_START:
            return model.agent_started(session, machine)
        return ways[how]()

    @precondition(lambda self: self._recoveries())
    @rule(which=st.integers(0, 7), moment=moments, event=events)
    def interrupt(self, which: int, moment: Moment | None, event: Event) -> None:
        """Check just before an interruption whether it may happen; the work may have been ended before, or lost."""
        handed_out = self._recoveries()
        function, held = handed_out[-1 - which % len(handed_out)]
        machine = self.machines.index(held.machine_id)
        seen, wanted = self._both(
            function,
            lambda: not remediation.no_longer_due(function.session, PROVIDER, [held]),
            lambda: self.model.may_interrupt(function.number, machine),
            moment,
            event,
        )
        assert seen == wanted, f"no_healthy_machine_is_rebooted: {seen}, not {wanted}"

    @precondition(lambda self: self._recoveries())
    @rule(which=st.integers(0, 7), batch=st.booleans(), moment=own_moments, event=events)
    def permit(self, which: int, batch: bool, moment: Moment | None, event: Event) -> None:
        """Ask for steps, as the budget allows; those of operators are only recorded, and count."""
        function, works = self._chosen(self._recoveries(), which, batch)
        seen, wanted = self._both(
            function,
            lambda: self._permitted(function, works),
            lambda: self._permitted_in_model(function, works),
            moment,
            event,
            transaction=not self._of_operators(works),
        )
        assert seen == wanted, f"no_more_machines_are_interrupted_than_the_budget_permits: {seen}, not {wanted}"

    @precondition(lambda self: len({function.number for function, _ in self._recoveries()}) > 1)
    @rule(which=st.integers(0, 7), before=st.integers(1, 3))
    def permit_beside(self, which: int, before: int) -> None:
        """Let two functions ask at once; the second begins before that statement of the first."""
        first, works = self._chosen(self._recoveries(), which, batch=True)
        others = [each for each in self._recoveries() if each[0].number != first.number]
        second, others_works = self._chosen(others, 0, batch=True)
        for function in (first, second):
            self._connect(function)
        both = ((first, works), (second, others_works))
        seen, in_order = self._at_once([partial(_outcome, partial(self._permitted, *each)) for each in both], before)
        for number in in_order:
            wanted = _outcome(partial(self._permitted_in_model, *both[number]))
            promise = "no_more_machines_are_interrupted_than_the_budget_permits"
            assert seen[number] == wanted, f"{promise}: {seen[number]}, not {wanted}"

    def _recoveries(self) -> list[tuple[Function, work.Work]]:
        return [(holder, held) for holder, held in self.handed_out if held.process is Process.RECOVERY]

    def _chosen(
        self, handed_out: list[tuple[Function, work.Work]], which: int, batch: bool
    ) -> tuple[Function, dict[UUID, work.Work]]:
        """Return one work of these, the last first, or in a batch all for its process, and its function."""
        function, first = handed_out[-1 - which % len(handed_out)]
        works = {first.machine_id: first}
        if batch:
            works |= {
                held.machine_id: held
                for holder, held in handed_out
                if holder is function and held.process is first.process
            }
        return function, works

    def _of_operators(self, works: dict[UUID, work.Work]) -> bool:
        return any(held is each for held in works.values() for each in self.by_name)

    def _attempted(self, function: Function, held: work.Work) -> bool:
        return held.process is Process.RECOVERY and self.model.attempted(
            function.number, self.machines.index(held.machine_id)
        )

    def _permitted(self, function: Function, works: dict[UUID, work.Work]) -> set[UUID]:
        if self._of_operators(works):
            found = attempt(function.session, works.values())
        else:
            asked = {
                machine_id: self.model.machines[self.machines.index(machine_id)].location or WHOLE_PROVIDER
                for machine_id in works
            }
            moves = dict.fromkeys(works.values(), STEP)
            found = remediation.permit_attempts(
                function.session, PROVIDER, moves, lambda steps: permitted(asked, BUDGETS, steps, LIMITS)
            )
        return set(ids(found))

    def _permitted_in_model(self, function: Function, works: dict[UUID, work.Work]) -> set[UUID]:
        numbers = [self.machines.index(machine_id) for machine_id in works]
        if self._of_operators(works):
            found = {number for number in numbers if self.model.step(function.number, number)}
        else:
            found = self.model.permit(function.number, numbers)
        return {self.machines[number] for number in found}

    @rule(
        at=st.integers(0, FUNCTIONS - 1),
        moment=st.sampled_from([None] * 4 + ["between", "request lost", "answer lost"]),
        event=events,
    )
    def read(self, at: int, moment: Moment | None, event: Event) -> None:
        """Read the fleet as the Recoverer does: its candidates, and the steps that count."""
        function = self.functions[at]

        def real() -> tuple[set[int], dict[str, tuple[int, int]]]:
            found = budget.read_fleet(function.session, PROVIDER)
            return (
                {self.machines.index(each.machine_id) for location in found for each in location.candidates},
                {str(at.location): (at.steps, at.steps_six_hours) for at in found if at.steps or at.steps_six_hours},
            )

        def modelled() -> tuple[set[int], dict[str, tuple[int, int]]]:
            self.model.require(function.number)
            return self.model.claimable(Process.RECOVERY), self.model.steps()

        seen, wanted = self._both(function, real, modelled, moment, event)
        assert seen == wanted, f"no_machine_waits_without_end: {seen}, not {wanted}"

    # Other events.

    @precondition(lambda self: len(self.machines) < MACHINES)
    @rule(location=st.sampled_from([None, HERE]))
    def appear(self, location: str | None) -> None:
        self.machines.append(self.fleet.locate(self.fleet.provided_machine(), location))
        self.model.appear(location)

    def heartbeat(self, machine: int, interval: int | None = None) -> None:
        machine %= len(self.machines)
        record_heartbeat(self.fleet.connection, self.machines[machine])
        if interval is not None:
            self.fleet.tell_interval(self.machines[machine], interval)
        self.model.heartbeat(machine, interval)

    @rule(
        machine=st.none() | st.integers(0, MACHINES - 1),
        process=st.none() | st.sampled_from(LOOPS),
        units=st.sampled_from([None, 5, 20]),
    )
    def pause(self, machine: int | None, process: Process | None, units: int | None) -> None:
        seconds = None if units is None else units * UNIT
        if machine is not None:
            machine %= len(self.machines)
        pause_id = pauses.pause(
            self.fleet.connection,
            owner="me",
            reason="?",
            machine_id=None if machine is None else self.machines[machine],
            process=process,
            seconds=seconds,
        )
        pause = Pause(machine, process, None if seconds is None else self.model.now + seconds)
        same = (machine, process)  # twice it is one, with the new end, and with another id if it was over
        for known in [each for each in self.pauses if (each[1].machine, each[1].process) == same]:
            self.pauses.remove(known)
            self.model.pauses.remove(known[1])
        self.pauses.append((pause_id, pause))
        self.model.pauses.append(pause)

    @precondition(lambda self: self.pauses)
    @rule()
    def resume(self) -> None:
        while self.pauses:
            pause_id, pause = self.pauses.pop()
            assert pauses.resume(self.fleet.connection, pause_id) == self.model.resume(pause)

    @rule(machine=st.integers(0, MACHINES - 1))
    def unquarantine(self, machine: int) -> None:
        machine %= len(self.machines)
        ended = remediation.unquarantine(self.fleet.connection, self.machines[machine], reason="?")
        assert ended == self.model.unquarantine(machine)

    @rule(machine=st.integers(0, MACHINES - 1))
    def retry(self, machine: int) -> None:
        machine %= len(self.machines)
        ended = remediation.retry(self.fleet.connection, self.machines[machine], reason="?")
        assert bool(ended) == self.model.retry(machine)

    def _at_once(self, calls: list[Callable[[], Any]], before: int) -> tuple[list[Any], tuple[int, int]]:
        """Return the results, and which came first: the second call, begun before that statement, unless it waits."""
        with ThreadPoolExecutor(1) as pool:
            other: list[Future[Any]] = []
            ended: list[bool] = []

            def happening() -> None:
                other.append(pool.submit(calls[1]))
                eventually(lambda: other[0].done() or self.fleet.blocked())
                ended.append(other[0].done())

            self.way.before(before, happening)
            seen = [calls[0]()]
            in_order = (1, 0) if ended == [True] else (0, 1)
            if self.way.armed:
                self.way.let_go()
                happening()
            seen.append(other[0].result(WAIT_SECONDS))
        return seen, in_order

    def pass_time(self, units: int) -> None:
        self.fleet.pass_time(UNIT * units)
        self.model.now += UNIT * units

    def fail_over(self) -> None:
        self.fleet.sql(f"SELECT pg_terminate_backend(pid) {_CONNECTIONS}")
        self.fleet.wait_until(f"NOT EXISTS (SELECT 1 {_CONNECTIONS})")
        self.fleet.connection.close()  # agents and operators have their own connections

    # What must hold.

    @invariant()
    def nothing_is_lost_doubled_or_stuck(self) -> None:
        self._compare_histories()
        self._compare_claims()

    def _compare_histories(self) -> None:
        """Compare the histories; started work that has not ended must be held by its session."""
        # Events by operators, and Quarantined, have no session.
        rows = self.fleet.ask(
            "SELECT machine_id, process, event, session_id FROM work_history "
            "WHERE session_id IS NOT NULL ORDER BY timestamp"
        )
        for number, machine_id in enumerate(self.machines):
            seen = [(Process(row[1]), WorkEvent(row[2]), self.numbers[row[3]]) for row in rows if row[0] == machine_id]
            wanted = self.model.machines[number].history
            assert seen == wanted, self._promise(seen, wanted)
        held = {
            (self.machines.index(row[0]), Process(row[1])): self.numbers[row[2]]
            for row in self.fleet.ask("SELECT machine_id, process, session_id FROM work WHERE began_at IS NOT NULL")
        }
        assert held == self.model.work, "every_started_work_ends_once"

    def _promise(self, seen: list[Any], wanted: list[Any]) -> str:
        if len(seen) > len(wanted):
            _, event, session = seen[-1]
            if event is WorkEvent.EXPIRED:
                return "a_live_session_keeps_its_work"
            if not self.model.alive(session):
                return "an_expired_session_commits_nothing"
        return "every_started_work_ends_once"

    def _compare_claims(self) -> None:
        """Check what claims would return, and roll back; this reaps expired sessions."""
        connection = self.fleet.connection

        def unit() -> dict[Process, set[int]]:
            session = self.fleet.open_session(SESSION_SECONDS)
            handed_out = {}
            for loop in LOOPS:  # a machine may be due for both, and is returned for the other
                found = claimed(session, loop)
                handed_out[loop] = {self.machines.index(each) for each in ids(found)}
                if found:
                    work.cancel(session, found)
            return handed_out

        reaped = self.model.reaped()
        for loop, seen in connection.dry_run(unit).items():
            for number in seen:
                broken = reaped.obstacle(number, loop)
                assert broken is None, broken
            assert seen == reaped.claimable(loop), "no_machine_waits_without_end"

    def teardown(self) -> None:
        """Let every session expire and check once more: then all started work must have ended."""
        self.pass_time(60)
        self._replace(0)
        assert not +self.model.unended()
        self._compare_histories()
        self.fleet.disconnect()


def _outcome(call: Callable[[], Any]) -> Any:
    """Return the result of *call*, or the type of the documented error that it raises."""
    try:
        return call()
    except (SessionExpired, WorkConflict) as error:
        return type(error)


_REASONS: dict[str, Exception] = {
    "fail": SshRefused("no luck"),
    "spare": NoLongerDue("its agent reports again", recovered=True),
    "hold back": HeldBack("the budget is used up", WAIT_FOR_BUDGET),
}


def _end(session: Session, works: list[work.Work], how: str) -> set[UUID]:
    process = works[0].process
    if how in _REASONS and process is Process.RECOVERY:
        return remediation.leave_alone(session, dict.fromkeys(works, _REASONS[how]), BACKOFF)
    if how == "fail":
        failures = {held: work.Failure(_REASONS[how], BACKOFF.next(held.last_interval_seconds)) for held in works}
        return work.fail(session, failures)
    if how == "cancel":
        return work.cancel(session, works)
    if how == "do it":
        return (
            work.finish_agent_start(session, {held: work.AgentStarted(bytes(32), None) for held in works})
            if process is Process.AGENT_START
            else finish_recovery(session, works, SETTLE_SECONDS, TIMEOUTS.grace_seconds)
        )
    return remediation.quarantine(session, dict.fromkeys(works, "enough"))


def test_the_bmdb_does_what_its_model_does(fleet: Fleet, breaking: BreakingConnection) -> None:
    """If it fails, the steps that it prints are the shortest failing history that was found."""
    profile = settings()
    run_state_machine_as_test(
        lambda: Bmdb(fleet, breaking),  # type: ignore[arg-type]  # whatever makes one will do
        settings=settings(
            max_examples=profile.max_examples // 10,
            stateful_step_count=30,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )


class KnownHistory:
    """Every kind of step that a search can take, in parts of which each begins with machines that need an agent."""

    def __init__(self, bmdb: Bmdb) -> None:
        self.bmdb = bmdb

    def step(self, name: str, **arguments: Any) -> None:
        if name in {"claim", "end", "permit", "read", "renew", "interrupt", "tick"}:
            arguments = {"moment": None, "event": "death", **arguments}
        getattr(self.bmdb, name)(**arguments)
        self.bmdb.nothing_is_lost_doubled_or_stuck()

    def end(self, how: str, **arguments: Any) -> None:
        self.step("end", which=0, batch=True, how=how, **arguments)

    def claim(self, at: int, **arguments: Any) -> None:
        self.step("claim", at=at, process=Process.AGENT_START, limit=3, **arguments)

    def recover(self, at: int, units: int, how: str | None, **arguments: Any) -> None:
        self.step("tick", at=at, process=Process.RECOVERY, units=units, how=how, **arguments)

    def wait(self, at: int, units: int, event: Event | None = None) -> None:
        self.step("wait", at=at, units=units, event=event)

    def operators(self) -> None:
        for moment in ("between", "after"):
            self.claim(0, event="pause", moment=moment)
            assert not self.bmdb.handed_out
            self.step("resume")
        self.claim(0)

    def lost_answers(self) -> None:
        """Repeat ends of work, and lose answers: ended work stays ended."""
        self.claim(0)
        self.step("end", which=0, batch=False, how="cancel")
        self.end("do it", moment="answer lost")
        self.end("do it")
        self.step("invoke", at=0, close=True)
        self.claim(0, moment="answer lost")
        self.end("do it", moment="request lost")
        self.end("do it")

    def taken_over(self) -> None:
        """End work once more, on machines that another function has by now."""
        self.claim(0)
        self.end("cancel")
        before = len(self.bmdb.handed_out)
        self.claim(1)
        taken = len(self.bmdb.handed_out) - before
        assert taken
        self.step("end", which=taken, batch=True, how="cancel")
        self.end("cancel")

    def late_commits(self) -> None:
        """Let the server commit after the function has lost the connection and asks."""
        self.claim(0)
        self.end("cancel", moment="late commit", event="heartbeats")
        self.step("renew", at=0, moment="late commit", event="heartbeats")
        self.claim(0, moment="late commit", event="heartbeats")
        assert self.bmdb.model.work
        self.step("invoke", at=0, close=True)

    def agents(self) -> None:
        self.claim(0)
        self.end("do it")
        self.wait(0, 20, "heartbeats")
        self.recover(0, 5, "do it")
        self.recover(0, 5, "cancel")
        self.recover(0, 10, "do it", event="heartbeats", moment="between")

    def interruptions(self) -> None:
        """Check again just before machines are interrupted: they report, are paused, or lost."""
        self.wait(0, 5)
        self.step("invoke", at=1, close=True)
        self.claim(1)
        self.end("do it")
        self.wait(0, 30)
        for moment, event in ((None, "death"), ("between", "heartbeats"), ("answer lost", "heartbeats")):
            self.step("tick", at=0, process=Process.RECOVERY, units=10, how=None)
            self.step("interrupt", which=0, moment=moment, event=event)
            self.end("spare", moment="answer lost")
        self.step("tick", at=0, process=Process.RECOVERY, units=10, how=None)
        self.step("interrupt", which=0, moment="between", event="pause")
        self.step("interrupt", which=0)
        self.wait(0, 5)
        self.step("interrupt", which=0, moment="between", event="death")
        self.end("spare")

    def unhealthy(self) -> None:
        """Start agents on all machines, which then do not report, and let the budget be whole."""
        if self.bmdb.pauses:
            self.step("resume")
        self.wait(0, 37)
        self.step("invoke", at=0, close=True)
        self.claim(0)
        self.end("do it")
        self.wait(0, 31)
        for machine, found in enumerate(self.bmdb.model.machines):
            assert not self.bmdb.model.obstacle(machine, Process.RECOVERY), found
        self.step("read", at=0)

    def claim_each(self, functions: int = 1) -> None:
        """Claim all machines for recovery, each function one, and the last the others."""
        before = len(self.bmdb.handed_out)
        for at in range(2):
            self.step("invoke", at=at, close=True)
        for at in range(functions):
            self.step("claim", at=at, process=Process.RECOVERY, limit=3 if at == functions - 1 else 1)
        assert len(self.bmdb.handed_out) == before + 3

    def budget(self) -> None:
        """Ask for steps: in one batch, once more after it, with lost answers; those not taken do not count."""
        model = self.bmdb.model
        for moment in (None, "answer lost", "late commit", "request lost", "between", "after"):
            self.unhealthy()
            self.claim_each()
            self.step("permit", which=0, batch=True, moment=moment, event="often")
            self.step("permit", which=0, batch=True)
            assert sum(model.attempted(self.bmdb.functions[0].number, number) for number in range(3)) == 2
            if moment in (None, "answer lost"):
                self.end("fail" if moment is None else "spare")
                assert model.steps() == {}
                self.step("read", at=0)
            else:
                self.end("do it")
                self.step("read", at=0)
                self.end("hold back")
                self.recover(0, 1, "do it")

    def budget_beside(self) -> None:
        """Let two functions ask at once, and one whose machine was interrupted a while ago together with another."""
        for before in (1, 2, 3):
            self.unhealthy()
            self.claim_each(2)
            self.step("permit_beside", which=0, before=before)
            self.end("fail")
        self.unhealthy()
        self.claim_each()
        self.step("permit", which=0, batch=False)
        self.wait(0, 5)
        for _ in range(2):
            self.claim_each()
            self.step("permit", which=0, batch=True)

    def intervals(self) -> None:
        """Tell agents to report once an hour: they have two and a half hours, and less again later."""
        self.wait(0, 5)
        self.step("invoke", at=0, close=True)
        self.claim(0)
        self.end("do it")
        self.wait(0, 1, "hourly")
        before = list(self.bmdb.handed_out)
        self.recover(0, 10, None)  # longer than the timeout of the policy
        assert self.bmdb.handed_out == before
        self.wait(0, 1, "often")
        self.recover(0, 10, "do it")
        self.claim(0)
        self.end("do it")
        self.wait(0, 1, "hourly")
        self.recover(0, 13, "do it", moment="between", event="often")

    def deaths(self) -> None:
        """Let sessions expire: with work in hand, before it is ended, and in a transaction that began before."""
        self.wait(0, 2, "clock")
        self.step("invoke", at=0, close=True)
        self.claim(0)
        self.end("fail")
        self.wait(0, 2)
        self.claim(0)
        self.step("invoke", at=1, close=False)
        self.step("access", at=1, machine=0)
        self.step("renew", at=0, event="failover", moment="between")
        self.wait(0, 1, "death")
        self.end("fail")
        for moment in ("after", "old transaction", "between"):
            self.step("invoke", at=0, close=False)
            self.wait(0, 1)
            self.claim(0, moment=moment)
        self.step("invoke", at=0, close=True)
        self.claim(0)
        self.end("do it", moment="old transaction")

    def quarantined(self) -> None:
        """Give a machine up, and let operators end its quarantine and the backoff of its next agent start."""
        self.claim(0)
        self.end("do it")
        self.recover(0, 30, "give up")
        assert any(machine.quarantined for machine in self.bmdb.model.machines)
        self.step("unquarantine", machine=0)
        self.claim(0)
        self.end("fail")
        self.step("retry", machine=0)
        self.claim(0)
        self.end("do it")

    def work_by_name(self) -> None:
        self.step("invoke", at=0, close=False)
        self.step("access", at=0, machine=0)
        self.wait(0, 10, "failover")
        self.step("renew", at=0)
        self.wait(0, 15)
        self.step("invoke", at=1, close=True)
        self.claim(1)


PARTS = {
    "operators": "Expired Started",
    "late_commits": "Canceled Started",
    "taken_over": "Canceled Started",
    "lost_answers": "Canceled Finished Started",
    "agents": "Attempted Canceled Finished Looked Started",
    "intervals": "Attempted Expired Finished Looked Started",
    "deaths": "Expired Failed Started",
    "work_by_name": "Expired Started",
    "interruptions": "Expired Finished Recovered Started",
    "budget": "Attempted Canceled Failed Finished Looked NotTaken Recovered Started",
    "budget_beside": "Attempted Canceled Expired Failed Finished Looked NotTaken Started",
    "quarantined": "Attempted Failed Finished Looked Started",
}
"""The events that each part leaves behind."""


@pytest.mark.parametrize(("part", "events"), PARTS.items(), ids=PARTS)
def test_a_known_history_agrees_with_the_model(
    fleet: Fleet, breaking: BreakingConnection, part: str, events: str
) -> None:
    """A search may miss a kind of step, and takes long to find it."""
    bmdb = Bmdb(fleet, breaking)
    bmdb.appear(HERE)
    bmdb.appear(None)
    getattr(KnownHistory(bmdb), part)()
    bmdb.teardown()
    assert " ".join(sorted({event for machine in bmdb.model.machines for _, event, _ in machine.history})) == events
