"""The kinds of failures: their registered names, by which the BMDB, rules and operators know them."""

from __future__ import annotations

from enum import StrEnum


class FailureKind(StrEnum):
    """
    What failed. Each class of error that is raised names its kind, which stays the same when the class is renamed.

    The domain ``failure_kind`` of the BMDB lists the same names.
    """

    CONFIG_ERROR = "config-error"
    EVENT_INVALID = "event-invalid"
    TIME_LIMIT_EXCEEDED = "time-limit-exceeded"
    ANSWER_UNDELIVERED = "answer-undelivered"
    BMDB_UNAVAILABLE = "bmdb-unavailable"
    BMDB_UNTRUSTED = "bmdb-untrusted"
    SERIALIZATION_CONFLICT = "serialization-conflict"
    COMMIT_UNKNOWN = "commit-unknown"
    STATEMENT_FAILED = "statement-failed"
    SCHEMA_MISMATCH = "schema-mismatch"
    MIGRATION_REFUSED = "migration-refused"
    ROLES_REFUSED = "roles-refused"
    SESSION_EXPIRED = "session-expired"
    NO_LONGER_DUE = "no-longer-due"
    MACHINE_UNKNOWN = "machine-unknown"
    WORK_CONFLICT = "work-conflict"
    PROVIDER_UNAVAILABLE = "provider-unavailable"
    PROVIDER_NOT_ASKED = "provider-not-asked"
    PROVIDER_REFUSED = "provider-refused"
    PROVIDER_UNUSABLE = "provider-unusable"
    PROVIDER_FORBIDDEN = "provider-forbidden"
    MACHINE_NOT_FOUND = "machine-not-found"
    CAPACITY_TAKEN = "capacity-taken"
    NOT_SUPPORTED = "not-supported"
    LISTING_INVALID = "listing-invalid"
    DRIFT_LIMIT_EXCEEDED = "drift-limit-exceeded"
    NO_ADDRESS = "no-address"
    SSH_REFUSED = "ssh-refused"
    SSH_TIMED_OUT = "ssh-timed-out"
    SSH_AUTHENTICATION_FAILED = "ssh-authentication-failed"
    HOST_KEY_UNKNOWN = "host-key-unknown"
    SSH_HOST_KEY_CHANGED = "ssh-host-key-changed"
    SSH_CONNECTION_LOST = "ssh-connection-lost"
    SSH_FAILED = "ssh-failed"
    SSH_MISBEHAVED = "ssh-misbehaved"
    SSH_OUT_OF_RESOURCES = "ssh-out-of-resources"
    SSH_FORK_SERVER_LOST = "ssh-fork-server-lost"
    SSH_UPLOAD_FAILED = "ssh-upload-failed"
    AGENT_EXITED = "agent-exited"
    MALFORMED_ANSWER = "malformed-answer"
    WRONG_KEY_LENGTH = "wrong-key-length"
    WRONG_INIT_MESSAGE = "wrong-init-message"
    AGENT_REFUSED = "agent-refused"
    SECRET_MISSING = "secret-missing"  # noqa: S105 - not a password
    SECRET_UNAVAILABLE = "secret-unavailable"  # noqa: S105 - not a password
    AGENT_MISMATCH = "agent-mismatch"
    SOURCE_INVALID = "source-invalid"
    SOURCE_MISSING = "source-missing"
    SOURCE_UNAVAILABLE = "source-unavailable"
    FUNCTION_DIED = "function-died"
    """A function was killed or cut off while it worked on the machine."""
    STEPS_USED_UP = "steps-used-up"
    """No step of the remediation policy is left for the machine."""
    UNEXPECTED = "unexpected"
    """Any other exception: a defect of Shepherd."""
