"""
The runner of the loops that work on machines.

One call is one invocation: it opens a session, claims a bounded batch of due
machines, works on them in threads, commits each result as soon as it is there
(those that are there together, together), claims again while time allows, and
closes the session. Only the calling thread talks to the BMDB; while it waits
it keeps the session alive. A slow machine holds up nobody: the others' results
are committed, and their places given to new machines, while it goes on. A
thread that is about to interrupt a machine asks whether it still should;
the questions come with the results, and all that are there are answered by one
statement.

A new loop is a class with the methods of ``loop.Loop``.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from shepherd_core import telemetry
from shepherd_core.bmdb.machines import queries
from shepherd_core.bmdb.recovery import suspension
from shepherd_core.bmdb.recovery.remediation import Spared
from shepherd_core.bmdb.session import Session
from shepherd_core.bmdb.work import work as bmdb_work
from shepherd_core.domain.errors import (
    ConfigError,
    Fault,
    NoLongerDue,
    SessionExpired,
    ShepherdError,
    TimeLimitExceeded,
)
from shepherd_core.loops.base import Admission, Attempt
from shepherd_core.telemetry import Metric

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.bmdb.work.work import Work
    from shepherd_core.domain.clock import Clock, Deadline
    from shepherd_core.loops.base import Loop

F = TypeVar("F")

MARGIN_SECONDS = 5.0
"""Left at the end of an invocation for committing, closing and whoever is slow to notice its deadline."""

ADMISSION_SECONDS = 30.0
"""So long the loop's word holds on what may be claimed."""

_CAUSE_LENGTH = 1000
_SUSPENDED = 1000
"""Machines that a rehearsal looks for where recovery is held back."""


@dataclass(frozen=True, slots=True)
class RunLimits:
    """How much one invocation takes on."""

    concurrency: int
    machine_seconds: float
    session_seconds: float
    history_days: int = 0
    """Days for which history is kept; 0: for ever."""


@dataclass(frozen=True, slots=True)
class _Result(Generic[F]):
    """What came of the work on one machine."""

    work: Work
    facts: F | None = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class _Question:
    """Whether a machine is still to be interrupted; the answer is None if it is, else an error to be raised."""

    work: Work
    answer: SimpleQueue[ShepherdError | None] = field(default_factory=SimpleQueue)


