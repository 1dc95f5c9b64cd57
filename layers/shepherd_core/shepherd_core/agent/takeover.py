"""
The agent handshake: bring the agent to a machine, run it, and check all that it answers.

This module knows what must be so; how bytes get to a machine is behind the
Protocols at its top, which ``ssh.py`` fulfils.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Protocol

from google.protobuf.message import DecodeError

from shepherd_core.domain.errors import (
    AgentExited,
    AgentRefused,
    MalformedAnswer,
    TakeoverError,
    WrongInitMessage,
    WrongKeyLength,
)
from shepherd_core.domain.pb.agent_pb2 import TakeoverInit, TakeoverResponse, TakeoverSuccess

if TYPE_CHECKING:
    from shepherd_core.domain.clock import Deadline

KEY_BYTES = 32
STDERR_BYTES = 4096
"""So much of what the agent wrote to its standard error is kept, counted from the end."""

_DETAIL = 300  # characters of the agent's own words in a message, and in a warning
_WARNINGS = 20


class AgentBinary(Protocol):
    """The agent executable, wherever it is kept."""

    @property
    def sha256(self) -> str:
        """Return its SHA-256 in lower case hex."""

    @property
    def size(self) -> int:
        """Return its size in bytes."""

    def open(self) -> BinaryIO:
        """Return it as a stream from its beginning. The caller closes it."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What came of a program that ran on a machine."""

    stdout: bytes
    """Complete, unless a child that outlives the program holds it open; at most 1 MiB."""
    stderr: bytes
    """The end of it, at most ``STDERR_BYTES``."""
    exit_status: int
    """-1: it ended without one, by a signal."""


class Connection(Protocol):
    """
    A connection to one machine, for use by one thread.

    Every method ends by its deadline and raises nothing but an ``SshError``
    that names what failed.
    """

    @property
    def host_key(self) -> str:
        """Return the host key that the machine proved to hold, ``ssh-ed25519 AAAA...``."""

    def has(self, path: str, sha256: str, deadline: Deadline) -> bool:
        """Return whether the file at *path* has that SHA-256; False too when that cannot be found out."""

    def upload(self, binary: AgentBinary, path: str, deadline: Deadline) -> None:
        """
        Put *binary* at *path*, mode 0755, replacing what is there in one step.

        A program that runs from the old file runs on. When this fails, the old
        file is still there; it may be called again.

        Raises:
            SshUploadFailed: disk full, not permitted, ...; says so in the machine's words.
        """

    def run(self, path: str, stdin: bytes, deadline: Deadline) -> RunResult:
        """
        Run the program at *path* with *stdin*, wait for its end, and return what it wrote.

        When this raises, the program may be running.

        Raises:
            MalformedAnswer: it wrote more than 1 MiB to its standard output.
        """

    def close(self) -> None:
        """Hang up. May be called more than once; never raises."""


class Dialer(Protocol):
    """Makes connections; safe to use from several threads."""

    def dial(self, address: str, pinned_host_key: str | None, deadline: Deadline) -> Connection:
        """
        Connect to the machine at *address*, an IP address, and log in.

        With *pinned_host_key* (the ``host_key`` of an earlier connection) only
        the machine that holds that key is talked to; with None any is, and the
        caller stores ``host_key``. The caller closes the connection.

        Raises:
            SshError: what failed: SshRefused, SshTimedOut, SshAuthenticationFailed,
                SshHostKeyChanged, SshConnectionLost.
        """


@dataclass(frozen=True, slots=True)
class Takeover:
    """A machine that our agent answers for."""

    public_key: bytes
    """The agent's Ed25519 public key, 32 bytes."""
    warnings: tuple[str, ...]
    stderr: str
    """What the agent wrote there, for the log: the last 4 kB."""


def take_over(
    connection: Connection,
    binary: AgentBinary,
    path: str,
    *,
    machine_id: str,
    endpoint: str,
    ca_certificate: bytes,
    answer_seconds: float,
    deadline: Deadline,
) -> Takeover:
    """
    Make sure that *binary* is at *path*, run it there for *machine_id*, and return its checked answer.

    *ca_certificate* is DER, or empty; *answer_seconds* is what the agent may
    take to answer. May be repeated for the same machine: the agent that
    answered last is the one that counts, so the caller records its key. When
    this raises after the program was run, an agent may be running that nobody
    knows; the next takeover makes another.

    Errors hold the agent's own words, shortened and made printable, and what it
    wrote to its standard error as a note.

    Raises:
        AgentExited: exit status other than 0, and no error in the agent's own words.
        MalformedAnswer: what it wrote is not a TakeoverResponse.
        AgentRefused: it reported an error.
        WrongInitMessage: it answered for another machine, endpoint or certificate.
        WrongKeyLength: its key is not 32 bytes long.
        SshError: the connection failed; its type and text say how.
        TimeLimitExceeded, SessionExpired: it was too late to run anything. Nothing was run.
    """
    if not connection.has(path, binary.sha256, deadline):
        connection.upload(binary, path, deadline)
    init = TakeoverInit(machine_id=machine_id, bmaas_endpoint=endpoint, ca_certificate=ca_certificate)
    deadline.check()
    result = connection.run(path, init.SerializeToString(), deadline.within(answer_seconds))
    stderr = result.stderr[-STDERR_BYTES:].decode(errors="replace")
    try:
        success = _success(result, stderr, init)
    except TakeoverError as error:
        if stderr:
            error.add_note(f"standard error of the agent: {printable(stderr, STDERR_BYTES)}")
        raise
    warnings = tuple(printable(warning, _DETAIL) for warning in success.warning[:_WARNINGS])
    return Takeover(success.key, warnings, stderr)


def printable(text: str, limit: int) -> str:
    """Return *text*, which a stranger wrote, on one line, without control characters, at most *limit* long."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


def _success(result: RunResult, stderr: str, init: TakeoverInit) -> TakeoverSuccess:
    """Return the success that the agent reported, if all of it is as it must be."""
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
        what = f"{len(result.stdout)} bytes that are not a TakeoverResponse" if result.stdout else "nothing"
        raise MalformedAnswer(f"the agent answered {what}") from fault
    success = answer.success
    if success.init_message != init:
        raise WrongInitMessage(f"the agent answered for {_differences(success.init_message, init)}")
    if len(success.key) != KEY_BYTES:
        raise WrongKeyLength(f"the agent's key is {len(success.key)} bytes long instead of {KEY_BYTES}")
    return success


def _differences(got: TakeoverInit, sent: TakeoverInit) -> str:
    """Return what the agent repeated wrongly. The certificate is too long to show."""
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
