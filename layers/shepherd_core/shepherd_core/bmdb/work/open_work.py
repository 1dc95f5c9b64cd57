"""Lists for operators what is under way: sessions and what they hold, creations, penalties and releases."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from shepherd_core.domain.errors.kinds import FailureKind
from shepherd_core.domain.record import record

if TYPE_CHECKING:
    from shepherd_core.bmdb.connection import Connection


@record
class OpenSession:
    """A session, and the locks that it holds."""

    session_id: UUID
    component_name: str
    runtime_info: str
    created_at: datetime
    deadline: datetime
    alive: bool
    machines: int
    machine_ids: list[UUID]
    """At most ten."""
    provider_locks: list[str]


def open_sessions(connection: Connection, limit: int) -> list[OpenSession]:
    """Return sessions, those that live longest first."""
    return connection.fetch(OpenSession, "open_sessions", limit=limit)


@record
class OpenCreation:
    """A creation that was decided and whose outcome is not recorded."""

    machine_id: UUID
    provider: str
    capacity_id: str | None
    intended_at: datetime


def open_creations(connection: Connection, limit: int) -> list[OpenCreation]:
    """Return the open creations, oldest first."""
    return connection.fetch(OpenCreation, "open_creations", limit=limit)


@record
class Penalty:
    """Capacity that is not used until then, and why."""

    provider: str
    capacity_id: str
    until: datetime
    kind: FailureKind
    cause: str


def penalties(connection: Connection, limit: int) -> list[Penalty]:
    """Return the penalties in force; what ends first comes first."""
    return connection.fetch(Penalty, "penalties", limit=limit)


@record
class OpenRelease:
    """A machine that is being given back to the provider."""

    machine_id: UUID
    provider: str | None
    provider_id: str | None
    asked_at: datetime
    asked_by: str
    reason: str
    accepted_at: datetime | None


def open_releases(connection: Connection, limit: int) -> list[OpenRelease]:
    """Return the machines that are being given back, oldest request first."""
    return connection.fetch(OpenRelease, "open_releases", limit=limit)
