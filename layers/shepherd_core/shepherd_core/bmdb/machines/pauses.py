"""Pauses: operators keep the loops from machines, processes or providers for a time."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from shepherd_core.domain.machine import ProviderId
from shepherd_core.domain.record import record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shepherd_core.bmdb.connection import Connection


def pause(  # noqa: PLR0913 - each is a column
    connection: Connection,
    *,
    owner: str,
    reason: str,
    machine_id: UUID | None = None,
    process: str | None = None,
    provider: str | None = None,
    location: str | None = None,
    with_labels: Sequence[str] | None = None,
    seconds: float | None = None,
) -> UUID:
    """
    Pause a machine, a process, a provider, or any combination of them, and return the pause's id.

    With *location* or *with_labels* (as ``Search`` has them), the machines there that have all of them, also
    later ones. With none of them, everything is paused. Work in progress continues; nothing new
    is claimed. Ends after *seconds*, or by ``resume``. The same pause twice is one,
    which ends as was said last.
    """
    where = {"machine_id": machine_id, "process": process, "provider": provider, "location": location}
    labels = with_labels and sorted(with_labels)
    return connection.fetch(UUID, "pause", **where, with_labels=labels, owner=owner, reason=reason, seconds=seconds)[0]


@record
class Pause:
    """A pause of a machine, a process, a provider, or a combination of them."""

    pause_id: UUID
    machine_id: UUID | None
    provider_id: ProviderId | None
    """Of the machine."""
    process: str | None
    provider: str | None
    location: str | None
    with_labels: list[str] | None
    owner: str
    reason: str
    created_at: datetime
    expires_at: datetime | None


def pauses_in_force(connection: Connection) -> list[Pause]:
    """Return the pauses in force, oldest first."""
    return connection.fetch(Pause, "pauses_in_force")


def resume(connection: Connection, pause_id: UUID, owner: str | None = None) -> bool:
    """
    End a pause; its machine can be claimed again at once. False: there is no such pause. May run twice.

    That an operator, *owner*, did so is written to the machine's history.
    """
    return bool(connection.run("resume", pause_id=pause_id, owner=owner))
