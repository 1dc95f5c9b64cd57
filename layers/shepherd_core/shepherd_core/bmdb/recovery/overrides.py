"""
Overrides, by which an operator lets the Recoverer work although recovery is suspended.

An override lets a number of machines through, at one location of a provider or
at all of them, until it expires. ``apply`` chooses the machines. From then on
claims take them, and they are not counted again, however often they are claimed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shepherd_core.bmdb.connection import sanitize_for_db
from shepherd_core.domain.errors.bmdb import SessionExpired

if TYPE_CHECKING:
    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.bmdb.session import Session


@dataclass(frozen=True, slots=True)
class AppliedOverride:
    """An override, and the machines that it lets through."""

    location: str
    owner: str
    reason: str
    left: int
    """Number of machines that it may still let through."""
    new: int
    """Number of machines that it lets through since this call."""
    due: int
    """Number of machines that it lets through and that are due now, new ones included."""


def apply(session: Session, provider: str) -> list[AppliedOverride]:
    """
    Let machines through that are due where recovery is suspended or SSH has an outage, as far as overrides allow.

    May run twice.

    Returns the overrides that have due machines.

    Raises:
        SessionExpired: the deadline passed.
    """
    rows = session.run("apply_overrides", provider=provider)
    if not rows[0][0]:
        raise SessionExpired
    return [AppliedOverride(*row[1:]) for row in rows if row[1] is not None]


def override(
    connection: Connection, *, provider: str, location: str, machines: int, owner: str, reason: str, seconds: float
) -> dict[str, Any] | None:
    """
    Let *machines* machines be recovered at *location*, or with ``WHOLE_PROVIDER`` anywhere, during a suspension.

    It ends after *seconds*. Returns when it began and ends, or None: there is such
    an override already.
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
        connection.run("recheck_unreached_machines", provider=provider)
        # Last, because a pass holds due rows when it waits for the policy.
        connection.run("recheck_all_machines", provider=provider)
        return rows

    return next(iter(connection.transact(unit)), None)


def withdraw(connection: Connection, provider: str, location: str) -> dict[str, Any] | None:
    """End the override there, and return what it was; None: there is none. Work in progress continues."""
    return next(iter(connection.records("withdraw_override", provider=provider, location=location)), None)


def overrides(connection: Connection) -> list[dict[str, Any]]:
    """Return the overrides in force, also those that are used up: their machines are still let through."""
    return connection.records("recovery_overrides")
