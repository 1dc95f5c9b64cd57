"""
The errors that Shepherd raises.

    ShepherdError
    ├── ConfigError                  the settings are wrong; lists every fault
    ├── EventInvalid                 the event of an invocation is wrong
    ├── TimeLimitExceeded            a piece of work used up its time
    ├── AnswerUndelivered            (retryable) CloudFormation did not accept the answer
    ├── NoLongerDue                  the machine must not be recovered any more
    │   └── HeldBack                 its step waits for the budget of recovery
    ├── BmdbError
    │   ├── BmdbUnavailable          (retryable) not reached, or connection lost
    │   ├── BmdbUntrusted            no TLS, or the wrong certificate
    │   ├── ClockDiffers             its clock and the function's disagree
    │   ├── SerializationConflict    (retryable) the database asks to try again
    │   ├── CommitUnknown            connection lost while committing
    │   ├── StatementFailed          any other refusal by the database
    │   ├── SchemaMismatch           database older or newer than this code
    │   ├── MigrationRefused         an applied migration file was edited
    │   ├── RolesRefused             the database user may not make or grant the roles
    │   ├── SessionExpired           the session's deadline passed
    │   ├── MachineUnknown           the BMDB knows no such machine
    │   └── WorkConflict             the machine is already being worked on
    ├── ProviderError
    │   ├── ProviderUnavailable      (retryable) may work later
    │   │   └── ProviderNotAsked     (retryable) it failed for other machines just before
    │   ├── ProviderRefused          permanent: something must be changed first
    │   │   └── ProviderUnusable     credentials or settings are wrong
    │   │       └── ProviderForbidden  this request is forbidden; others may not be
    │   ├── MachineNotFound          the provider does not know that machine
    │   ├── CapacityTaken            another machine occupies the capacity
    │   ├── NotSupported             this provider cannot do that
    │   └── ListingInvalid           the listing cannot be trusted
    ├── DriftLimitExceeded           provider and BMDB disagree on too many machines
    ├── MachineError                 one machine could not be worked on
    │   ├── NoAddress                the provider names no address for it
    │   ├── HostKeyUnknown           its SSH host key is not known, as the settings require
    │   ├── SshError
    │   │   ├── SshRefused           nothing listens there
    │   │   ├── SshTimedOut          no answer in time
    │   │   ├── SshAuthenticationFailed
    │   │   ├── SshHostKeyChanged    not the key that was pinned
    │   │   ├── SshConnectionLost    broke in the middle
    │   │   ├── SshMisbehaved        sent what no SSH server sends
    │   │   ├── SshUploadFailed      disk full, not permitted, ...
    │   │   ├── SshForkServerLost    our own process for SSH ended
    │   │   └── SshOutOfResources    the function has no socket or memory left
    │   └── TakeoverFailed
    │       ├── AgentExited          exit status other than 0
    │       ├── MalformedAnswer      not a TakeoverResponse
    │       ├── WrongKeyLength       the key is not 32 bytes long
    │       ├── WrongInitMessage     answered for something else
    │       └── AgentRefused         the agent itself reported an error
    ├── SecretError
    │   ├── SecretMissing            no such parameter, or not permitted
    │   └── SecretUnavailable        (retryable)
    └── SourceError
        ├── AgentMismatch            the agent's file has another SHA-256 than the settings say
        ├── SourceMissing            no such file or object, or not permitted
        └── SourceUnavailable        (retryable)

Errors of libraries do not leave the module that called the library: they are
raised as one of these, with the original as ``__cause__``. The text of an error
never holds a secret. Use ``error.retryable`` and ``error.fault`` instead of the
type, and ``error.kind`` where a rule needs more. The branches of the BMDB, of providers and of machines are modules.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

from shepherd_core.domain.errors.kinds import FailureKind

if TYPE_CHECKING:
    from collections.abc import Sequence


_TEXT_LENGTH = 1000


class Fault(StrEnum):
    """The cause of a failure of work on a machine: it tells whether recovering the machine can help."""

    MACHINE = "machine"
    """The machine, as far as is known."""
    UNREACHED = "unreached"
    """Nothing answers over SSH: the machine or, if it happens for many, the network in between."""
    ACCESS = "access"
    """The machine's address, its host key or our access to it: a reboot does not help, an operator must act."""
    PROVIDER = "provider"
    """The provider, or our access to it: nothing is known about the machine."""
    OURS = "ours"
    """Shepherd itself: nothing is known about the machine."""


