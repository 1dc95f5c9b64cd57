"""The console's access to the BMDB: one connection, which it opens when it is needed and again after a failure."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

from shepherd_core.wiring import adapters

from shepherdctl.database import explain_schema_mismatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.settings.functions.bmdb import BmdbSettings

T = TypeVar("T")

_ATTEMPTS = 2
"""Of each statement: few, so that a page soon says that the database does not answer."""


class BmdbReader:
    """The BMDB, for one request at a time."""

    def __init__(self, settings: BmdbSettings) -> None:
        """Connect with *settings*, at the first read."""
        self._settings = settings
        self._connection = adapters.bmdb(settings, attempts=_ATTEMPTS)
        self._lock = threading.Lock()
        host = "on this computer" if settings.bmdb_host.startswith("/") else f"at {settings.bmdb_host}"
        self.name = f"{settings.bmdb_name} {host}"
        """The name of this BMDB, for operators."""

    def read(self, reader: Callable[[Connection], T]) -> T:
        """
        Return the result of *reader*, which reads over the connection.

        Raises:
            SchemaMismatch, BmdbError: as ``shepherdctl.database.bmdb``.
        """
        with self._lock, explain_schema_mismatch(self._settings):
            return reader(self._connection)

    def close(self) -> None:
        """Drop the connection."""
        with self._lock:
            self._connection.close()
