"""
Remediation in the BMDB: the steps that were tried on each machine, and quarantine.

A step is recorded before it is taken, so that it counts even if the function is killed then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from shepherd_core import telemetry
from shepherd_core.bmdb.connection import as_rows
from shepherd_core.bmdb.machines.lookup import MachineBackoff
from shepherd_core.bmdb.work import work
from shepherd_core.domain.errors import NoLongerDue
from shepherd_core.domain.errors.bmdb import SessionExpired
from shepherd_core.domain.errors.kinds import FailureKind
from shepherd_core.domain.machine import Process, WorkEvent
from shepherd_core.domain.record import record
from shepherd_core.domain.records import BadAgent
from shepherd_core.domain.remediation import HistoryLine

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.bmdb.session import Session
    from shepherd_core.bmdb.work.work import Work
    from shepherd_core.domain.backoff import Backoff
    from shepherd_core.domain.remediation import NextStep

    Permit = Callable[[Mapping[str, tuple[int, int]]], set[UUID]]
    """Returns which machines may be interrupted, if so many were in the last hour and in the last six, by location."""


_NOT_LOOKED = "not looked at: its address or its host key is not known"


@record
class RecoveryRecord:
    """The agent and the recovery history of a machine."""

    machine_id: UUID
    now: datetime
    """The database's time."""
    started_at: datetime | None
    """When its agent was started; None: it has none."""
    last_heartbeat_at: datetime | None
    """The last heartbeat of that agent."""
    address: str | None
    """Of the machine, as the provider listed it last."""
    location: str
    """``WHOLE_PROVIDER``: it has none."""
    rebooted_at: datetime | None
    """When it was interrupted last."""
    failed_agent: str | None
    """The SHA-256 of the agent whose answer failed when its start was tried last."""
    failed_kind: FailureKind | None
    failed: bool
    """For good, as its provider says, and it has no agent."""
    history: Sequence[HistoryLine] = ()
    """The recovery events, oldest first."""


def recovery_records(session: Session, works: Sequence[Work]) -> dict[Work, RecoveryRecord]:
    """Return the agent and the recovery history of each machine."""
    machine_ids = [each.machine_id for each in works]
    histories: dict[UUID, list[HistoryLine]] = defaultdict(list)
    for line in session.connection.fetch(HistoryLine, "recovery_history", machine_ids=machine_ids):
        histories[line.machine_id].append(line)
    records = session.connection.fetch(RecoveryRecord, "recovery_records", machine_ids=machine_ids)
    found = {each.machine_id: replace(each, history=histories[each.machine_id]) for each in records}
    return {work: found[work.machine_id] for work in works}


def bad_agents(connection: Connection) -> list[BadAgent]:
    """Return the agents that are at fault for machines that do not come back."""
    return connection.fetch(BadAgent, "bad_agents")


@record
class _Steps:
    location: str
    steps: int
    steps_six_hours: int


def record_attempts(session: Session, moves: Mapping[Work, NextStep]) -> list[Work]:
    """
    Record that these steps are about to be taken, and what was seen before; return the works whose steps may be taken.

    The others are not this session's any more. Steps that lose the SSH host key delete the pinned one, because from now
    on the machine may have another. May run twice.

    Raises:
        SessionExpired: the deadline passed. Take none of the steps.
    """
    return _record(session.fetch, moves, set())


def permit_attempts(session: Session, provider: str, moves: Mapping[Work, NextStep], permit: Permit) -> list[Work]:
    """
    Do the same for machines of *provider*, of which steps interrupt only those that *permit* grants.

    Of the others, the look is recorded alone. Two concurrent permissions never count the same steps. May run twice.
    """
    connection, asked = session.connection, {work.machine_id for work, move in moves.items() if move.interrupts}
    if not asked:
        return record_attempts(session, moves)

    def unit() -> list[Work]:
        connection.run("lock_budget", provider=provider)
        counted = connection.fetch(_Steps, "count_steps", provider=provider)
        held = asked - permit({each.location: (each.steps, each.steps_six_hours) for each in counted})
        return _record(partial(connection.fetch, **session.key), moves, held)

    return session.transact(unit)


