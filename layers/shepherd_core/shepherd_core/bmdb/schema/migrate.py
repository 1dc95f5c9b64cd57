"""
The migration runner: ordered files, each applied once.

``migrations/NNNN_name.sql`` are applied in the order of their numbers, each in
one transaction together with its record, so that a killed runner leaves only
whole migrations. Concurrent runners take turns. Never edit a file that was
applied anywhere: its checksum is recorded, and an edited file is refused.

The version of code is the highest number of its migrations. A migration begins
with ``-- Code from version N can use this.`` if older code can go on on the
schema that it leaves, and is then applied before the code that it comes with.
Without that line only its own code can: it is applied after that code, at the
next deployment, and its own code does without it until then.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache, partial
from importlib import resources
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from shepherd_core.domain.errors.bmdb import MigrationRefused, SchemaMismatch, StatementFailed
from shepherd_core.domain.record import record

if TYPE_CHECKING:
    from shepherd_core.bmdb.connection import Connection
    from shepherd_core.domain.clock import Deadline

LOCK_SECONDS = 0.2
"""How long a migration waits for a lock before it begins anew: heartbeats that need the same lock queue behind it."""

_OLDEST_CODE = re.compile(r"-- Code from version (\d+) can use this\.\n")
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

    @property
    def oldest_code(self) -> int:
        """Return the version of the oldest code that can use the schema which this leaves."""
        stated = _OLDEST_CODE.match(self.text)
        return int(stated[1]) if stated else self.version


@cache
def migrations() -> tuple[Migration, ...]:
    """Return the migrations of this code in their order, numbered from 1 without a gap."""
    found = []
    for file in sorted((resources.files(__package__) / "migrations").iterdir(), key=lambda file: file.name):
        match = re.fullmatch(r"(\d{4})_(\w+)\.sql", file.name)
        if match:
            found.append(Migration(int(match[1]), match[2], file.read_text(encoding="utf-8")))
    return tuple(found)


class Code(NamedTuple):
    """The versions of the schema that code can use."""

    needed_schema: int
    """The oldest one: with all migrations that are applied before the code."""
    known_schema: int
    """The newest one that it knows, which is its own version; it can use a newer one that allows this version."""

    @classmethod
    def of(cls, files: tuple[Migration, ...]) -> Code:
        """Return what code with these migrations can use."""
        before = [each.version for each in files if each.oldest_code < each.version]
        return cls(max([files[0].version, *before]), files[-1].version)


@cache
def this_code() -> Code:
    """Return what this code can use."""
    return Code.of(migrations())


@record
class _Applied:
    """A migration that was applied."""

    version: int
    name: str
    checksum: str
    oldest_code: int


def schema_version(connection: Connection) -> int:
    """Return the version of the BMDB's schema; 0 if it was never migrated."""
    return max((each.version for each in _applied(connection)), default=0)


def is_usable(connection: Connection) -> bool:
    """Return whether this code can use the BMDB's schema."""
    applied, code = _applied(connection), this_code()
    return any(each.version >= code.needed_schema for each in applied) and all(
        each.oldest_code <= code.known_schema for each in applied
    )


def mismatch(connection: Connection) -> SchemaMismatch:
    """Return the error that says why this code cannot use the BMDB's schema."""
    code, version = this_code(), schema_version(connection)
    older = version < code.needed_schema
    action = "run `shepherdctl db migrate`" if older else "deploy the code that belongs to it"
    return SchemaMismatch(
        f"the BMDB's schema is version {version}, this code needs version {code.needed_schema}: {action}"
    )


def require(connection: Connection) -> None:
    """
    Check that this code can use the BMDB's schema. For callers that open no session.

    Raises:
        SchemaMismatch: it is older, or newer and does not allow it.
    """
    if not is_usable(connection):
        raise mismatch(connection)


def migrate(
    connection: Connection,
    *,
    running: int | None = None,
    dry_run: bool = False,
    known: tuple[Migration, ...] | None = None,
    deadline: Deadline | None = None,
) -> list[Migration]:
    """
    Apply the missing migrations and return them, in order; an empty list if none is missing.

    *running* is the version of the code that is running, and goes on to: the first
    migration that it could not use waits, and those after it. None: no code runs, as
    on an empty database. May be run at any time, concurrently, and again after it was killed. With
    *dry_run* nothing is changed. *known* replaces the migrations of this code. After
    *deadline* nothing is committed any more.

    Raises:
        SerializationConflict: others held a lock that it needs until the deadline; earlier migrations are complete.
        TimeLimitExceeded: the deadline passed; earlier migrations are complete. Call again.
        MigrationRefused: a file differs from what was applied under its number. Restore it.
        SchemaMismatch: the BMDB is newer than this code and does not allow it, or a migration that this code needs
            would have to wait.
        ConfigError: as ``Connection.require_own_process``.
    """
    files = migrations() if known is None else known
    connection.require_own_process()
    missing = _missing(_applied(connection), files, running)
    if dry_run:
        return missing
    for statement in ("create_schema_migrations", "create_schema_lock", "fill_schema_lock"):
        try:
            connection.run(statement)
        except StatementFailed as error:
            if error.sqlstate not in _MADE_BY_ANOTHER:
                raise
    applied: list[Migration] = []
    apply = partial(_apply_next, connection, files, running, deadline)
    while (migration := connection.transact(apply, deadline)) is not None:
        applied.append(migration)
    return applied


def _apply_next(
    connection: Connection, files: tuple[Migration, ...], running: int | None, deadline: Deadline | None
) -> Migration | None:
    """Apply the first missing migration; may run again. None: nothing is missing."""
    connection.run("take_schema_lock")
    missing = _missing(_applied(connection), files, running)
    if not missing:
        return None
    migration = missing[0]
    connection.script(migration.text)
    connection.run(
        "record_migration",
        version=migration.version,
        name=migration.name,
        checksum=migration.checksum,
        oldest_code=migration.oldest_code,
    )
    if deadline is not None:
        deadline.check()
    return migration


def _applied(connection: Connection) -> list[_Applied]:
    return connection.fetch(_Applied, "applied_migrations") if connection.run("schema_exists") else []


def _missing(applied: list[_Applied], files: tuple[Migration, ...], running: int | None) -> list[Migration]:
    """Return the migrations to apply while code of the version *running* runs. Raises as ``migrate``."""
    known = {migration.version: migration for migration in files}
    for each in applied:
        if each.version in known:
            if known[each.version].checksum != each.checksum:
                message = f"migration {each.version} ({known[each.version].name}) was edited after it was applied"
                raise MigrationRefused(message)
        elif each.oldest_code > max(known, default=0):
            message = (
                f"the BMDB has migration {each.version} ({each.name}), which this code does not know: deploy newer code"
            )
            raise SchemaMismatch(message)
    versions = {each.version for each in applied}
    missing = [migration for version, migration in sorted(known.items()) if version not in versions]
    if running is None or not applied:
        return missing
    now = list(takewhile(lambda each: each.oldest_code <= running, missing))
    reached = max([*versions, *(each.version for each in now)], default=0)
    if reached < (needed := Code.of(files).needed_schema):
        waiting = missing[len(now)]
        message = (
            f"this code needs schema version {needed}, but the code that is running (version {running}) cannot use "
            f"migration {waiting.version} ({waiting.name}): deploy version {waiting.oldest_code} first"
        )
        raise SchemaMismatch(message)
    return now
