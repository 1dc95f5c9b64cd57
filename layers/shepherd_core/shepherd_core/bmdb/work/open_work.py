"""Lists for operators what is under way: sessions and what they hold, creations, penalties and releases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shepherd_core.bmdb.connection import Connection


def open_sessions(connection: Connection, limit: int) -> list[dict[str, Any]]:
    """Return sessions, those that live longest first, with the machines and the provider locks that they hold."""
    return connection.records("open_sessions", limit=limit)


def open_creations(connection: Connection, limit: int) -> list[dict[str, Any]]:
    """Return the creations that were decided and whose outcome is not recorded, oldest first."""
    return connection.records("open_creations", limit=limit)


def penalties(connection: Connection, limit: int) -> list[dict[str, Any]]:
    """Return the capacity that is under a penalty, with its end and cause; what ends first comes first."""
    return connection.records("penalties", limit=limit)


def open_releases(connection: Connection, limit: int) -> list[dict[str, Any]]:
    """Return the machines that are being given back to the provider, oldest request first."""
    return connection.records("open_releases", limit=limit)