@dataclass(slots=True)
class _Run(Generic[F]):
    """The state of one invocation."""

    loop: Loop[F]
    session: Session
    clock: Clock
    limits: RunLimits
    deadline: Deadline
    counts: Counter[Metric] = field(default_factory=Counter)
    running: dict[Work, Attempt] = field(default_factory=dict)
    messages: SimpleQueue[_Result[F] | _Question] = field(default_factory=SimpleQueue)
    over: bool = False
    """Nobody answers questions any more."""
    next_renewal: float = 0.0
    admission: Admission | None = None
    admitted_until: float = 0.0
    allowed: int = 0
    more: bool = True

    def has_time(self) -> bool:
        """Return whether there is time enough to begin with a machine."""
        return self.deadline.remaining() >= self.limits.machine_seconds + MARGIN_SECONDS

    def prepare(self, works: Sequence[Work]) -> None:
        """Let the loop prepare itself; if it cannot, *works*, which wait for that, are as due as they were."""
        try:
            self.session.keep_alive(lambda: self.loop.prepare(self.deadline))
        except Exception:
            bmdb_work.cancel(self.session, works)
            raise

    def claim(self, provider: str, limit: int) -> Sequence[Work]:
        """Claim up to *limit* machines, as far as the loop admits them, and see whether there may be more."""
        spent = self.admission is None or self.allowed <= 0 < self.admission.limit
        if self.admission is None or spent or self.clock.monotonic() >= self.admitted_until:
            self.admission = self.loop.admit(self.session)
            self.admitted_until = self.clock.monotonic() + ADMISSION_SECONDS
            self.allowed = self.admission.limit
            if self.admission.idle:
                self.more = False
                return ()
        limit = min(limit, self.allowed)
        claim = bmdb_work.claim(
            self.session,
            self.loop.process,
            provider,
            limit,  # 0: due rows that came too early are moved all the same
            silence=self.admission.silence,
            known=[work.machine_id for work in self.running],
        )
        self.allowed -= len(claim.work)
        self.more = claim.examined > len(claim.work) or 0 < limit == len(claim.work)
        self.counts[Metric.CLAIMED] += len(claim.work)
        return claim.work

    def begin(self, work: Work, decision: object) -> None:
        ask = partial(self._ask, work) if self.loop.guard else None
        deadline = self.deadline.within(self.limits.machine_seconds, self.session.left, ask)
        attempt = Attempt(work, deadline, decision=decision)
        self.running[work] = attempt
        threading.Thread(target=self._work_on, args=(attempt,), daemon=True).start()

    def _work_on(self, attempt: Attempt) -> None:
        try:
            self.messages.put(_Result(attempt.work, self.loop.work_on(attempt)))
        except Exception as error:  # noqa: BLE001 - carried to the thread that commits and logs
            self.messages.put(_Result(attempt.work, error=error))

    def _ask(self, work: Work, deadline: Deadline) -> None:
        """Return if the machine is still to be interrupted; called by the thread that works on it."""
        question = _Question(work)
        self.messages.put(question)
        if self.over:
            raise SessionExpired
        try:
            refusal = question.answer.get(timeout=deadline.left(threading.TIMEOUT_MAX))
        except Empty:
            raise TimeLimitExceeded from None
        if refusal is not None:
            raise refusal

    def _answer(self, questions: Sequence[_Question]) -> None:
        """Answer them all by one statement; who was given up, or if that fails all, may not go on."""
        asked = [question.work for question in questions if question.work in self.running]
        answers: Mapping[Work, ShepherdError | None] = {}
        try:
            if asked and (guard := self.loop.guard):
                answers = {**dict.fromkeys(asked), **guard.no_longer_due(self.session, asked)}
        finally:
            for question in questions:
                question.answer.put(answers.get(question.work, SessionExpired()))

    def dismiss(self) -> None:
        """Let nobody wait for an answer any more: the session is over."""
        self.over = True
        for message in self._waiting():
            if isinstance(message, _Question):
                message.answer.put(SessionExpired())

    def settle(self) -> bool:
        """Wait a second at most for results, commit all that have come, and return whether any had."""
        if self.clock.monotonic() >= self.next_renewal:
            self.session.renew()
            self.next_renewal = self.clock.monotonic() + self.session.renew_interval
        done: dict[Work, F] = {}
        failed: dict[Work, Exception] = {}
        collected = self._collected()
        for message in collected:
            if message.work not in self.running:
                continue  # given up before; the result comes too late
            if message.error is None:
                done[message.work] = message.facts  # type: ignore[assignment]  # there is no error, so there are facts
            else:
                failed[message.work] = message.error
        for work, attempt in self.running.items():
            if work not in done and work not in failed and attempt.deadline.overdue(MARGIN_SECONDS / 2):
                failed[work] = ShepherdError(f"did not end within its {self.limits.machine_seconds:g} seconds")
        if done:
            self._count(Metric.FINISHED, list(done), self.loop.finish(self.session, done))
        self._end_failed(failed)
        return bool(collected)

    def _end_failed(self, failed: Mapping[Work, Exception]) -> None:
        """Commit what did not succeed; where nothing was to be done any more, that is no failure."""
        spared = {work: self._spared(work, error) for work, error in failed.items() if isinstance(error, NoLongerDue)}
        if spared and (guard := self.loop.guard):
            self._count(Metric.SPARED, list(spared), guard.spare(self.session, spared))
        failures = {work: self._failure(work, error) for work, error in failed.items() if work not in spared}
        if failures:
            self._count(Metric.FAILED, list(failures), bmdb_work.fail(self.session, failures))

    def _collected(self) -> list[_Result[F]]:
        """Wait for messages, answer the questions among them, and return the results."""
        wait = max(0.01, min(1.0, self.next_renewal - self.clock.monotonic()))
        try:
            messages = [self.messages.get(timeout=wait), *self._waiting()]
        except Empty:
            messages = []
        if questions := [message for message in messages if isinstance(message, _Question)]:
            self._answer(questions)
        return [message for message in messages if not isinstance(message, _Question)]

    def _waiting(self) -> list[_Result[F] | _Question]:
        waiting = []
        try:
            while True:
                waiting.append(self.messages.get_nowait())
        except Empty:
            return waiting

    def _spared(self, work: Work, reason: NoLongerDue) -> Spared:
        attempt = self.running[work]
        telemetry.info("work is not needed any more", machine_id=work.machine_id, reason=reason)
        return Spared(str(reason), reason.recovered, attempt.not_taken, attempt.host_key)

    def _failure(self, work: Work, error: Exception) -> bmdb_work.Failure:
        cause = f"{type(error).__name__}: {error}"[:_CAUSE_LENGTH]
        interval = self.loop.backoff.next(work.last_interval_seconds)
        facts = {"machine_id": work.machine_id, "process": work.process, "cause": cause, "retry_in_seconds": interval}
        if isinstance(error, ShepherdError):
            telemetry.warning("work failed", **facts)
        else:
            telemetry.error("work failed for a reason that nobody thought of", exc=error, **facts)
        attempt = self.running[work]
        fault = error.fault if isinstance(error, ShepherdError) else Fault.MACHINE
        if attempt.not_taken is not None:
            self.counts[Metric.NOT_TAKEN] += 1
        return bmdb_work.Failure(cause, interval, attempt.host_key, fault, attempt.not_taken)

    def _count(self, metric: Metric, works: Sequence[Work], ended: set[UUID]) -> None:
        for work in works:
            self.running.pop(work, None)
            if work.machine_id in ended:
                self.counts[metric] += 1
            else:
                telemetry.warning("work lost: it was no longer ours to end", machine_id=work.machine_id)
        if len(ended) < len(works):
            self.session.renew()  # raises if it is the session that was lost

    def cancel(self, works: Sequence[Work]) -> None:
        """Give back what was not begun, or is still running; its deadline keeps it from having further effects."""
        if works:
            self._count(Metric.CANCELED, works, bmdb_work.cancel(self.session, works))


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
        raise ConfigError(
            [f"the invocation has {deadline.left():.0f} s left, but work on one machine may take {needed:.0f} s"]
        )
    session = Session.open(connection, clock, f"{loop.process}/{provider}", runtime_info, limits.session_seconds)
    state = _Run(loop, session, clock, limits, deadline, next_renewal=clock.monotonic() + session.renew_interval)
    prepared, calm, backlog = False, False, None
    try:
        while state.more or state.running:
            free = min(limits.concurrency - len(state.running), bmdb_work.CLAIM_LIMIT)
            # A claim costs a round trip, whatever it brings: it is made when half of the places are free, or when
            # nothing else was to be done for a second.
            enough = 1 if calm else max(1, min(limits.concurrency, bmdb_work.CLAIM_LIMIT) // 2)
            if state.more and state.has_time() and free >= enough:
                calm = False
                works = state.claim(provider, free)
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
                calm = not state.settle()
            else:
                break
        state.cancel(list(state.running))
    finally:
        state.dismiss()
        backlog = session.close(loop.process, provider)
    if limits.history_days:
        queries.forget_history(connection, limits.history_days)
    return {
        **{
            metric: state.counts[metric] for metric in (Metric.CLAIMED, Metric.FINISHED, Metric.FAILED, Metric.CANCELED)
        },
        **({metric: state.counts[metric] for metric in (Metric.SPARED, Metric.NOT_TAKEN)} if loop.guard else {}),
        Metric.BACKLOG: backlog.count,
        Metric.OLDEST_DUE_AGE: round(backlog.oldest_due_age_seconds, 3),
        Metric.INCOMPLETE: int(state.more or state.counts[Metric.CANCELED] > 0),
        **(state.admission.counts if state.admission else {}),
    }


@dataclass(frozen=True, slots=True)
class DryRun:
    """What an invocation would begin with."""

    work: list[Work]
    suspended: list[Work]
    """What it would take besides, at most 1,000 machines, if nothing were held back."""
    decisions: Mapping[Work, object]
    """What it would do with each."""
    recovery_suspended: tuple[str, ...]
    """As in ``Admission``."""


def dry_run(loop: Loop[Any], provider: str, connection: Connection, clock: Clock, limits: RunLimits) -> DryRun:
    """
    Return what an invocation would claim first, by claiming it and undoing that: nothing is changed.

    And what it would claim if recovery were not held back, where it is.
    """

    def unit() -> DryRun:
        session = Session.open(connection, clock, f"{loop.process}/{provider}", "dry run", limits.session_seconds)
        admission = loop.admit(session)

        def claimed(limit: int) -> Sequence[Work]:
            while True:
                claim = bmdb_work.claim(session, loop.process, provider, limit, silence=admission.silence)
                if claim.work or not claim.examined:
                    return claim.work

        work = list(claimed(min(limits.concurrency, admission.limit)))
        suspended: list[Work] = []
        decisions = dict(loop.decide(session, work)) if work else {}
        if admission.recovery_suspended:
            suspension.disregard(session, provider)
            while len(suspended) < _SUSPENDED and (more := claimed(bmdb_work.CLAIM_LIMIT)):
                suspended += more
                decisions |= loop.decide(session, more)
        return DryRun(work, suspended, decisions, admission.recovery_suspended)

    return connection.rehearse(unit)
