"""
Work: the lock on a machine for one process, and the ways to end it.

A claim locks machines that are due. Each Work must then be ended once, by one of
the ``finish`` functions, ``fail`` or ``cancel``. Each takes several works in one
round trip and returns the machines whose work it ended. Work that is missing in
the result was lost: its session expired, or it was ended elsewhere; nothing was
written for it. Unfinished work is canceled when the session closes, and
expires when the session does.

If the connection breaks, the outcome is not guessed: the BMDB is asked, as soon
as what was sent cannot commit any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shepherd_core.bmdb.connection import sanitize_for_db
from shepherd_core.domain.errors import Fault
from shepherd_core.domain.errors.bmdb import MachineUnknown, SessionExpired, StatementFailed, WorkConflict
from shepherd_core.domain.machine import HostKeyOrigin, Process, ProviderId, WorkEvent
from shepherd_core.domain.remediation import REBOOT

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from shepherd_core.bmdb.session import Session
    from shepherd_core.domain.remediation import StepKind

CLAIM_LIMIT = 100
"""The most machines that one claim can take; it examines no more due rows than that."""

_UNIQUE_VIOLATION = "23505"
_FOREIGN_KEY_VIOLATION = "23503"


@dataclass(frozen=True, slots=True)
class Work:
    """A machine that this session has locked for one process."""

    machine_id: UUID
    process: Process
    provider_id: ProviderId | None
    host_key: str | None
    """The SSH host key that is pinned."""
    last_interval_seconds: int | None
    """The backoff after the last failure of this process; None: no failure since it last finished."""
    due_at: datetime
    """When the machine became due."""
    host_key_origin: HostKeyOrigin | None = None
    """Where the pinned host key is from."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The result of a claim."""

    work: tuple[Work, ...]
    examined: int
    """
    Number of due rows that were examined, claimed ones included.

    If it exceeds the number claimed, claim again: more machines may be due.
    """
    suspects: int = 0
    """Number of due suspects that are left: machines that may have killed their function."""


def claim(
    session: Session,
    process: Process,
    provider: str,
    limit: int,
    *,
    known: Collection[UUID] = (),
    suspects: bool = False,
    alone: bool = False,
) -> Claim:
    """
    Lock up to *limit* (at most ``CLAIM_LIMIT``) due machines of *provider* for *process*, the longest due first.

    One statement. It skips, and never waits for, machines that another session works
    on, that are in backoff, that are paused or that have a recent heartbeat.
    *known* are the machines that this session has claimed already. With *suspects*,
    lock machines that may have killed their function; otherwise, those that have not.
    *alone*: this function works on nothing else, and *limit* is 1.

    Raises:
        SessionExpired: the deadline passed. Abandon everything.
    """

    def take() -> Claim:
        rows = session.run_once(
            "claim", process=process, provider=provider, limit=limit, suspects=suspects, alone=alone
        )
        if not rows[0][0]:
            raise SessionExpired
        works = tuple(_work(row, process) for row in rows if row[3] is not None)
        return Claim(works, rows[0][1], rows[0][2] - (len(works) if suspects else 0))

    def find() -> Claim:
        rows = session.run("find_unacknowledged_claims", process=process, known=list(known))
        return Claim(tuple(_work(row, process) for row in rows), len(rows))

    return session.repeat_if_unanswered(take, find)


def start_work(session: Session, machine_id: UUID, remark: str) -> Work:
    """
    Lock one machine for its recovery, whether it is due or not; no loop claims it meanwhile.

    *remark* is written to the history: who wants it, and why.

    Raises:
        WorkConflict: a session works on it.
        SessionExpired: the deadline passed.
        MachineUnknown: the BMDB has no such machine.
    """
    conflict = WorkConflict(f"machine {machine_id} is being worked on")
    try:
        rows = session.run_once("start_work", machine_id=machine_id, remark=sanitize_for_db(remark))
    except StatementFailed as error:
        if error.sqlstate == _UNIQUE_VIOLATION:
            raise conflict from error
        if error.sqlstate == _FOREIGN_KEY_VIOLATION:
            message = f"the BMDB has no machine {machine_id}"
            raise MachineUnknown(message) from error
        raise
    if not rows[0][0]:
        raise SessionExpired
    if rows[0][3] is None:
        raise conflict
    return _work(rows[0], Process.RECOVERY)


@dataclass(frozen=True, slots=True)
class AgentStarted:
    """The facts that a finished agent start records."""

    public_key: bytes
    """The agent's Ed25519 public key, 32 bytes."""
    host_key: str | None
    """The SSH host key of the machine that was contacted, to be pinned if none is. None: not compared."""
    host_key_origin: HostKeyOrigin = HostKeyOrigin.FIRST_CONTACT
    """Where the host key is from, if it is pinned now."""


