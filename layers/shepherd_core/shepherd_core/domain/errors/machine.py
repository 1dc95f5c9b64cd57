"""Errors of the work on one machine: SSH and takeover. The package draws the whole tree."""

from __future__ import annotations

from shepherd_core.domain.errors import Fault, ShepherdError


class MachineError(ShepherdError):
    """One machine could not be worked on."""


class NoAddress(MachineError):
    """The provider names no address for the machine."""

    fault = Fault.ACCESS


class HostKeyUnknown(MachineError):
    """The SSH host key of the machine is not known in advance, and the settings require it."""

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
    """The machine's SSH host key is not the one that is pinned."""

    fault = Fault.ACCESS


class SshConnectionLost(SshError):
    """The SSH connection broke before the work was done."""

    fault = Fault.UNREACHED


class SshMisbehaved(SshError):
    """The machine sent what no SSH server sends, or used up the memory or processor time that its process may use."""


class SshUploadFailed(SshError):
    """The agent could not be written to the machine."""


class SshForkServerLost(SshError):
    """The process of Shepherd that talks to machines ended."""

    fault = Fault.OURS


class SshOutOfResources(SshError):
    """The function has no socket, port or memory left for a connection."""

    fault = Fault.OURS


class TakeoverFailed(MachineError):
    """The handshake with the agent failed."""


class AgentExited(TakeoverFailed):
    """The agent exited with a status other than 0."""


class MalformedAnswer(TakeoverFailed):
    """The agent's answer is not a TakeoverResponse."""


class WrongKeyLength(TakeoverFailed):
    """The agent's public key is not 32 bytes long."""


class WrongInitMessage(TakeoverFailed):
    """The agent did not answer for the TakeoverInit that it was sent."""


class AgentRefused(TakeoverFailed):
    """The agent reported an error."""
