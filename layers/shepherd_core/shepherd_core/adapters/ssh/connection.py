"""
A connection to one machine, from the side of the function: its steps, time limits and the names of failures.

Each connection has a process of its own, in which everything happens that reads
what the machine sends (``client``). The function waits for one small answer at a
time, checks it, and ends the process when the time is over or the connection is
closed.
"""

from __future__ import annotations

import secrets
import shlex
import socket
import tempfile
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any

from shepherd_core.adapters import ssh_keys
from shepherd_core.adapters.ssh import messages
from shepherd_core.adapters.ssh.messages import DETAIL, RequestFailed, SshFailure
from shepherd_core.adapters.ssh.processes import FORK_SERVER
from shepherd_core.agent.takeover import RunResult, printable
from shepherd_core.domain.errors import TimeLimitExceeded
from shepherd_core.domain.errors.machine import (
    MalformedAnswer,
    SshAuthenticationFailed,
    SshConnectionLost,
    SshError,
    SshForkServerLost,
    SshHostKeyChanged,
    SshMisbehaved,
    SshTimedOut,
    SshUploadFailed,
)
from shepherd_core.domain.remediation import AgentState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shepherd_core.agent.takeover import AgentProgram
    from shepherd_core.domain.clock import Deadline

HANDSHAKE_SECONDS = 15.0
"""Time limit for the key exchange of a machine that accepts connections, and again for the login."""
PROCESSOR_SECONDS = 5.0
"""Processor time that the process of a machine may use for one step."""
GRACE_SECONDS = 5.0
"""The process of a machine ends itself so long after the time of a step, in case the fork server is gone."""
UPLOAD_BYTES_PER_SECOND = 4_000_000
"""Of processor time: an upload may use more, by the size of the agent."""

# Fixed scripts, run as `sh -c SCRIPT shepherd ARGUMENT...`, so that the user's shell may be any.
_START = (
    'has() { s=$(sha256sum < "$1"); [ "${s%% *}" = "$2" ] && { [ -x "$1" ] || chmod 755 "$1"; }; }; '
    'put() ( if [ -d "$1" ]; then echo "$1 is a folder" >&2; exit 1; fi; '
    'for old in "$1".*.shepherd-upload; do [ ! -e "$old" ] || rm -f "$old"; done; '
    "new=$1.$4.shepherd-upload; umask 077; "
    'head -c "$3" > "$new" && n=$(wc -c < "$new") && if [ "$n" -eq "$3" ]; '
    'then chmod 755 "$new" && mv -f "$new" "$1" && exit; '
    'else rm -f "$new"; echo "$new is $n bytes long instead of $3" >&2; fi; '
    'rm -f "$new"; exit 1 ); '
    'has "$@" 2> /dev/null || { echo "no-$4" && put "$@"; } && echo "yes-$4" && read -r go && exec "$1"'
)
"""
Run $1 with the input that follows the line "go". If it has not the hash $2, say no, write $3 bytes of the input to a
new file, and move that to $1; remove the files of uploads that were cut off. Say yes when it may be run. Both words end
with $4: a login script may have written others before.
"""
_STATE = (
    'has() { for file in "/proc/$1/fd/"*; do [ "$file" -ef "$2" ] && return; done; return 1; }; '
    'read -r pid < "$1.pid"; has "${pid:-0}" "$1.pid" || { pid=; for process in /proc/[0-9]*; do '
    'read -r name < "$process/comm"; case $name in python*) read -r line < "$process/cmdline"; '
    'case $line in *"$1") pid=${process#/proc/}; has "$pid" "$1.install" && break;; esac;; esac; done; }; '
    'if [ -z "$pid" ]; then echo ended; elif has "$pid" "$1.install"; then echo installs; else echo runs; fi'
)
"""
Say whether the agent at $1 runs: the process that $1.pid names and that has this file open, as the agent has (another
process with a reused id has not). If $1.pid is gone, any Python that was started with $1 as its last argument: the NULs
of a command line are left out by `read`. While an installation goes on, the agent has $1.install open.
"""


