"""
Work: the lock on a machine for one process, and the ways to end it.

A claim takes machines that are due; each Work must then be ended once, by a
finish, ``fail`` or ``cancel``. All of them take several works and cost one
round trip; what a function returns is what it ended. A work that is missing
there was lost: its session died, or somebody else ended it, and nothing was
written for it. What is never ended is canceled when the session closes, and
expires when it dies.

If the connection breaks, the outcome is not guessed: the BMDB is asked, once nothing more can come of what was sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shepherd_core.bmdb.connection import sanitize_for_db
from shepherd_core.domain import gaps
from shepherd_core.domain.errors import Fault, MachineUnknown, SessionExpired, StatementFailed, WorkConflict
from shepherd_core.domain.machine import Process, ProviderId, WorkEvent

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from shepherd_core.bmdb.session import Session
    from shepherd_core.domain.gaps import Gap

CLAIM_LIMIT = 100
"""So many machines can be claimed at once; the claim looks at no more due rows than that."""

_SHORTEST_WAIT_SECONDS = 5.0
"""A due row that is looked at in vain is not looked at again sooner."""
_UNIQUE_VIOLATION = "23505"
_FOREIGN_KEY_VIOLATION = "23503"


@dataclass(frozen=True, slots=True)
class Work:
    """A machine that this session holds for one process."""

    machine_id: UUID
    process: Process
    provider_id: ProviderId | None
    host_key: str | None
    """The SSH host key that was pinned at first contact."""
    last_interval_seconds: int | None
    """The backoff after the last failure of this process; None: it has not failed since it last finished."""
    due_at: datetime
    """Since when the machine was due."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The answer to a claim."""

    work: tuple[Work, ...]
    examined: int
    """Due rows that were looked at, those taken included. More than was taken: claim again, more may be due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthTimeouts:
    """When a started agent counts as silent, in seconds; and when its machine is recovered for it."""

    startup_timeout_seconds: float = 1800
    heartbeat_timeout_seconds: float = 600
    gaps: tuple[Gap, ...] = ()
    """Times in which nobody looked, and so nobody knows whether heartbeats could arrive."""

    @property
    def effective_startup_timeout_seconds(self) -> float:
        """Return how long ago the agent must have been started that never reported."""
        return gaps.extended_timeout(self.startup_timeout_seconds, self.gaps)

    @property
    def effective_heartbeat_timeout_seconds(self) -> float:
        """Return how long ago the last heartbeat must have been."""
        return gaps.extended_timeout(self.heartbeat_timeout_seconds, self.gaps)

    @property
    def min_overdue_seconds(self) -> float:
        """Return for how long a machine must have been overdue that was told to come back."""
        return gaps.required_overdue(self.heartbeat_timeout_seconds, self.gaps)

    @property
    def recheck_seconds(self) -> float | None:
        """Return in how many seconds machines must be looked at again that are spared for a gap; None: none are."""
        left = (
            gaps.recheck_after(each, self.gaps)
            for each in (self.heartbeat_timeout_seconds, self.startup_timeout_seconds)
        )
        soonest = min((each for each in left if each is not None), default=None)
        return soonest and max(_SHORTEST_WAIT_SECONDS, soonest)

    def parameters(self) -> dict[str, float | None]:
        """Return what statements are given that judge by it."""
        return {
            "recheck_seconds": self.recheck_seconds,
            "startup_timeout_seconds": self.startup_timeout_seconds,
            "heartbeat_timeout_seconds": self.heartbeat_timeout_seconds,
            "effective_startup_timeout_seconds": self.effective_startup_timeout_seconds,
            "effective_heartbeat_timeout_seconds": self.effective_heartbeat_timeout_seconds,
            "min_overdue_seconds": self.min_overdue_seconds,
        }


def claim(
    session: Session,
    process: Process,
    provider: str,
    limit: int,
    *,
    timeouts: HealthTimeouts | None = None,
    known: Collection[UUID] = (),
) -> Claim:
    """
    Lock up to *limit* (at most ``CLAIM_LIMIT``) due machines of *provider* for *process*, longest waiting first.

    One statement. Machines that another session works on, that are in backoff,
    that are paused or that have a fresh heartbeat are passed over, never waited
    for. *timeouts* is for recovery: how long an agent may say nothing. *known*
    are the machines that this session holds already.

    Raises:
        SessionExpired: the deadline passed. Abandon everything.
    """
    timeouts = timeouts or HealthTimeouts()

    def take() -> Claim:
        rows = session.run_once(
            "claim",
            process=process,
            provider=provider,
            limit=limit,
            **timeouts.parameters(),
        )
        if not rows[0][0]:
            raise SessionExpired
        return Claim(tuple(_work(row, process) for row in rows if row[2] is not None), rows[0][1])

    def find() -> Claim:
        rows = session.run("find_unacknowledged_claims", process=process, known=list(known))
        return Claim(tuple(_work(row, process) for row in rows), len(rows))

    return session.repeat_if_unanswered(take, find)


def start_work(session: Session, process: Process, machine_id: UUID) -> Work:
    """
    Lock one named machine for *process*, due or not; no loop will claim it meanwhile.

    Raises:
        WorkConflict: somebody works on it.
        SessionExpired: the deadline passed.
        MachineUnknown: the BMDB knows no such machine.
    """
    try:
        rows = session.run_once("start_work", process=process, machine_id=machine_id)
    except StatementFailed as error:
        if error.sqlstate == _UNIQUE_VIOLATION:
            message = f"machine {machine_id} already has work by {process}"
            raise WorkConflict(message) from error
        if error.sqlstate == _FOREIGN_KEY_VIOLATION:
            message = f"the BMDB knows no machine {machine_id}"
            raise MachineUnknown(message) from error
        raise
    if not rows[0][0]:
        raise SessionExpired
    if rows[0][2] is None:
        message = f"machine {machine_id} has work by another process"
        raise WorkConflict(message)
    return _work(rows[0], process)


@dataclass(frozen=True, slots=True)
class AgentStarted:
    """What a finished agent start records."""

    public_key: bytes
    """The agent's Ed25519 public key, 32 bytes."""
    host_key: str | None
    """The machine's SSH host key, to be pinned if none is yet."""


