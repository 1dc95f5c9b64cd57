"""
The runner of the loops that work on machines.

One call is one invocation: it opens a session, claims a bounded batch of due
machines, works on them in threads, commits results as they arrive (all that are
waiting in one statement), claims again while time allows, and closes the session.
Only the calling thread
talks to the BMDB; while it waits, it renews the session. A slow machine does not
delay the others: their results are committed, and new machines take their places.
A thread may ask something of the BMDB; all questions that wait are answered together.

A new loop is a subclass of ``loops.base.Loop``.
"""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from shepherd_core import telemetry
from shepherd_core.bmdb.session import Session
from shepherd_core.bmdb.work import history
from shepherd_core.bmdb.work import work as bmdb_work
from shepherd_core.domain.clock import MARGIN_SECONDS
from shepherd_core.domain.errors import ConfigError, TimeLimitExceeded
from shepherd_core.domain.errors.bmdb import SessionExpired
from shepherd_core.loops.base import Closing, Task, log_failure, tick_head
from shepherd_core.loops.claims import THREAD, Claims
from shepherd_core.loops.thread_messages import Messages, Question, WorkResult
from shepherd_core.telemetry import Metric

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from uuid import UUID

    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.bmdb.work.work import Work
    from shepherd_core.domain.clock import Clock, Deadline
    from shepherd_core.loops.base import Loop

F = TypeVar("F")


@dataclass(frozen=True, slots=True)
class RunLimits:
    """How many machines one invocation works on at once, and for how long."""

    concurrency: int
    machine_seconds: float
    session_seconds: float
    history_days: int = 0
    """Days for which history is kept; 0: without limit."""


@dataclass(slots=True)
class _Run(Generic[F]):
    """The state of one invocation."""

    loop: Loop[F]
    session: Session
    clock: Clock
    limits: RunLimits
    deadline: Deadline
    claims: Claims
    counts: Counter[Metric]
    next_renewal: float
    """Of the session, by the clock."""
    running: dict[Work, Deadline] = field(default_factory=dict)
    """Until when each machine is worked on."""
    messages: Messages[F] = field(default_factory=Messages)

    def has_time(self) -> bool:
        """Return whether enough time is left to begin work on a machine."""
        return self.deadline.remaining() >= self.limits.machine_seconds + MARGIN_SECONDS

    def prepare(self, works: Sequence[Work]) -> None:
        """Let the loop prepare; if that fails, give *works* back, so that they are due as before."""
        try:
            self.session.run_renewing(lambda: self.loop.prepare(self.deadline))
        except Exception:
            bmdb_work.cancel(self.session, works)
            raise

    def begin(self, work: Work, decision: object) -> None:
        """Start the work on a machine in a thread of its own."""
        deadline = self.deadline.within(self.limits.machine_seconds, self.session.seconds_left)
        task = Task(work, deadline, decision, partial(self.messages.ask, work, deadline))
        self.running[work] = deadline
        threading.Thread(target=self._work_on, name=THREAD, args=(task,), daemon=True).start()

    def _work_on(self, task: Task) -> None:
        try:
            self.messages.put(WorkResult(task.work, self.loop.work_on(task)))
        except Exception as error:  # noqa: BLE001 - handed to the thread that commits and logs
            self.messages.put(WorkResult(task.work, error=error))

    def _answer(self, questions: Sequence[Question]) -> None:
        """Answer all questions together. Abandoned work is refused; all, if a statement fails."""
        answers: Mapping[Work, Exception | None] = {}
        try:
            if asked := {question.work: question.asked for question in questions if question.work in self.running}:
                answers = self.loop.answer(self.session, asked)
        finally:
            for question in questions:
                question.answer.put(answers.get(question.work, SessionExpired()))

    def counted(self) -> dict[Metric, float]:
        """Return the counts so far, without the backlog."""
        counted = (Metric.CLAIMED, Metric.FINISHED, Metric.FAILED, Metric.CANCELED, *self.loop.metrics)
        return {
            **{metric: self.counts[metric] for metric in counted},
            Metric.INCOMPLETE: int(self.claims.more or self.counts[Metric.CANCELED] > 0),
            **(self.claims.admission.counts if self.claims.admission else {}),
        }

    def commit_results(self) -> bool:
        """Wait a second at most for results, commit those that have come, and return whether there were any."""
        if self.clock.monotonic() >= self.next_renewal:
            self.session.renew()
            self.next_renewal = self.clock.monotonic() + self.session.renew_interval
        done: dict[Work, F] = {}
        failed: dict[Work, Exception] = {}
        results, questions = self.messages.collect(1.0)  # a session is much longer: a renewal may be a second late
        if questions:
            self._answer(questions)
        for result in results:
            if result.work not in self.running:
                continue  # abandoned before: the result comes too late
            if result.error is None:
                done[result.work] = result.facts  # type: ignore[assignment]  # without an error there are facts
            else:
                failed[result.work] = result.error
        for work, deadline in self.running.items():
            if work not in done and work not in failed and deadline.overdue(MARGIN_SECONDS / 2):
                failed[work] = TimeLimitExceeded(
                    f"the work did not end within machine_seconds, {self.limits.machine_seconds:g}"
                )
        if done:
            counted = {work: self.loop.counted_as(result) for work, result in done.items()}
            self._count(counted, self.loop.finish(self.session, done))
        if failed:
            failures = {work: self._failure(work, error) for work, error in failed.items()}
            self._count(dict.fromkeys(failed, (Metric.FAILED,)), bmdb_work.fail(self.session, failures))
        return bool(results or questions)

    def _failure(self, work: Work, error: Exception) -> bmdb_work.Failure:
        failure = bmdb_work.Failure(error, self.loop.backoff.next(work.last_interval_seconds))
        log_failure(work, error, failure.interval_seconds)
        return failure

    def _count(self, works: Mapping[Work, Collection[Metric]], ended: set[UUID]) -> None:
        for work, metrics in works.items():
            self.running.pop(work, None)
            if Metric.CANCELED not in metrics:
                self.claims.held.pop(work.machine_id, None)
            if work.machine_id in ended:
                self.counts.update(metrics)
            else:
                telemetry.warning("work lost: its session or claim is gone", machine_id=work.machine_id)
        if len(ended) < len(works):
            self.session.renew()  # raises if it is the session that was lost

    def cancel(self, works: Sequence[Work]) -> None:
        """Cancel work that was not started or still runs; its deadline keeps it from further effects."""
        if works:
            self._count(dict.fromkeys(works, (Metric.CANCELED,)), bmdb_work.cancel(self.session, works))


