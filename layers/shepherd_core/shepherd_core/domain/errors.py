"""
Every error that Shepherd raises on purpose.

    ShepherdError
    ├── ConfigError                  the settings are wrong; lists every fault
    ├── EventInvalid                 the event that invoked a function is wrong
    ├── TimeLimitExceeded            a piece of work used up its time
    ├── AnswerUndelivered            (retryable) CloudFormation took no answer
    ├── NoLongerDue                  the machine is not to be recovered any more
    ├── BmdbError
    │   ├── BmdbUnavailable          (retryable) not reached, or connection lost
    │   ├── BmdbUntrusted            no TLS, or not who it should be
    │   ├── SerializationConflict    (retryable) the database asks to try again
    │   ├── CommitUnknown            connection lost while committing
    │   ├── StatementFailed          any other refusal by the database
    │   ├── SchemaMismatch           database older or newer than this code
    │   ├── MigrationRefused         an applied migration file was edited
    │   ├── SessionExpired           the session's deadline passed
    │   ├── MachineUnknown           the BMDB knows no such machine
    │   └── WorkConflict             the machine is already being worked on
    ├── ProviderError
    │   ├── ProviderUnavailable      (retryable) may work later
    │   ├── ProviderRefused          will not work until somebody changes something
    │   │   └── ProviderUnusable     it refuses us, or our settings for it are wrong
    │   ├── MachineNotFound          the provider does not know that machine
    │   ├── CapacityTaken            somebody else used the capacity first
    │   ├── NotSupported             this provider cannot do that
    │   └── ListingInvalid           the listing cannot be trusted
    ├── DriftLimitExceeded           provider and BMDB disagree in bulk
    ├── MachineError                 one machine could not be worked on
    │   ├── NoAddress                the provider names no address for it
    │   ├── SshError
    │   │   ├── SshRefused           nothing listens there
    │   │   ├── SshTimedOut          no answer in time
    │   │   ├── SshAuthenticationFailed
    │   │   ├── SshHostKeyChanged    not the machine that we met before
    │   │   ├── SshConnectionLost    broke in the middle
    │   │   └── SshUploadFailed      disk full, not permitted, ...
    │   └── TakeoverError
    │       ├── AgentExited          exit status other than 0
    │       ├── MalformedAnswer      not a TakeoverResponse
    │       ├── WrongKeyLength       the key is not 32 bytes long
    │       ├── WrongInitMessage     answered for something else
    │       └── AgentRefused         the agent itself reported an error
    ├── SecretError
    │   ├── SecretMissing            no such parameter, or not permitted
    │   └── SecretUnavailable        (retryable)
    └── SourceError
        ├── SourceMissing            no such file or object, or not permitted
        └── SourceUnavailable        (retryable)

Errors of libraries do not leave the module that called the library: they
arrive as one of these, with the original as ``__cause__``. The text of an
error never holds a secret. Ask ``error.retryable`` and ``error.fault`` instead
of its type.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Sequence


class Fault(StrEnum):
    """What is wrong when work on a machine fails: whether recovery of the machine can be the cure."""

    MACHINE = "machine"
    """The machine, as far as we know."""
    UNREACHED = "unreached"
    """Nothing answers over SSH: the machine or, where that is so for many, the network between us and them."""
    ACCESS = "access"
    """The machine's address, host key or our access to it: no reboot is a cure, an operator must act."""
    PROVIDER = "provider"
    """The provider, or our access to it: it says nothing about the machine."""
    OURS = "ours"
    """Something of our own: it says nothing about the machine."""


