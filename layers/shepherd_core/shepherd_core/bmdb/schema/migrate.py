"""
The migration runner: ordered files, each applied once.

``migrations/NNNN_name.sql`` are applied in the order of their numbers, each in
one transaction together with its record, so that a killed runner leaves only
whole migrations. Concurrent runners take turns. Never edit a file that was
applied anywhere: its checksum is recorded, and an edited file is refused.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from shepherd_core.domain.errors.bmdb import MigrationRefused, SchemaMismatch, StatementFailed
from shepherd_core.domain.records import record

if TYPE_CHECKING:
    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.domain.clock import Deadline

_MADE_BY_ANOTHER = {"23505", "42P07", "42710"}  # IF NOT EXISTS loses races against itself


@dataclass(frozen=True, slots=True)
class Migration:
    """One file."""

    version: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        """Return the SHA-256 of the text, in hexadecimal digits."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@cache
def migrations() -> tuple[Migration, ...]:
    """Return the migrations of this code in their order, numbered from 1 without a gap."""
    found = []
    for file in sorted((resources.files(__package__) / "migrations").iterdir(), key=lambda file: file.name):
        match = re.fullmatch(r"(\d{4})_(\w+)\.sql", file.name)
        if match:
            found.append(Migration(int(match[1]), match[2], file.read_text(encoding="utf-8")))
    return tuple(found)


@record
class _Applied:
    """A migration that was applied."""

    version: int
    name: str
    checksum: str


def schema_version(connection: Connection) -> int:
    """Return the version of the BMDB's schema; 0 if it was never migrated."""
    if not connection.run("schema_exists"):
        return 0
    return max((each.version for each in connection.fetch(_Applied, "applied_migrations")), default=0)


def mismatch(connection: Connection) -> SchemaMismatch:
    """Return the error that says how the BMDB's schema differs from the version that this code needs."""
    needed, version = migrations()[-1].version, schema_version(connection)
    action = "run `shepherdctl db migrate`" if version < needed else "deploy the code that belongs to it"
    return SchemaMismatch(f"the BMDB's schema is version {version}, this code needs version {needed}: {action}")


def require(connection: Connection) -> None:
    """
    Check that the BMDB's schema has the version of this code. For callers that open no session.

    Raises:
        SchemaMismatch: it is older or newer.
    """
    if schema_version(connection) != migrations()[-1].version:
        raise mismatch(connection)


def migrate(
    connection: Connection,
    *,
    dry_run: bool = False,
    known: tuple[Migration, ...] | None = None,
    deadline: Deadline | None = None,
) -> list[Migration]:
    """
    Apply the missing migrations and return them, in order; an empty list if none is missing.

    May be run at any time, concurrently, and again after it was killed. With
    *dry_run* nothing is changed. *known* replaces the migrations of this code. After
    *deadline* nothing is committed any more.

    Raises:
        TimeLimitExceeded: the deadline passed; earlier migrations are complete. Call again.
        MigrationRefused: a file differs from what was applied under its number. Restore it.
        SchemaMismatch: the BMDB is newer than this code.
        ConfigError: as ``Connection.require_own_process``.
    """
    files = migrations() if known is None else known
    connection.require_own_process()
    if dry_run:
        return _missing(connection, files) if connection.run("schema_exists") else list(files)
    for statement in ("create_schema_migrations", "create_schema_lock", "fill_schema_lock"):
        try:
            connection.run(statement)
        except StatementFailed as error:
            if error.sqlstate not in _MADE_BY_ANOTHER:
                raise
    applied: list[Migration] = []
    while (migration := connection.transact(lambda: _apply_next(connection, files, deadline))) is not None:
        applied.append(migration)
    return applied


def _apply_next(connection: Connection, files: tuple[Migration, ...], deadline: Deadline | None) -> Migration | None:
    """Apply the first missing migration; may run again. None: nothing is missing."""
    connection.run("take_schema_lock")
    missing = _missing(connection, files)
    if not missing:
        return None
    migration = missing[0]
    connection.script(migration.text)
    connection.run("record_migration", version=migration.version, name=migration.name, checksum=migration.checksum)
    if deadline is not None:
        deadline.check()
    return migration


def _missing(connection: Connection, files: tuple[Migration, ...]) -> list[Migration]:
    known = {migration.version: migration for migration in files}
    applied = connection.fetch(_Applied, "applied_migrations")
    for each in applied:
        if each.version not in known:
            message = (
                f"the BMDB has migration {each.version} ({each.name}), which this code does not know: deploy newer code"
            )
            raise SchemaMismatch(message)
        if known[each.version].checksum != each.checksum:
            message = f"migration {each.version} ({known[each.version].name}) was edited after it was applied"
            raise MigrationRefused(message)
    versions = {each.version for each in applied}
    return [migration for version, migration in sorted(known.items()) if version not in versions]
