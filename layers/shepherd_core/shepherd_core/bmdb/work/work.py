"""
Work: the lock on a machine for one process, and the ways to end it.

``candidates`` reads the machines that seem ready. ``claim`` locks some of them,
then looks at their facts, and begins the work on those that are ready. Each Work
must then be ended once, by one of the ``finish`` functions, ``fail`` or
``cancel``. Each takes several works in one round trip and returns the machines
whose work it ended. Work that is missing in the result was lost: its session
expired, or it was ended elsewhere; nothing was written for it. Unfinished work
is canceled when the session closes, and expires when the session does.

If the connection breaks, the outcome is not guessed: the BMDB is asked, as soon
as what was sent cannot commit any more.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from shepherd_core.bmdb.connection import as_rows
from shepherd_core.domain.errors import cause_of
from shepherd_core.domain.errors.bmdb import MachineUnknown, SessionExpired, WorkConflict
from shepherd_core.domain.errors.machine import TakeoverFailed
from shepherd_core.domain.machine import HostKeyOrigin, Process, ProviderId, WorkEvent
from shepherd_core.domain.record import record
from shepherd_core.domain.remediation import RELEASE

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from shepherd_core.bmdb.session import Session
    from shepherd_core.domain.remediation import Step

CLAIM_LIMIT = 100
"""The most machines that one claim can take."""
CANDIDATES = 2000
"""The most machines that one reading returns; a tick that works on all of them reads again."""


@record
class Work:
    """A machine that this session has locked for one process."""

    machine_id: UUID
    process: Process
    provider_id: ProviderId | None
    host_key: str | None
    """The SSH host key that is pinned."""
    last_interval_seconds: int | None
    """The backoff after the last failure of this process; None: no failure since it last finished."""
    host_key_origin: HostKeyOrigin | None = None
    """Where the pinned host key is from."""
    deaths: int = 0
    """How often in a row a function has died while it worked on the machine for this process."""


@record
class Candidate:
    """A machine that seemed ready for a process when the fleet was read."""

    machine_id: UUID
    due_seconds: float
    """For how long it had been due then."""
    suspect: bool = False
    """It may have killed the function that worked on it last."""
    total: int = field(default=0, compare=False)
    """How many there were."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """The machines of a provider that seemed ready for a process."""

    machines: tuple[Candidate, ...] = ()
    """The longest waiting first; at most 2,000."""
    total: int = 0


def candidates(session: Session, process: Process, provider: str) -> Candidates:
    """Return the machines of *provider* that seem ready for *process*. Reads the facts of the whole fleet once."""
    found = session.fetch(Candidate, "find_candidates", process=process, provider=provider, limit=CANDIDATES)
    return Candidates(tuple(found), found[0].total if found else 0)


def claim(
    session: Session, process: Process, machine_ids: Collection[UUID], *, known: Collection[UUID] = ()
) -> tuple[Work, ...]:
    """
    Lock those of *machine_ids* that nobody has locked, and begin *process* on those that are ready.

    Two round trips; one if all are locked, three if some are not ready. *known* are the machines that this
    session has claimed already.

    Raises:
        SessionExpired: the deadline passed. Abandon everything.
    """
    locked = _lock(session, process, machine_ids)
    return _begin(session, process, known, locked) if locked else ()


def start_work(session: Session, machine_id: UUID, remark: str) -> Work:
    """
    Begin the recovery of one machine, whether it is ready or not; no loop claims it meanwhile.

    *remark* is written to the history: who wants it, and why.

    Raises:
        WorkConflict: another session works on it.
        SessionExpired: the deadline passed.
        MachineUnknown: the BMDB has no such machine.
    """
    lock_machine(session, Process.RECOVERY, machine_id)
    (work,) = _begin(session, Process.RECOVERY, (), 1, remark)
    return work


def lock_machine(session: Session, process: Process, machine_id: UUID) -> None:
    """Lock a machine, and begin no work: no loop works on it until ``let_go``. Raises as ``start_work``."""
    if _lock(session, process, [machine_id]):
        return
    if not session.run("machine_exists", machine_id=machine_id):
        raise MachineUnknown(f"the BMDB has no machine {machine_id}")
    raise WorkConflict(f"machine {machine_id} is being worked on")


def let_go(session: Session) -> None:
    """Give up the locks with which no work was begun. May run twice."""
    session.run("let_go")


def _lock(session: Session, process: Process, machine_ids: Collection[UUID]) -> int:
    """Lock machines; return the number of locks of this session with which no work was begun."""

    def lock() -> list[UUID]:
        return session.fetch_once(UUID, "lock_machines", process=process, machine_ids=list(machine_ids))

    # If the answer is lost, the second run locks nothing that the first one has: the locks are found by their session.
    rows = session.repeat_if_unanswered(lock, lambda: lock() + session.fetch(UUID, "own_locks", process=process))
    if not rows:
        raise SessionExpired
    return len(set(rows) - {None})


def _begin(
    session: Session, process: Process, known: Collection[UUID], locked: int, remark: str | None = None
) -> tuple[Work, ...]:
    """Begin work on those of the *locked* machines that are ready; with a *remark*, on all."""

    def begin(known: list[UUID] | None) -> list[Work]:
        return session.fetch_once(Work, "begin_work", process=process, remark=remark, known=known)

    works = session.repeat_if_unanswered(lambda: begin(None), lambda: begin(list(known)))
    if len(works) < locked and not session.run("let_go"):
        raise SessionExpired
    return tuple(works)


@dataclass(frozen=True, slots=True)
class AgentStarted:
    """The facts that a finished agent start records."""

    public_key: bytes
    """The agent's Ed25519 public key, 32 bytes."""
    host_key: str | None
    """The SSH host key of the machine that was contacted, to be pinned if none is. None: not compared."""
    origin: HostKeyOrigin = HostKeyOrigin.FIRST_CONTACT
    """Where the host key is from, if it is pinned now."""
    agent_sha256: str | None = None
    """Of the agent's file; None: not known."""


