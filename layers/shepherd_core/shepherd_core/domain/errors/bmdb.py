"""Errors of requests to the BMDB. The package draws the whole tree."""

from __future__ import annotations

from shepherd_core.domain.errors import Fault, ShepherdError
from shepherd_core.domain.errors.kinds import FailureKind


class BmdbError(ShepherdError):
    """A request to the BMDB failed."""

    fault = Fault.OURS


class BmdbUnavailable(BmdbError):
    """The BMDB cannot be reached, or the connection to it was lost."""

    kind = FailureKind.BMDB_UNAVAILABLE
    retryable = True


class BmdbUntrusted(BmdbError):
    """The server did not prove over TLS that it is the BMDB."""

    kind = FailureKind.BMDB_UNTRUSTED


class ClockDiffers(BmdbError):
    """The clocks of the database and of the function differ: no time that the database writes can be believed."""

    kind = FailureKind.CLOCK_DIFFERS


class SerializationConflict(BmdbError):
    """The BMDB asks to run the transaction again."""

    kind = FailureKind.SERIALIZATION_CONFLICT
    retryable = True


class CommitUnknown(BmdbError):
    """The connection was lost while committing: read the BMDB before acting again."""

    kind = FailureKind.COMMIT_UNKNOWN


class StatementFailed(BmdbError):
    """The BMDB refused a statement."""

    kind = FailureKind.STATEMENT_FAILED
    DISK_FULL = "53100"
    """The SQLSTATE of a server without room: one of those that a new connection does not help."""

    def __init__(self, message: str, sqlstate: str) -> None:
        self.sqlstate = sqlstate
        super().__init__(message)


class SchemaMismatch(BmdbError):
    """The schema of the BMDB is older or newer than this code supports."""

    kind = FailureKind.SCHEMA_MISMATCH


class MigrationRefused(BmdbError):
    """A migration that was already applied differs from its file."""

    kind = FailureKind.MIGRATION_REFUSED


class RolesRefused(BmdbError):
    """The BMDB does not let its user make or grant the roles of the functions."""

    kind = FailureKind.ROLES_REFUSED


class SessionExpired(BmdbError):
    """The session has expired: none of its results can be committed. Abandon its work."""

    kind = FailureKind.SESSION_EXPIRED


class MachineUnknown(BmdbError):
    """The BMDB knows no such machine."""

    kind = FailureKind.MACHINE_UNKNOWN


class WorkConflict(BmdbError):
    """The machine is already being worked on."""

    kind = FailureKind.WORK_CONFLICT