def finish_agent_start(session: Session, done: Mapping[Work, AgentStarted]) -> set[UUID]:
    """Tag the machines as having a started agent, and return those for which that was still ours to say."""
    return end(
        session,
        "finish_agent_start",
        WorkEvent.FINISHED,
        list(done),
        public_keys=[facts.public_key.hex() for facts in done.values()],
        host_keys=[facts.host_key for facts in done.values()],
    )


def finish_recovery(
    session: Session,
    done: Sequence[Work],
    boot_wait_seconds: float,
    *,
    grace_seconds: float | None = None,
    cooldown_seconds: float = 0,
    rebooted: bool = True,
) -> set[UUID]:
    """
    Drop the machines' agent and heartbeat tags, hold off the agent start for *boot_wait_seconds*; return the ended.

    A machine whose agent cannot be started within *grace_seconds* is due for
    recovery again; None: it waits for its agent for ever. No recovery is claimed
    for *cooldown_seconds*. *rebooted*: that is on record, and counts where too
    many are silent at once.
    """
    return end(
        session,
        "finish_recovery",
        WorkEvent.FINISHED,
        done,
        boot_wait_seconds=boot_wait_seconds,
        grace_seconds=grace_seconds,
        cooldown_seconds=cooldown_seconds,
        rebooted=rebooted,
    )


def finish(session: Session, done: Sequence[Work]) -> set[UUID]:
    """End work that changed no tag, and return the ended. All of one process."""
    return end(session, "finish", WorkEvent.FINISHED, done, process=done[0].process)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why work failed, and for how many seconds the machine is to be left alone by this process."""

    cause: str
    interval_seconds: int
    host_key: str | None = None
    """The machine's SSH host key if this was the first contact: it is pinned all the same."""
    fault: Fault = Fault.MACHINE
    not_taken: str | None = None
    """The step of recovery that is on record, and was certainly not taken."""


def fail(session: Session, failed: Mapping[Work, Failure]) -> set[UUID]:
    """Record the causes, leave the machines alone for their intervals, and return the ended. All of one process."""
    return end(
        session,
        "fail",
        WorkEvent.FAILED,
        list(failed),
        process=next(iter(failed)).process,
        causes=[sanitize_for_db(failure.cause) for failure in failed.values()],
        intervals=[failure.interval_seconds for failure in failed.values()],
        host_keys=[failure.host_key for failure in failed.values()],
        faults=[failure.fault for failure in failed.values()],
        steps=[failure.not_taken for failure in failed.values()],
    )


def cancel(session: Session, undone: Sequence[Work]) -> set[UUID]:
    """Give the machines back as they were, as due as before, and return the ended. All of one process."""
    return end(
        session,
        "cancel",
        WorkEvent.CANCELED,
        undone,
        process=undone[0].process,
        not_befores=[work.due_at for work in undone],
    )


def end(session: Session, statement: str, event: WorkEvent, works: Sequence[Work], **parameters: Any) -> set[UUID]:
    """
    End *works* by *statement*, which leaves *event* in the history, and return the machines whose work that ended.

    After a broken connection it runs once more, for those that it did not reach.
    """
    machine_ids = [work.machine_id for work in works]

    def carry_out() -> list[list[Any]]:
        return session.run_once(statement, machine_ids=machine_ids, **parameters)

    def carry_out_again() -> list[list[Any]]:
        rows = carry_out()
        return rows + session.run(
            "find_unacknowledged_ends", machine_ids=machine_ids, process=works[0].process, event=event
        )

    return {row[0] for row in session.repeat_if_unanswered(carry_out, carry_out_again)}


def _work(row: Sequence[Any], process: Process) -> Work:
    _, _, machine_id, provider_id, host_key, last_interval_seconds, due_at = row
    return Work(machine_id, process, provider_id and ProviderId(provider_id), host_key, last_interval_seconds, due_at)
