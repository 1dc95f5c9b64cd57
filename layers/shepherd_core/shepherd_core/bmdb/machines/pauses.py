"""Pauses: operators keep the loops from machines, processes or providers for a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uuid import UUID

    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.domain.machine import Process


def pause(
    connection: Connection,
    *,
    owner: str,
    reason: str,
    machine_id: UUID | None = None,
    process: Process | None = None,
    provider: str | None = None,
    seconds: float | None = None,
) -> UUID:
    """
    Pause a machine, a process, a provider, or any combination of them, and return the pause's id.

    With none of them, everything is paused. Work in progress continues; nothing new
    is claimed. Ends after *seconds*, or by ``resume``.
    """
    rows = connection.run(
        "pause",
        machine_id=machine_id,
        process=process,
        provider=provider,
        owner=owner,
        reason=reason,
        seconds=seconds,
    )
    found: UUID = rows[0][0]
    return found


def pauses_in_force(connection: Connection) -> list[dict[str, Any]]:
    """Return the pauses in force, oldest first."""
    return connection.records("pauses_in_force")


def resume(connection: Connection, pause_id: UUID, owner: str | None = None) -> bool:
    """
    End a pause; its machine can be claimed again at once. False: there is no such pause. May run twice.

    That an operator, *owner*, did so is written to the machine's history.
    """
    return bool(connection.run("resume", pause_id=pause_id, owner=owner))
