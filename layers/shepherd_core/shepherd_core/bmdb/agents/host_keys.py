"""The SSH host keys that operators pin and forget."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shepherd_core.domain.record import record

if TYPE_CHECKING:
    from uuid import UUID

    from shepherd_core.bmdb.connection import Connection


@record
class Pinned:
    """The outcome of pinning a host key."""

    before: str | None
    """The key that was pinned before."""
    pinned: bool
    """Whether this one is pinned now."""


def pin_host_key(
    connection: Connection, machine_id: UUID, host_key: str, *, reason: str, replace: bool = False
) -> Pinned | None:
    """
    Pin the *host_key* that an operator names, ``ssh-ed25519 AAAA...``, in place of another only if *replace*.

    None: the machine is not provided. *reason* is written to the history. May run twice.
    """
    found = connection.fetch(
        Pinned, "pin_host_key", machine_id=machine_id, host_key=host_key, replace=replace, reason=reason
    )
    return found[0] if found else None


def forget_host_key(connection: Connection, machine_id: UUID, reason: str) -> bool:
    """
    Delete the pinned host key: the next takeover pins a new one. False: none was pinned.

    *reason* is written to the history if one was. May run twice.
    """
    return bool(connection.run("forget_host_key", machine_id=machine_id, reason=reason))