def _record(fetch: Callable[..., list[UUID]], moves: Mapping[Work, NextStep], held: Collection[UUID]) -> list[Work]:
    rows = as_rows(
        {
            "machine_id": held_work.machine_id,
            "step": move.step.name,
            "healthy_until": move.healthy_until,
            "loses_host_key": move.step.kind.loses_host_key,
            "reboots": move.step.kind.reboots,
            "looked": move.looked or (_NOT_LOOKED if held_work.machine_id in held else None),
            "seen": move.seen,
            "alive": move.alive,
            "held": held_work.machine_id in held,
            **work.said(move.look_error),
        }
        for held_work, move in moves.items()
    )
    permitted = fetch(UUID, "record_attempts", rows=rows)
    if not permitted:
        raise SessionExpired
    return [work for work in moves if work.machine_id in permitted]


@record
class _Check:
    machine_id: UUID
    reason: str | None
    recovered: bool


def no_longer_due(session: Session, provider: str, works: Collection[Work]) -> dict[Work, NoLongerDue]:
    """
    Return those of *works* whose machines, of *provider*, are not to be recovered any more, and why. One statement.

    Raises:
        SessionExpired: the deadline passed. Touch none of the machines.
    """
    machine_ids = [work.machine_id for work in works]
    rows = session.fetch(_Check, "no_longer_due", machine_ids=machine_ids, provider=provider, process=Process.RECOVERY)
    if not rows:
        raise SessionExpired
    found = {each.machine_id: NoLongerDue(each.reason, recovered=each.recovered) for each in rows if each.reason}
    return {work: found[work.machine_id] for work in works if work.machine_id in found}


def leave_alone(session: Session, reasons: Mapping[Work, Exception], backoff: Backoff) -> set[UUID]:
    """
    End work on machines to which nothing was done, and return those whose work this ended.

    Of the *reasons*, ``NoLongerDue`` is no failure, and ``HeldBack`` says how long the machine waits; after others it
    backs off. A step that the work has put on record was not taken, and the host key that it deleted is pinned again.
    """
    ends: dict[WorkEvent, dict[Work, dict[str, object]]] = defaultdict(dict)
    for held, error in reasons.items():
        if isinstance(error, NoLongerDue):
            event, seconds = WorkEvent.RECOVERED if error.recovered else WorkEvent.CANCELED, error.seconds
        else:
            event, seconds = WorkEvent.FAILED, backoff.next(held.last_interval_seconds)
        known = {"host_key": held.host_key, "origin": held.host_key_origin}
        ends[event][held] = {**work.said(error), **known, "seconds": seconds}
    return set().union(*(work.end(session, "leave_alone", event, rows) for event, rows in ends.items()))


def quarantine(
    session: Session, causes: Mapping[Work, str], kind: FailureKind = FailureKind.STEPS_USED_UP
) -> set[UUID]:
    """End the work by putting the machines into quarantine; return those whose work this ended."""
    rows = {held: {"kind": kind, "cause": cause} for held, cause in causes.items()}
    ended = work.end(session, "quarantine", WorkEvent.FINISHED, rows)
    for held, cause in causes.items():
        if held.machine_id in ended:
            telemetry.warning("machine quarantined", machine_id=held.machine_id, cause=cause)
    return ended


def quarantine_killer(session: Session, suspect: Work) -> bool:
    """Put a machine into quarantine whose functions died because of it; return whether that ended the work."""
    found = session.fetch(str, "cause_of_deaths", machine_id=suspect.machine_id, process=suspect.process)
    return bool(found and quarantine(session, {suspect: found[0]}, FailureKind.FUNCTION_DIED))


def unquarantine(connection: Connection, machine_id: UUID, *, reason: str) -> bool:
    """End the quarantine of a machine, for the *reason* given; return whether there was one. May run twice."""

    def unit() -> bool:
        connection.run("lock_facts", machine_id=machine_id)
        return bool(connection.run("unquarantine", machine_id=machine_id, reason=reason))

    return connection.transact(unit)


def retry(
    connection: Connection, machine_id: UUID, *, reason: str, process: Process | None = None
) -> list[MachineBackoff]:
    """
    End the machine's backoffs, of one process or of all, and return them.

    *reason* is written to the history if a backoff was ended. May run twice.
    """
    return connection.fetch(MachineBackoff, "retry", machine_id=machine_id, process=process, reason=reason)