class ShepherdError(Exception):
    """Shepherd failed."""

    retryable: ClassVar[bool] = False
    """Whether the same call may succeed later without any change."""
    kind: ClassVar[FailureKind] = FailureKind.UNEXPECTED
    fault: ClassVar[Fault] = Fault.MACHINE
    """The cause, if this error ended the work on a machine."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip().splitlines()[0])


@dataclass(frozen=True, slots=True)
class Cause:
    """Why work failed. Rules read ``kind`` and ``fault``; ``text`` is for people."""

    kind: FailureKind
    fault: Fault
    text: str

    def __str__(self) -> str:
        """Return the cause as people are told."""
        return f"{self.kind}: {self.text}"


def cause_of(error: BaseException) -> Cause:
    """Return the cause that *error* is, as the BMDB keeps it."""
    if isinstance(error, ShepherdError):
        return Cause(error.kind, error.fault, str(error)[:_TEXT_LENGTH])
    return Cause(FailureKind.UNEXPECTED, Fault.MACHINE, f"{type(error).__name__}: {error}"[:_TEXT_LENGTH])


class ConfigError(ShepherdError):
    """The settings are wrong."""

    kind = FailureKind.CONFIG_ERROR

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("the settings are wrong:\n" + "\n".join(f"  - {fault}" for fault in faults))


class EventInvalid(ShepherdError):
    """The event is not one that this function accepts."""

    kind = FailureKind.EVENT_INVALID


class TimeLimitExceeded(ShepherdError):
    """The time for this piece of work is used up."""

    kind = FailureKind.TIME_LIMIT_EXCEEDED


class AnswerUndelivered(ShepherdError):
    """CloudFormation did not accept the answer that it waits for."""

    kind = FailureKind.ANSWER_UNDELIVERED
    retryable = True


class NoLongerDue(ShepherdError):
    """The machine must not be recovered any more."""

    kind = FailureKind.NO_LONGER_DUE
    seconds: float | None = None
    """For how long the machine is left alone, if that is known."""

    def __init__(self, message: str | None = None, *, recovered: bool = False) -> None:
        self.recovered = recovered
        """True: its agent reports again. False: its recovery is paused."""
        super().__init__(message)


class HeldBack(NoLongerDue):
    """The step that a machine needs waits for the budget of recovery."""

    kind = FailureKind.HELD_BACK

    def __init__(self, message: str, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(message)


class DriftLimitExceeded(ShepherdError):
    """The provider and the BMDB disagree on too many machines to act on either."""

    kind = FailureKind.DRIFT_LIMIT_EXCEEDED

    def __init__(self, drift: Sequence[str]) -> None:
        self.drift = tuple(drift)
        super().__init__(
            f"the provider and the BMDB disagree on {len(drift)} machines; nothing was done:\n"
            + "\n".join(f"  - {each}" for each in drift)
        )


class SecretError(ShepherdError):
    """A secret could not be read or stored."""

    fault = Fault.OURS


class SecretMissing(SecretError):
    """The secret does not exist, or the caller may not read it."""

    kind = FailureKind.SECRET_MISSING


class SecretUnavailable(SecretError):
    """The secret store did not answer."""

    kind = FailureKind.SECRET_UNAVAILABLE
    retryable = True


class SourceError(ShepherdError):
    """A file or object that the operator named could not be read."""

    kind = FailureKind.SOURCE_INVALID
    fault = Fault.OURS


class AgentMismatch(SourceError):
    """The agent's file does not have the SHA-256 that the settings name."""

    kind = FailureKind.AGENT_MISMATCH


class SourceMissing(SourceError):
    """The file or object does not exist, or the caller may not read it."""

    kind = FailureKind.SOURCE_MISSING


class SourceUnavailable(SourceError):
    """The store of the file or object did not answer."""

    kind = FailureKind.SOURCE_UNAVAILABLE
    retryable = True
