"""
Overrides: what an operator lets the Recoverer do although it holds back.

An override lets a number of machines through, at one location of a provider or
at all of them, until it ends. ``apply`` chooses them; from then on claims hand
them out, and count them no more, however often one is taken and whoever dies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shepherd_core.bmdb.connection import sanitize_for_db
from shepherd_core.domain.errors import CommitUnknown, SessionExpired

if TYPE_CHECKING:
    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.bmdb.session import Session
    from shepherd_core.bmdb.work.work import HealthTimeouts


@dataclass(frozen=True, slots=True)
class AppliedOverride:
    """What an override lets be claimed."""

    location: str
    owner: str
    reason: str
    left: int
    """Machines that it may let through besides."""
    new: int
    """Machines that it lets through since now."""
    due: int
    """Machines that it lets through and that are due now, the new ones among them."""


def apply(session: Session, provider: str, timeouts: HealthTimeouts) -> list[AppliedOverride]:
    """
    Let machines through that are due and held back, as far as overrides allow, and return by which. May run twice.

    Raises:
        SessionExpired: the deadline passed.
    """
    parameters = {"session_id": session.session_id, "provider": provider, **timeouts.parameters()}
    wanted = (
        "session_id",
        "provider",
        "effective_heartbeat_timeout_seconds",
        "effective_startup_timeout_seconds",
        "min_overdue_seconds",
    )
    parameters = {name: parameters[name] for name in wanted}
    try:
        rows = session.connection.run("apply_overrides", **parameters)
    except CommitUnknown:
        rows = session.connection.run("apply_overrides", **parameters)
    if not rows[0][0]:
        raise SessionExpired
    return [AppliedOverride(*row[1:]) for row in rows if row[1] is not None]


def override(
    connection: Connection, *, provider: str, location: str, machines: int, owner: str, reason: str, seconds: float
) -> dict[str, Any] | None:
    """
    Let so many machines be recovered there, *location* or ``WHOLE``, for so many seconds, also where that is held back.

    Returns when that began and ends, or None: there is such an override already.
    """

    def unit() -> list[dict[str, Any]]:
        rows = connection.records(
            "override_recovery",
            provider=provider,
            location=location,
            machines=machines,
            owner=sanitize_for_db(owner),
            reason=sanitize_for_db(reason),
            seconds=seconds,
        )
        connection.run("delete_override_machines")
        return rows

    return next(iter(connection.transact(unit)), None)


def withdraw(connection: Connection, provider: str, location: str) -> dict[str, Any] | None:
    """End the override there, and return what it was; None: there is none. Work that is under way goes on."""
    return next(iter(connection.records("withdraw_override", provider=provider, location=location)), None)


def overrides(connection: Connection) -> list[dict[str, Any]]:
    """Return the overrides in force; also those that have let all their machines through, which they do still."""
    return connection.records("recovery_overrides")
