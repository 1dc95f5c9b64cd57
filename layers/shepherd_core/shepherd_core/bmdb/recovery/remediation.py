"""
Remediation in the BMDB: the steps that were tried on each machine, and quarantine.

A step is recorded before it is taken (``record_attempts``), so that it counts
even if the function is killed then. Just before it is taken, ``no_longer_due``
checks whether it is still needed. The work then ends by ``work.finish_recovery``,
``work.fail``, ``end_unneeded`` or ``quarantine``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from shepherd_core.bmdb.connection import sanitize_for_db
from shepherd_core.bmdb.work import work
from shepherd_core.domain.budget import WHOLE_PROVIDER
from shepherd_core.domain.errors import Fault, NoLongerDue
from shepherd_core.domain.errors.bmdb import SessionExpired
from shepherd_core.domain.errors.kinds import FailureKind
from shepherd_core.domain.machine import Process, WorkEvent
from shepherd_core.domain.remediation import AgentState, HistoryLine

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.bmdb.session import Session
    from shepherd_core.bmdb.work.work import Work
    from shepherd_core.domain.errors import HeldBack
    from shepherd_core.domain.remediation import NextStep

    Permit = Callable[[Mapping[str, tuple[int, int]]], Collection[UUID]]
    """
    Returns the machines that may be interrupted, from how many were in the last hour and in the last six, by location.
    """


_NOT_LOOKED = "not looked at: its address or its host key is not known"


@dataclass(frozen=True, slots=True)
class RecoveryRecord:
    """The agent and the recovery history of a machine."""

    now: datetime
    """The database's time."""
    started_at: datetime | None
    """When its agent was started; None: it has none."""
    last_heartbeat_at: datetime | None
    """The last heartbeat of that agent."""
    address: str | None
    """Of the machine, as the provider listed it last."""
    location: str = WHOLE_PROVIDER
    history: list[HistoryLine] = field(default_factory=list)
    """The recovery events, oldest first."""


def recovery_records(session: Session, works: Sequence[Work]) -> dict[Work, RecoveryRecord]:
    """Return the agent and the recovery history of each machine."""
    found: dict[UUID, RecoveryRecord] = {}
    for row in session.connection.records("recovery_records", machine_ids=[each.machine_id for each in works]):
        known = found.setdefault(
            row["machine_id"],
            RecoveryRecord(
                row["now"],
                row["agent_started_at"],
                row["agent_heartbeat_at"],
                row["provider_ip_address"],
                row["provider_location"] or WHOLE_PROVIDER,
            ),
        )
        if row["event"] is not None:
            known.history.append(_line(row))
    return {work: found[work.machine_id] for work in works}


def _line(row: Mapping[str, Any]) -> HistoryLine:
    return HistoryLine(
        WorkEvent(row["event"]),
        row["timestamp"],
        row["step"],
        kind=row["kind"] and FailureKind(row["kind"]),
        fault=row["fault"] and Fault(row["fault"]),
        seen=row["seen"] and AgentState(row["seen"]),
        others_taken=row["others_taken"],
        session_id=row["session_id"],
    )


def record_attempts(session: Session, moves: Mapping[Work, NextStep]) -> list[Work]:
    """
    Record that these steps are about to be taken, and what was seen before; return the works whose steps may be taken.

    The others are not this session's any more, or their steps are ``held``. May run
    twice. Steps that lose the SSH host key delete the pinned one, because from now
    on the machine may have another.

    Raises:
        SessionExpired: the deadline passed. Take none of the steps.
    """
    return _record_attempts(session.records, moves)


def permit_attempts(session: Session, provider: str, moves: Mapping[Work, NextStep], permit: Permit) -> list[Work]:
    """
    Do the same for steps that interrupt machines of *provider*, as far as *permit* lets them; the others are held.

    Two concurrent permissions never count the same steps. May run twice.
    """
    connection = session.connection

    def unit() -> list[Work]:
        connection.run("lock_budget", provider=provider)
        rows = connection.records("count_steps", provider=provider)
        granted = permit({row["location"]: (row["steps"], row["steps_six_hours"]) for row in rows})
        held = {
            work: move if work.machine_id in granted else replace(move, held=True, looked=move.looked or _NOT_LOOKED)
            for work, move in moves.items()
        }
        return _record_attempts(partial(connection.records, **session.key), held)

    return session.transact(unit)