def finish_agent_start(session: Session, done: Mapping[Work, AgentStarted]) -> set[UUID]:
    """
    Record that the agents were started, and return the machines of which that was recorded.

    It is not recorded where another host key is pinned by now: the agent is on some
    other machine, and the next work compares the keys.
    """
    return end(session, "finish_agent_start", WorkEvent.FINISHED, {work: asdict(facts) for work, facts in done.items()})


def finish_recovery(session: Session, done: Mapping[Work, Exception | None], step: Step) -> set[UUID]:
    """
    Record that the *step* was taken, and return the machines whose work this ended.

    If it loses the agents, delete them and their heartbeats. For each work, *done* says why it is unknown whether the
    step was taken, or None.
    """
    kind, timeouts = step.kind, step.timeouts
    return end(
        session,
        "finish_recovery",
        WorkEvent.FINISHED,
        {work: said(error) for work, error in done.items()},
        asked_step=kind.name if kind.needs else None,
        boot_wait_seconds=timeouts.boot_wait,
        grace_seconds=timeouts.grace,
        cooldown_seconds=timeouts.cooldown if kind.loses_agent else max(timeouts.cooldown, timeouts.grace),
        rebooted=kind.reboots,
        loses_agent=kind.loses_agent,
        released=kind is RELEASE,
    )


@dataclass(frozen=True, slots=True)
class Failure:
    """The error that ended work, and for how many seconds this process leaves the machine alone."""

    error: Exception
    interval_seconds: int


def fail(session: Session, failed: Mapping[Work, Failure]) -> set[UUID]:
    """Record the failures and back off; return the machines whose work this ended. All of one process."""
    ends = {
        work: {
            **said(failure.error),
            "seconds": failure.interval_seconds,
            "agent_sha256": failure.error.agent_sha256 if isinstance(failure.error, TakeoverFailed) else None,
        }
        for work, failure in failed.items()
    }
    return end(session, "end_undone", WorkEvent.FAILED, ends)


def said(error: Exception | None) -> dict[str, object]:
    """Return what a row says of *error*: what failed, who is to blame, and the text for people."""
    if error is None:
        return {}
    cause = cause_of(error)
    return {"kind": cause.kind, "fault": cause.fault, "cause": cause.text}


def cancel(session: Session, undone: Sequence[Work]) -> set[UUID]:
    """Cancel the work, and return the machines whose work this ended. All of one process."""
    return end(session, "end_undone", WorkEvent.CANCELED, {work: {} for work in undone})


def end(
    session: Session, statement: str, event: WorkEvent, ends: Mapping[Work, Mapping[str, object]], **parameters: Any
) -> set[UUID]:
    """
    End works by *statement*, which writes *event* to the history, and return the machines whose work this ended.

    All are of one process. *ends* has the values by column that the statement takes of each. After a broken connection
    it runs once more, for the works that the first run did not end.
    """
    asked = {"process": next(iter(ends)).process, "event": event, **parameters}
    rows = as_rows({"machine_id": work.machine_id, **values} for work, values in ends.items())
    machine_ids = [work.machine_id for work in ends]

    def carry_out() -> list[UUID]:
        return session.fetch_once(UUID, statement, rows=rows, **asked)

    def carry_out_again() -> list[UUID]:
        return carry_out() + session.fetch(UUID, "find_unacknowledged_ends", machine_ids=machine_ids, **asked)

    return set(session.repeat_if_unanswered(carry_out, carry_out_again))
