"""
Decommissioning: machines that are released to their provider, or forgotten because it no longer has them.

No loop works on a decommissioned machine, and it does not count towards the
limit. Its row in ``machines`` and its history stay, with a tombstone that says
what it was, who decommissioned it and why; so no reference to it breaks. All
functions but ``accept_release`` require the provider's lock
(``provisioning.take_lock``) and a live session.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shepherd_core.bmdb.work.work import let_go, lock_machine
from shepherd_core.domain.errors.bmdb import SessionExpired, WorkConflict
from shepherd_core.domain.machine import Process
from shepherd_core.domain.record import record

if TYPE_CHECKING:
    from uuid import UUID

    from shepherd_core.bmdb.session import Session


@dataclass(frozen=True, slots=True)
class RemovalRequest:
    """An operator's request to remove a machine: owner, reason, and whether a recent heartbeat prevents it."""

    owner: str
    reason: str
    fresh_seconds: float
    """A heartbeat younger than this prevents the removal."""
    despite_heartbeat: bool = False
    """A recent heartbeat does not prevent a release."""


@record
class _Outcome:
    """The outcome of one of the statements."""

    done: bool
    heartbeat_seconds: float | None = None
    """Since the last heartbeat; None: there was none."""
    release_on_record: bool = False


def forget(session: Session, provider: str, machine_id: UUID, order: RemovalRequest) -> None:
    """
    Decommission a machine that the provider no longer has. May run twice.

    Raises:
        WorkConflict: a session works on it, its agent reports, or the provider has no such machine; nothing changed.
        SessionExpired: the session or the lock is lost; nothing was changed.
        CommitUnknown: the connection broke again, or what was sent is still running.
    """
    asked = {"how": "Forgotten", "owner": order.owner, "reason": order.reason}
    row = _run_locked(session, "decommission", provider, machine_id, fresh_seconds=order.fresh_seconds, **asked)
    _require_done(row, machine_id)


def remove_released(session: Session, provider: str, machine_id: UUID) -> bool:
    """
    Decommission a released machine that the provider no longer has; False: it may not be removed yet.

    May run twice. Raises as ``forget``, except WorkConflict.
    """
    asked = {"how": "Released", "owner": None, "reason": None}
    try:
        row = _run_locked(session, "decommission", provider, machine_id, fresh_seconds=0, **asked)
    except WorkConflict:
        return False
    return row.done


def request_release(session: Session, provider: str, machine_id: UUID, order: RemovalRequest) -> bool:
    """
    Record that a machine is to be released, and pause it for all loops.

    Then ask the provider, then call ``accept_release``. Returns False if the
    request was on record before. May run twice. Raises as ``forget``.
    """
    row = _run_locked(
        session,
        "request_release",
        provider,
        machine_id,
        owner=order.owner,
        reason=order.reason,
        fresh_seconds=order.fresh_seconds,
        despite_heartbeat=order.despite_heartbeat,
    )
    _require_done(row, machine_id)
    return not row.release_on_record


def accept_release(session: Session, machine_id: UUID) -> None:
    """
    Record that the provider accepted the release. May run twice.

    The machine is removed when the provider no longer lists it.
    """
    session.run("accept_release", machine_id=machine_id)


def cancel_release(session: Session, provider: str, machine_id: UUID, order: RemovalRequest | None = None) -> None:
    """
    Cancel a release that the provider has not accepted: the loops work on the machine again. May run twice.

    The owner and the reason of *order* are written to the machine's history.

    Raises:
        SessionExpired: the session or the lock is lost; nothing was changed.
    """
    reason = None if order is None else f"{order.owner}: {order.reason}"
    _run_decommissioning(session, "cancel_release", provider, machine_id, reason=reason)


def _run_locked(session: Session, statement: str, provider: str, machine_id: UUID, **parameters: object) -> _Outcome:
    """
    Lock the machine, run one of the statements, give up the lock, and return its row.

    The lock is committed first, so that the statement sees what its last holder did.
    """
    lock_machine(session, Process.REMOVAL, machine_id)
    try:
        return _run_decommissioning(session, statement, provider, machine_id, **parameters)
    finally:
        let_go(session)


def _run_decommissioning(
    session: Session, statement: str, provider: str, machine_id: UUID, **parameters: object
) -> _Outcome:
    """Run one of the statements under the lock on the machine's facts, and return its row."""
    connection = session.connection

    def unit() -> _Outcome:
        connection.run("lock_facts", machine_id=machine_id)
        asked = {**session.key, **parameters, "provider": provider, "machine_id": machine_id}
        rows = connection.fetch(_Outcome, statement, **asked)
        if not rows:
            raise SessionExpired
        return rows[0]

    return session.transact(unit)


def _require_done(row: _Outcome, machine_id: UUID) -> None:
    """
    Check that the statement did what was asked.

    Raises:
        WorkConflict: it did not; the message says why.
    """
    if row.done:
        return
    if row.heartbeat_seconds is not None:
        message = f"the agent of machine {machine_id} reported {row.heartbeat_seconds:.0f} s ago"
    else:
        message = f"machine {machine_id} is not in the BMDB as one of this provider's"
    raise WorkConflict(message)