def _record_attempts(run: Callable[..., list[dict[str, Any]]], moves: Mapping[Work, NextStep]) -> list[Work]:
    skipped = [(work.machine_id, step, cause) for work, move in moves.items() for step, cause in move.skipped]
    failed = work.causes([move.look_error for move in moves.values()])
    rows = run(
        "record_attempts",
        machine_ids=[work.machine_id for work in moves],
        steps=[move.step.name for move in moves.values()],
        healthy_untils=[move.healthy_until for move in moves.values()],
        concludes=[move.concludes for move in moves.values()],
        lose_host_key=[move.step.kind.loses_host_key for move in moves.values()],
        reboots=[move.step.kind.reboots for move in moves.values()],
        looked=[move.looked for move in moves.values()],
        seen=[move.seen for move in moves.values()],
        kinds=failed["kinds"],
        faults=failed["faults"],
        alive=[move.alive for move in moves.values()],
        held=[move.held for move in moves.values()],
        skipped_ids=[machine_id for machine_id, _, _ in skipped],
        skipped_steps=[step for _, step, _ in skipped],
        skipped_causes=[cause for _, _, cause in skipped],
    )
    if not rows[0]["sessions"]:
        raise SessionExpired
    permitted = {row["machine_id"] for row in rows if row["permitted"]}
    return [work for work in moves if work.machine_id in permitted]


def no_longer_due(session: Session, provider: str, works: Sequence[Work]) -> dict[Work, NoLongerDue]:
    """
    Return those of *works* whose machines, of *provider*, are not to be recovered any more, and why. One statement.

    It evaluates the machines as the claim does.

    Raises:
        SessionExpired: the deadline passed. Touch none of the machines.
    """
    rows = session.run(
        "no_longer_due",
        machine_ids=[work.machine_id for work in works],
        provider=provider,
        process=Process.RECOVERY,
    )
    if not rows[0][0]:
        raise SessionExpired
    found = {machine_id: (reason, recovered) for _, machine_id, reason, recovered in rows}
    lost = ("another session works on the machine", False)
    reasons = {work: found.get(work.machine_id, lost) for work in works}
    return {work: NoLongerDue(reason, recovered=recovered) for work, (reason, recovered) in reasons.items() if reason}


@dataclass(frozen=True, slots=True)
class Unneeded:
    """Why work ends before anything was done to its machine."""

    reason: str
    recovered: bool
    """The machine's agent reports; else the work is canceled."""
    not_taken: str | None = None
    """The recovery step that is on record."""
    keeps_host_key: bool = False
    """The host key that was pinned when the machine was claimed still holds: it is pinned again if it is not."""


def end_unneeded(session: Session, unneeded: Mapping[Work, Unneeded]) -> set[UUID]:
    """End works that ``no_longer_due`` returned, and return the machines whose work this ended."""
    ended: set[UUID] = set()
    for event, recovered in ((WorkEvent.RECOVERED, True), (WorkEvent.CANCELED, False)):
        given = {work: each for work, each in unneeded.items() if each.recovered is recovered}
        if given:
            ended |= work.end(
                session,
                "end_unneeded_recovery",
                event,
                list(given),
                ended_as=event,
                reasons=[each.reason for each in given.values()],
                steps=[each.not_taken for each in given.values()],
                host_keys=[held.host_key if each.keeps_host_key else None for held, each in given.items()],
                origins=[held.host_key_origin for held in given],
            )
    return ended


def hold_back(session: Session, held: Mapping[Work, HeldBack]) -> set[UUID]:
    """End works whose steps the budget refused, and return the machines whose work this ended."""
    return work.end(
        session,
        "hold_back",
        WorkEvent.CANCELED,
        list(held),
        causes=[str(each) for each in held.values()],
        wait_seconds=[each.seconds for each in held.values()],
    )


def quarantine(
    session: Session, causes: Mapping[Work, str], kind: FailureKind = FailureKind.STEPS_USED_UP
) -> set[UUID]:
    """End the work by putting the machines into quarantine; return those whose work this ended."""
    return work.end(
        session,
        "quarantine",
        WorkEvent.FINISHED,
        list(causes),
        kind=kind,
        causes=list(causes.values()),
    )


def quarantine_killer(session: Session, suspect: Work) -> bool:
    """
    Put a machine into quarantine whose functions died because of it; return whether that ended the work.

    ``cause_of_deaths`` says what proves it.
    """
    found = session.run("cause_of_deaths", machine_id=suspect.machine_id, process=suspect.process)
    return bool(found and quarantine(session, {suspect: found[0][0]}, FailureKind.FUNCTION_DIED))


def unquarantine(connection: Connection, machine_id: UUID, *, reason: str) -> dict[str, Any]:
    """
    End the quarantine of a machine; return when and why it began, or nothing if there was none.

    A new agent is started on the machine first. If that fails for the grace of the
    Recoverer's policy, recovery starts with a look at the machine and the first
    step. *reason* is written to the history. May run twice.
    """

    def unit() -> list[dict[str, Any]]:
        connection.run("lock_facts", machine_id=machine_id)
        return connection.records("unquarantine", machine_id=machine_id, reason=sanitize_for_db(reason))

    return next(iter(connection.transact(unit)), {})


def retry(
    connection: Connection, machine_id: UUID, *, reason: str, process: Process | None = None
) -> list[dict[str, Any]]:
    """
    End the machine's backoffs, of one process or of all; return them: ``process``, ``until``, ``kind``, ``cause``.

    *reason* is written to the history if a backoff was ended. May run twice.
    """
    return connection.records("retry", machine_id=machine_id, process=process, reason=sanitize_for_db(reason))