def finish_agent_start(session: Session, done: Mapping[Work, AgentStarted]) -> set[UUID]:
    """
    Record that the agents were started, and return the machines of which that was recorded.

    It is not recorded where another host key is pinned by now: the agent is on some
    other machine, and the next work compares the keys.
    """
    return end(
        session,
        "finish_agent_start",
        WorkEvent.FINISHED,
        list(done),
        public_keys=[facts.public_key.hex() for facts in done.values()],
        host_keys=[facts.host_key for facts in done.values()],
        origins=[facts.host_key_origin for facts in done.values()],
    )


def finish_recovery(
    session: Session,
    done: Sequence[Work],
    boot_wait_seconds: float,
    *,
    grace_seconds: float | None = None,
    cooldown_seconds: float = 0,
    kind: StepKind = REBOOT,
    lost_answers: Mapping[Work, str] | None = None,
) -> set[UUID]:
    """
    Record that a step of this *kind* was taken, and return the machines whose work this ended.

    If it loses the agents, delete them and their heartbeats, and delay the agent
    start by *boot_wait_seconds*. Otherwise the machines are due for recovery
    again after *grace_seconds*, unless their agents report.

    A machine whose agent cannot be started within *grace_seconds* is due for
    recovery again; None: it never is. No recovery is claimed for
    *cooldown_seconds*. If the machines boot, that is recorded; recent reboots count when
    the circuit breaker decides whether too many machines are unhealthy at once.
    *lost_answers* says for some works why it is unknown whether the step was taken.
    """
    causes = lost_answers or {}
    return end(
        session,
        "finish_recovery",
        WorkEvent.FINISHED,
        done,
        causes=[sanitize_for_db(causes[work]) if work in causes else None for work in done],
        boot_wait_seconds=boot_wait_seconds,
        grace_seconds=grace_seconds,
        cooldown_seconds=cooldown_seconds if kind.loses_agent else max(cooldown_seconds, grace_seconds or 0),
        rebooted=kind.reboots,
        loses_agent=kind.loses_agent,
    )


@dataclass(frozen=True, slots=True)
class Failure:
    """The cause of a failure, and for how many seconds this process leaves the machine alone."""

    cause: str
    interval_seconds: int
    fault: Fault = Fault.MACHINE
    not_taken: str | None = None
    """The recovery step that is on record and was certainly not taken."""
    keeps_host_key: bool = False
    """The host key that was pinned when the machine was claimed still holds: it is pinned again if it is not."""


def fail(session: Session, failed: Mapping[Work, Failure]) -> set[UUID]:
    """Record the failures and back off; return the machines whose work this ended. All of one process."""
    return end(
        session,
        "fail",
        WorkEvent.FAILED,
        list(failed),
        causes=[sanitize_for_db(failure.cause) for failure in failed.values()],
        intervals=[failure.interval_seconds for failure in failed.values()],
        host_keys=[work.host_key if failure.keeps_host_key else None for work, failure in failed.items()],
        origins=[work.host_key_origin for work in failed],
        faults=[failure.fault for failure in failed.values()],
        steps=[failure.not_taken for failure in failed.values()],
    )


def cancel(session: Session, undone: Sequence[Work]) -> set[UUID]:
    """Cancel the work and restore the due time; return the machines whose work this ended. All of one process."""
    return end(session, "cancel", WorkEvent.CANCELED, undone, not_befores=[work.due_at for work in undone])


def end(session: Session, statement: str, event: WorkEvent, works: Sequence[Work], **parameters: Any) -> set[UUID]:
    """
    End *works* by *statement*, which writes *event* to the history, and return the machines whose work this ended.

    All are of one process. After a broken connection the statement runs once more, for the works that the first run did
    not end.
    """
    machine_ids, process = [work.machine_id for work in works], works[0].process

    def carry_out() -> list[list[Any]]:
        return session.run_once(statement, machine_ids=machine_ids, process=process, **parameters)

    def carry_out_again() -> list[list[Any]]:
        rows = carry_out()
        return rows + session.run("find_unacknowledged_ends", machine_ids=machine_ids, process=process, event=event)

    return {row[0] for row in session.repeat_if_unanswered(carry_out, carry_out_again)}


def _work(row: Sequence[Any], process: Process) -> Work:
    _, _, _, machine_id, provider_id, host_key, origin, last_interval_seconds, due_at = row
    return Work(
        machine_id,
        process,
        provider_id and ProviderId(provider_id),
        host_key,
        last_interval_seconds,
        due_at,
        origin and HostKeyOrigin(origin),
    )
