"""Errors of the work on one machine: SSH and takeover. The package draws the whole tree."""

from __future__ import annotations

from shepherd_core.domain.errors import Fault, ShepherdError
from shepherd_core.domain.errors.kinds import FailureKind


class MachineError(ShepherdError):
    """One machine could not be worked on."""


class NoAddress(MachineError):
    """The provider names no address for the machine."""

    kind = FailureKind.NO_ADDRESS
    fault = Fault.ACCESS


class HostKeyUnknown(MachineError):
    """The SSH host key of the machine is not known in advance, and the settings require it."""

    kind = FailureKind.HOST_KEY_UNKNOWN
    fault = Fault.ACCESS


class SshError(MachineError):
    """SSH to the machine failed."""

    kind = FailureKind.SSH_FAILED


class SshRefused(SshError):
    """Nothing listens for SSH on the machine."""

    kind = FailureKind.SSH_REFUSED
    fault = Fault.UNREACHED


class SshTimedOut(SshError):
    """The machine did not answer over SSH in time."""

    kind = FailureKind.SSH_TIMED_OUT
    fault = Fault.UNREACHED


class SshAuthenticationFailed(SshError):
    """The machine does not accept our SSH key."""

    kind = FailureKind.SSH_AUTHENTICATION_FAILED
    fault = Fault.ACCESS


class SshHostKeyChanged(SshError):
    """The machine's SSH host key is not the one that is pinned."""

    kind = FailureKind.SSH_HOST_KEY_CHANGED
    fault = Fault.ACCESS


class SshConnectionLost(SshError):
    """The SSH connection broke before the work was done."""

    kind = FailureKind.SSH_CONNECTION_LOST
    fault = Fault.UNREACHED


class SshMisbehaved(SshError):
    """The machine sent what no SSH server sends, or used up the memory or processor time that its process may use."""

    kind = FailureKind.SSH_MISBEHAVED


class SshUploadFailed(SshError):
    """The agent could not be written to the machine."""

    kind = FailureKind.SSH_UPLOAD_FAILED


class SshForkServerLost(SshError):
    """The process of Shepherd that talks to machines ended."""

    kind = FailureKind.SSH_FORK_SERVER_LOST
    fault = Fault.OURS


class SshOutOfResources(SshError):
    """The function has no socket, port or memory left for a connection."""

    kind = FailureKind.SSH_OUT_OF_RESOURCES
    fault = Fault.OURS


class TakeoverFailed(MachineError):
    """The handshake with the agent failed."""

    agent_sha256: str | None = None
    """Of the agent's file."""


class AgentExited(TakeoverFailed):
    """The agent exited with a status other than 0."""

    kind = FailureKind.AGENT_EXITED


class MalformedAnswer(TakeoverFailed):
    """The agent's answer is not a TakeoverResponse."""

    kind = FailureKind.MALFORMED_ANSWER


class WrongKeyLength(TakeoverFailed):
    """The agent's public key is not 32 bytes long."""

    kind = FailureKind.WRONG_KEY_LENGTH


class WrongInitMessage(TakeoverFailed):
    """The agent did not answer for the TakeoverInit that it was sent."""

    kind = FailureKind.WRONG_INIT_MESSAGE


class AgentRefused(TakeoverFailed):
    """The agent reported an error."""

    kind = FailureKind.AGENT_REFUSED
