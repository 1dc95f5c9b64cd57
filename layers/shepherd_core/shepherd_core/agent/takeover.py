"""
The takeover: upload the agent to a machine, run it, and check its answer.

This module holds the rules of the handshake. The transport is behind the
Protocols at its top, which ``adapters/ssh`` implements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Protocol

from google.protobuf.message import DecodeError

from shepherd_core.domain.errors.machine import (
    AgentExited,
    AgentRefused,
    MalformedAnswer,
    TakeoverFailed,
    WrongInitMessage,
    WrongKeyLength,
)
from shepherd_core.domain.pb.agent_pb2 import TakeoverInit, TakeoverResponse, TakeoverSuccess

if TYPE_CHECKING:
    from shepherd_core.domain.clock import Deadline
    from shepherd_core.domain.remediation import AgentState

KEY_BYTES = 32
STDERR_BYTES = 4096
"""The part of the agent's standard error that is kept, counted from the end."""

_DETAIL = 300  # characters of the agent's own words in a message, and in a warning
_WARNINGS = 20


class AgentBinary(Protocol):
    """The agent executable."""

    @property
    def sha256(self) -> str:
        """Return its SHA-256 in lower case hex."""

    @property
    def size(self) -> int:
        """Return its size in bytes."""

    def open(self) -> BinaryIO:
        """Return it as a file, with a descriptor, at its beginning. The caller closes it."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a program that ran on a machine."""

    stdout: bytes
    """Complete, unless a child that outlives the program holds it open; at most 64 KiB."""
    stderr: bytes
    """The end of it, at most ``STDERR_BYTES``."""
    exit_status: int
    """-1: it ended without one, by a signal."""


class MachineConnection(Protocol):
    """
    A connection to one machine, for use by one thread.

    Every method ends by its deadline and raises nothing but an ``SshError``
    that names what failed.
    """

    @property
    def host_key(self) -> str:
        """Return the host key that the machine proved to hold, ``ssh-ed25519 AAAA...``."""

    def start(self, program: AgentProgram, stdin: bytes, deadline: Deadline) -> RunResult:
        """
        Make sure that *program* is on the machine, run it with *stdin*, and return what it wrote until its end.

        A file there with its SHA-256 is made executable; any other, also if that
        cannot be determined, is replaced atomically, mode 0755. A program that
        runs from the old file keeps running. If the upload fails, the old file is
        still there. A connection serves for one start or one look.

        Raises:
            SshAuthenticationFailed: the machine lets our user in, but answers the command with some other text.
            SshUploadFailed: disk full, not permitted, ...; repeats the machine's message.
            MalformedAnswer: more than 64 KiB were written to the standard output.
            TimeLimitExceeded, SessionExpired: it was too late; the program was not run.
            SshError: the connection failed; the program may be running.
        """

    def agent_state(self, path: str, deadline: Deadline) -> AgentState:
        """
        Return whether the agent that was started from *path* still runs, also if it is stopped.

        Raises:
            SshAuthenticationFailed: the machine lets our user in, but answers the command with some other text.
        """

    def close(self) -> None:
        """Close the connection. May be called more than once; never raises."""


class Dialer(Protocol):
    """Makes connections; safe to use from several threads."""

    def dial(self, address: str, pinned_host_key: str | None, deadline: Deadline) -> MachineConnection:
        """
        Connect to the machine at *address*, an IP address, and log in.

        With *pinned_host_key* (the ``host_key`` of an earlier connection) only
        the machine that holds that key is accepted; with None any is, and the
        caller stores ``host_key``. The caller closes the connection.

        Raises:
            SshError: SshRefused, SshTimedOut, SshAuthenticationFailed,
                SshHostKeyChanged, SshConnectionLost.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentProgram:
    """The agent, and how it is run on a machine."""

    binary: AgentBinary
    path: str
    """On the machine."""
    answer_seconds: float
    """How long it may take to answer."""


@dataclass(frozen=True, slots=True)
class Takeover:
    """The checked answer of an agent that took over its machine."""

    public_key: bytes
    """The agent's Ed25519 public key, 32 bytes."""
    warnings: tuple[str, ...]
    stderr: str
    """The last 4 kB of its standard error, for the log."""


