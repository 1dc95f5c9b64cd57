"""
Machines that leave: released to their provider, or forgotten because it has them no more.

What leaves is out of every loop's care and out of the limit. Its row in
``machines`` stays, its history, and a tombstone that says what it was, who had
it leave and why; so nothing that refers to it breaks. All but ``accept`` needs
the provider's lock (``provisioning.take_lock``) and a live session.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shepherd_core.bmdb.connection import sanitize_for_db
from shepherd_core.bmdb.machines import due
from shepherd_core.domain.errors import SessionExpired, WorkConflict

if TYPE_CHECKING:
    from typing import Any
    from uuid import UUID

    from shepherd_core.bmdb.session import Session


@dataclass(frozen=True, slots=True)
class RemovalRequest:
    """On whose behalf a machine leaves, and what its agent's reports mean for that."""

    owner: str
    reason: str
    fresh_seconds: float
    """A heartbeat that is not older than this is in the way."""
    despite_heartbeat: bool = False
    """It is not, for a release."""


def forget(session: Session, provider: str, machine_id: UUID, order: RemovalRequest) -> None:
    """
    Take a machine out of our care that the provider has no more. May run twice.

    Raises:
        WorkConflict: somebody works on it, its agent reports, or the provider has no such machine; nothing was changed.
        SessionExpired: the session or the lock is lost; nothing was changed.
        CommitUnknown: the connection broke again, or what was sent is still under way.
    """
    asked = {"how": "Forgotten", "owner": sanitize_for_db(order.owner), "reason": sanitize_for_db(order.reason)}
    row = _run_decommissioning(
        session, "decommission", provider, machine_id, fresh_seconds=order.fresh_seconds, **asked
    )
    _require_done(row, machine_id)


def remove_released(session: Session, provider: str, machine_id: UUID) -> bool:
    """
    Take a machine out of our care that was released, and that the provider has no more; False: it is not to be yet.

    May run twice. Raises what ``forget`` raises, but for WorkConflict.
    """
    asked = {"how": "Released", "owner": None, "reason": None}
    return bool(_run_decommissioning(session, "decommission", provider, machine_id, fresh_seconds=0, **asked)["done"])


def request_release(session: Session, provider: str, machine_id: UUID, order: RemovalRequest) -> bool:
    """
    Record that a machine is to be released, and put it on hold for the loops; then ask the provider, then ``accept``.

    Return whether that is new: it was not on record before. May run twice. Raises what ``forget`` raises.
    """
    row = _run_decommissioning(
        session,
        "request_release",
        provider,
        machine_id,
        owner=sanitize_for_db(order.owner),
        reason=sanitize_for_db(order.reason),
        fresh_seconds=order.fresh_seconds,
        despite_heartbeat=order.despite_heartbeat,
    )
    _require_done(row, machine_id)
    return not row["known"]


def accept_release(session: Session, machine_id: UUID) -> None:
    """Record that the provider accepted the release: when it has the machine no more, that is gone. May run twice."""
    session.run("accept_release", machine_id=machine_id)


def cancel_release(session: Session, provider: str, machine_id: UUID) -> None:
    """
    Keep a machine after all whose release the provider did not accept: the loops take it up again. May run twice.

    Raises:
        SessionExpired: the session or the lock is lost; nothing was changed.
    """
    _run_decommissioning(session, "cancel_release", provider, machine_id)


def _run_decommissioning(
    session: Session, statement: str, provider: str, machine_id: UUID, **parameters: object
) -> dict[str, Any]:
    """Run one of the statements, with everybody else kept from the machine and its agent, and return its row."""
    connection = session.connection

    def unit() -> dict[str, Any]:
        connection.run("lock_agent", machine_id=machine_id)
        rows = connection.records(statement, **session.key, provider=provider, machine_id=machine_id, **parameters)
        if not rows:
            raise SessionExpired
        return rows[0]

    return session.transact(lambda: due.change(connection, machine_id, unit))


def _require_done(row: dict[str, Any], machine_id: UUID) -> None:
    """
    See that it was done.

    Raises:
        WorkConflict: it was not, and why.
    """
    if row["done"]:
        return
    if row["worked"]:
        message = f"somebody works on machine {machine_id}: see shepherdctl machine show, and try again"
    elif row["heartbeat_seconds"] is not None:
        message = f"the agent of machine {machine_id} reported {row['heartbeat_seconds']:.0f} s ago"
    else:
        message = f"machine {machine_id} is not in the BMDB as one of this provider's"
    raise WorkConflict(message)