class SshConnection:
    """A connection to one machine; see ``takeover.MachineConnection``."""

    def __init__(self, machine: socket.socket, peer: str, user: str, grace_seconds: float = GRACE_SECONDS) -> None:
        """
        Hand the connection *machine* to a process; the caller closes its own.

        Raises:
            SshForkServerLost: there is no process.
        """
        self.host_key = ""
        self._peer = peer
        self._user = user
        self._limits = {"processor_seconds": PROCESSOR_SECONDS, "grace_seconds": grace_seconds}
        self._lost = False
        try:
            self._requests = FORK_SERVER.process(machine)
        except OSError as error:
            raise SshForkServerLost(f"no process for the connection to {peer}: {messages.text_of(error)}") from error

    def exchange_keys(self, pinned: str | None, deadline: Deadline) -> None:
        """Exchange keys; refuse a machine that does not hold the *pinned* host key."""
        # A machine has several keys; ask for the pinned one, else for the best.
        request = {"do": "exchange keys", "kind": (pinned or "ssh-ed25519").split()[0]}
        with self._step("exchanging keys with"):
            self.host_key = messages.host_key(self._ask(request, deadline, HANDSHAKE_SECONDS))
        if pinned is not None and pinned.split()[:2] != self.host_key.split():
            got, known = ssh_keys.fingerprint(self.host_key), ssh_keys.fingerprint(pinned)
            raise SshHostKeyChanged(f"{self._peer} has the host key {got}, pinned is {known}")

    def log_in(self, key: str, deadline: Deadline) -> None:
        """Authenticate with the private *key*, which the process is given only now."""
        with self._step(f"logging in as {self._user} at"):
            self._ask({"do": "log in", "user": self._user, "key": key}, deadline, HANDSHAKE_SECONDS)

    def start(self, program: AgentProgram, stdin: bytes, deadline: Deadline) -> RunResult:
        """See ``takeover.MachineConnection``."""
        binary, path, word = program.binary, program.path, secrets.token_hex(8)
        no, yes = f"no-{word}", f"yes-{word}"
        command = _script(_START, path, binary.sha256, str(binary.size), word)
        with self._step(f"hashing {path} at"), self._file(b"") as source:
            said = self._said(self._execute(command, source, deadline, until=word), no, yes)
        if said == no:
            seconds = PROCESSOR_SECONDS + binary.size / UPLOAD_BYTES_PER_SECOND
            with self._step(f"uploading {path} to", SshUploadFailed), binary.open() as source:
                self._said(self._execute("", source, deadline, until=word, processor_seconds=seconds), yes)
        deadline.check()
        with self._step(f"running {path} at"), self._file(b"go\n" + stdin) as source:
            return self._execute("", source, deadline.within(program.answer_seconds))

    def agent_state(self, path: str, deadline: Deadline) -> AgentState:
        """See ``takeover.MachineConnection``."""
        with self._step(f"looking for the agent {path} at"), self._file(b"") as source:
            return AgentState(self._said(self._execute(_script(_STATE, path), source, deadline), *AgentState))

    def _said(self, result: RunResult, *words: str) -> str:
        """Return the one of *words* that the command said last."""
        said = result.stdout.decode(errors="replace").split()
        if not said:
            text = printable(result.stderr.decode(errors="replace"), DETAIL) or f"exit status {result.exit_status}"
            raise RequestFailed(SshFailure.FAILED, text)
        if said[-1] not in words:
            refusal = printable(" ".join(said), DETAIL)
            raise SshAuthenticationFailed(f"{self._peer} runs no commands for {self._user}: {refusal}")
        return said[-1]

    def close(self) -> None:
        """See ``takeover.MachineConnection``."""
        self._lost = True
        self._requests.close()

    def _execute(self, command: str, stdin: IO[bytes], deadline: Deadline, **more: Any) -> RunResult:
        request = {"do": "execute", "command": command, "until": "", **more}
        return messages.result(self._ask(request, deadline, stdin=stdin.fileno()))

    @contextmanager
    def _file(self, content: bytes) -> Iterator[IO[bytes]]:
        try:
            with tempfile.TemporaryFile() as source:
                source.write(content)
                source.seek(0)
                yield source
        except OSError as error:
            raise SshForkServerLost(f"no temporary file for {self._peer}: {messages.text_of(error)}") from error

    def _ask(
        self,
        request: Mapping[str, Any],
        deadline: Deadline,
        at_most: float = float("inf"),
        stdin: int | None = None,
    ) -> dict[str, Any]:
        """Return the answer of the process, within *deadline* and *at_most* seconds; else end the process."""
        if self._lost:
            raise RequestFailed(SshFailure.LOST, "it was lost or closed before")
        try:
            seconds = deadline.left(at_most)
        except TimeLimitExceeded:
            raise _Late from None
        message = messages.encode({**self._limits, "seconds": seconds, **request})
        self._requests.settimeout(seconds)
        try:
            with suppress(ConnectionError):  # it has ended; its last message says how
                socket.send_fds(self._requests, [message], [] if stdin is None else [stdin])
            answer = self._answer()
        except TimeoutError:
            self.close()
            raise _Late(f"{seconds:.3g}") from None
        if not answer:  # the fork server reports every other end of the process
            self.close()
            raise SshForkServerLost
        return messages.decode(answer)

    def _answer(self) -> bytes:
        """Return the next message, empty if there is none. After a request that was not read, the first read fails."""
        for _ in range(2):
            with suppress(ConnectionError):
                return self._requests.recv(messages.MESSAGE_BYTES)
        return b""

    @contextmanager
    def _step(self, doing: str, fault: type[SshError] = SshError) -> Iterator[None]:
        """Name what failed; raise *fault* for a failure on a working connection."""
        try:
            yield
        except _Late as late:
            if not late.args:
                raise SshTimedOut(f"no time was left for {doing} {self._peer}") from late
            raise SshTimedOut(f"{doing} {self._peer} took longer than {late} s") from late
        except RequestFailed as error:
            text = printable(error.text, messages.TEXT)
            if error.failure is SshFailure.FAILED:
                raise fault(f"{doing} {self._peer} failed: {text}") from error
            if error.failure is SshFailure.LOGIN:
                raise SshAuthenticationFailed(f"{self._peer} refuses our key for {self._user}: {text}") from error
            if error.failure is SshFailure.FLOODED:
                raise MalformedAnswer(text) from error
            self.close()
            if error.failure is SshFailure.OURS:
                raise SshForkServerLost(f"{doing} {self._peer} ended: {text}") from error
            if error.failure is SshFailure.MISBEHAVED:
                raise SshMisbehaved(f"{self._peer} misbehaved while {doing} it: {text}") from error
            raise SshConnectionLost(f"the connection broke while {doing} {self._peer}: {text}") from error


class _Late(Exception):
    """The time is over; holds the seconds that there were, if any."""


def _script(script: str, *arguments: str) -> str:
    """Return the command that runs *script* with *arguments*, whatever shell the user has."""
    return shlex.join(["sh", "-c", script, "shepherd", *arguments])
