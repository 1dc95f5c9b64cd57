"""The SSH host keys that operators pin and forget."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shepherd_core.bmdb.connection import sanitize_for_db

if TYPE_CHECKING:
    from uuid import UUID

    from shepherd_core.bmdb.connection import Connection


def pin_host_key(
    connection: Connection, machine_id: UUID, host_key: str, *, reason: str, replace: bool = False
) -> tuple[str | None, bool] | None:
    """
    Pin the *host_key* that an operator names, ``ssh-ed25519 AAAA...``, in place of another only if *replace*.

    Returns the key that was pinned before, and whether this one is now; None: the
    machine is not provided. *reason* is written to the history. May run twice.
    """
    rows = connection.run(
        "pin_host_key", machine_id=machine_id, host_key=host_key, replace=replace, reason=sanitize_for_db(reason)
    )
    return (rows[0][0], rows[0][1]) if rows else None


def forget_host_key(connection: Connection, machine_id: UUID, reason: str) -> bool:
    """
    Delete the pinned host key: the next takeover pins a new one. False: none was pinned.

    *reason* is written to the history if one was. May run twice.
    """
    return bool(connection.run("forget_host_key", machine_id=machine_id, reason=sanitize_for_db(reason)))