def take_over(connection: MachineConnection, program: AgentProgram, init: TakeoverInit, deadline: Deadline) -> Takeover:
    """
    Make sure that *program* is on the machine, run it with *init*, and return its checked answer.

    The certificate of *init* is DER, or empty. May be repeated for the same
    machine: the agent that answered last is the one that counts, so the caller
    records its key. If this raises after the program was run, an agent may be
    running that is not on record; the next takeover replaces it.

    Errors repeat the agent's own message, shortened and made printable, and its
    standard error as a note.

    Raises:
        AgentExited: exit status other than 0, and no error message from the agent.
        MalformedAnswer: its output is not a TakeoverResponse.
        AgentRefused: it reported an error.
        WrongInitMessage: it answered for another machine, endpoint or certificate.
        WrongKeyLength: its key is not 32 bytes long.
        SshError: the connection failed; its type and text say how.
        TimeLimitExceeded, SessionExpired: it was too late; nothing was run.
    """
    result = connection.start(program, init.SerializeToString(), deadline)
    stderr = result.stderr[-STDERR_BYTES:].decode(errors="replace")
    try:
        success = _success(result, stderr, init)
    except TakeoverFailed as error:
        if stderr:
            error.add_note(f"standard error of the agent: {printable(stderr, STDERR_BYTES)}")
        raise
    warnings = tuple(printable(warning, _DETAIL) for warning in success.warning[:_WARNINGS])
    return Takeover(success.key, warnings, stderr)


def printable(text: str, limit: int) -> str:
    """Return untrusted *text* on one line, without control characters, at most *limit* characters long."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


def _success(result: RunResult, stderr: str, init: TakeoverInit) -> TakeoverSuccess:
    """Return the success that the agent reported, after all checks."""
    try:
        answer, fault = TakeoverResponse.FromString(result.stdout), None
    except DecodeError as error:
        answer, fault = TakeoverResponse(), error
    if answer.HasField("error"):
        raise AgentRefused(f"the agent reports: {printable(answer.error.message, _DETAIL) or 'an error without text'}")
    if result.exit_status != 0:
        how = f"with status {result.exit_status}" if result.exit_status > 0 else "without a status, as if killed"
        last_words = printable(stderr[-_DETAIL:], _DETAIL)
        raise AgentExited(f"the agent exited {how}" + (f": {last_words}" if last_words else ""))
    if not answer.HasField("success"):
        shown = printable(result.stdout[:_DETAIL].decode(errors="replace"), _DETAIL)
        what = f"{len(result.stdout)} bytes that are not a TakeoverResponse: {shown}" if result.stdout else "nothing"
        raise MalformedAnswer(f"the agent answered {what}") from fault
    success = answer.success
    if success.init_message != init:
        raise WrongInitMessage(f"the agent answered for {_differences(success.init_message, init)}")
    if len(success.key) != KEY_BYTES:
        raise WrongKeyLength(f"the agent's key is {len(success.key)} bytes long instead of {KEY_BYTES}")
    return success


def _differences(got: TakeoverInit, sent: TakeoverInit) -> str:
    """Return the fields that the agent repeated wrongly. The certificate is too long to show."""
    shown = [
        f"{name} {printable(theirs, _DETAIL)!r} instead of {ours!r}"
        for name, theirs, ours in (
            ("machine", got.machine_id, sent.machine_id),
            ("endpoint", got.bmaas_endpoint, sent.bmaas_endpoint),
        )
        if theirs != ours
    ]
    if got.ca_certificate != sent.ca_certificate:
        shown.append("another certificate")
    return ", ".join(shown) or "a message with unknown fields"