def opened(
    loop: Loop[Any], provider: str, connection: Connection, clock: Clock, limits: RunLimits, runtime_info: str
) -> Session:
    """Open a session, and record the loop's health timeouts, if it has any."""
    head, policy = tick_head(loop.name, provider), (provider, loop.timeouts) if loop.timeouts else None
    return Session.open(connection, clock, head, runtime_info, limits.session_seconds, policy)


def run(
    loop: Loop[F],
    provider: str,
    connection: Connection,
    clock: Clock,
    limits: RunLimits,
    *,
    deadline: Deadline,
    runtime_info: str,
) -> dict[Metric, float]:
    """
    Work on due machines of *provider* until there are no more or *deadline* comes near, and return the counts.

    Raises:
        ConfigError: the invocation is shorter than the time that one machine may take.
        SessionExpired: the session was lost; its machines fall due again.
        BmdbError: the BMDB failed.
        ShepherdError: what ``prepare`` raised.
    """
    needed = limits.machine_seconds + MARGIN_SECONDS
    if deadline.left() < needed:
        fault = f"the invocation has {deadline.left():.0f} s left, but work on one machine may take {needed:.0f} s"
        raise ConfigError([f"{fault}: lower machine_seconds, {limits.machine_seconds:g}"])
    session = opened(loop, provider, connection, clock, limits, runtime_info)
    counts: Counter[Metric] = Counter()
    claims = Claims(loop, session, clock, provider, counts)
    renewal = clock.monotonic() + session.renew_interval
    state = _Run(loop, session, clock, limits, deadline, claims, counts, renewal)
    prepared, waited = False, False
    with Closing(session, lambda: {**state.counted(), **claims.backlog}), closing(state.messages):
        while claims.more or state.running:
            free = min(limits.concurrency - len(state.running), bmdb_work.CLAIM_LIMIT)
            # A claim costs a round trip even if it finds nothing: it is made when half of the places are free, or when
            # no result has come for a second.
            enough = 1 if waited else max(1, min(limits.concurrency, bmdb_work.CLAIM_LIMIT) // 2)
            if claims.more and free >= enough and not claims.must_wait(state.running) and state.has_time():
                waited = False
                works = claims.claim(free, state.running)
                if works and not prepared:
                    state.prepare(works)
                    prepared = True
                    if not state.has_time():
                        state.cancel(works)
                        break
                if works:
                    for work, decision in loop.decide(session, works).items():
                        state.begin(work, decision)
            elif state.running and deadline.remaining() > 0:
                waited = not state.commit_results()
            else:
                break
        state.cancel(list(state.running))
    if limits.history_days:
        history.delete_old_history(connection, limits.history_days)
    return {**state.counted(), **claims.backlog}