class ShepherdError(Exception):
    """Shepherd failed."""

    retryable: ClassVar[bool] = False
    """Whether the same call may succeed later although nobody changed anything."""
    fault: ClassVar[Fault] = Fault.MACHINE
    """What is wrong, when this ended the work on a machine."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip().splitlines()[0])


class ConfigError(ShepherdError):
    """The settings are wrong."""

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("the settings are wrong:\n" + "\n".join(f"  - {fault}" for fault in faults))


class EventInvalid(ShepherdError):
    """The event is not one that this function understands."""


class TimeLimitExceeded(ShepherdError):
    """The time for this piece of work is used up."""


class AnswerUndelivered(ShepherdError):
    """CloudFormation did not take the answer that it waits for."""

    retryable = True


class NoLongerDue(ShepherdError):
    """The machine is not to be recovered any more."""

    def __init__(self, message: str | None = None, *, recovered: bool = False) -> None:
        self.recovered = recovered
        """Because its agent reports; else somebody holds recovery up."""
        super().__init__(message)


class BmdbError(ShepherdError):
    """The BMDB could not do what was asked."""

    fault = Fault.OURS


class BmdbUnavailable(BmdbError):
    """The BMDB cannot be reached, or the connection to it was lost."""

    retryable = True


class BmdbUntrusted(BmdbError):
    """The server could not prove over TLS that it is the BMDB."""


class SerializationConflict(BmdbError):
    """The BMDB asks to run the transaction again."""

    retryable = True


class CommitUnknown(BmdbError):
    """The connection was lost while committing: ask the BMDB what holds before acting again."""


class StatementFailed(BmdbError):
    """The BMDB refused a statement."""

    def __init__(self, message: str, sqlstate: str) -> None:
        self.sqlstate = sqlstate
        super().__init__(message)


class SchemaMismatch(BmdbError):
    """The schema of the BMDB is older or newer than this code supports."""


class MigrationRefused(BmdbError):
    """A migration that was already applied differs from its file."""


class SessionExpired(BmdbError):
    """The session is over: nothing that was begun in it can be committed. Abandon its work."""


class MachineUnknown(BmdbError):
    """The BMDB knows no such machine."""


class WorkConflict(BmdbError):
    """The machine is already being worked on."""


class ProviderError(ShepherdError):
    """The provider could not do what was asked."""

    fault = Fault.PROVIDER


class ProviderUnavailable(ProviderError):
    """The provider did not answer, or asked to come back later."""

    retryable = True

    def __init__(self, message: str | None = None, retry_after: float | None = None) -> None:
        self.retry_after = retry_after
        """Seconds after which the provider wants to be asked again, if it said so."""
        super().__init__(message)


class ProviderRefused(ProviderError):
    """The provider refused, and will until somebody changes something."""


class ProviderUnusable(ProviderRefused):
    """The provider refuses us, or cannot be used with our settings: that is no machine's fault."""


class MachineNotFound(ProviderError):
    """The provider does not know that machine."""


class CapacityTaken(ProviderError):
    """Somebody else used this capacity first."""


class NotSupported(ProviderError):
    """This provider cannot do that."""


class ListingInvalid(ProviderError):
    """The provider's listing is incomplete or contradicts itself, so nothing may be concluded from it."""


class DriftLimitExceeded(ShepherdError):
    """The provider and the BMDB disagree about too many machines to act on either."""

    def __init__(self, differences: Sequence[str]) -> None:
        self.differences = tuple(differences)
        super().__init__(
            f"the provider and the BMDB disagree about {len(differences)} machines; nothing was done:\n"
            + "\n".join(f"  - {difference}" for difference in differences)
        )


class MachineError(ShepherdError):
    """One machine could not be worked on."""


class NoAddress(MachineError):
    """The provider names no address for the machine."""

    fault = Fault.ACCESS


class SshError(MachineError):
    """SSH to the machine failed."""


class SshRefused(SshError):
    """Nothing listens for SSH on the machine."""

    fault = Fault.UNREACHED


class SshTimedOut(SshError):
    """The machine did not answer over SSH in time."""

    fault = Fault.UNREACHED


class SshAuthenticationFailed(SshError):
    """The machine does not accept our SSH key."""

    fault = Fault.ACCESS


class SshHostKeyChanged(SshError):
    """The machine's SSH host key is not the one that was pinned at first contact."""

    fault = Fault.ACCESS


class SshConnectionLost(SshError):
    """The SSH connection broke before the work was done."""

    fault = Fault.UNREACHED


class SshUploadFailed(SshError):
    """The agent could not be written to the machine."""


class TakeoverError(MachineError):
    """The agent did not take over the machine."""


class AgentExited(TakeoverError):
    """The agent exited with a status other than 0."""


class MalformedAnswer(TakeoverError):
    """What the agent answered is not a TakeoverResponse."""


class WrongKeyLength(TakeoverError):
    """The agent's public key is not 32 bytes long."""


class WrongInitMessage(TakeoverError):
    """The agent did not answer for the TakeoverInit that it was sent."""


class AgentRefused(TakeoverError):
    """The agent reported an error."""


class SecretError(ShepherdError):
    """A secret could not be read or stored."""

    fault = Fault.OURS


class SecretMissing(SecretError):
    """The secret does not exist, or this function may not read it."""


class SecretUnavailable(SecretError):
    """The secret store did not answer."""

    retryable = True


class SourceError(ShepherdError):
    """A file or object that the operator named could not be read."""

    fault = Fault.OURS


class SourceMissing(SourceError):
    """The file or object does not exist, or this function may not read it."""


class SourceUnavailable(SourceError):
    """The place where the file or object is kept did not answer."""

    retryable = True
