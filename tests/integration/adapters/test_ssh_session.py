"""Uploading to machines and running programs there, against a real server, a real shell and real files."""

import asyncio
import hashlib
import os
import socket
import stat
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import asyncssh
import pytest
from asyncssh.packet import UInt32
from shepherd_core.adapters import ssh_keys
from shepherd_core.adapters.ssh.client import CIPHERS, Client
from shepherd_core.adapters.ssh.connection import SshConnection
from shepherd_core.adapters.ssh.dialer import SshDialer
from shepherd_core.agent.takeover import STDERR_BYTES, RunResult
from shepherd_core.domain.clock import Deadline
from shepherd_core.domain.errors.machine import (
    MalformedAnswer,
    SshAuthenticationFailed,
    SshConnectionLost,
    SshError,
    SshTimedOut,
    SshUploadFailed,
)

from tests.support import processes
from tests.support.agents.ssh_server import KEY, Process, SshServer, soon

MIB = 1 << 20


@dataclass
class Agent:
    content: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def size(self) -> int:
        return len(self.content)

    def open(self) -> BinaryIO:
        return in_memory(self.content)


def in_memory(content: bytes) -> BinaryIO:
    file = os.fdopen(os.memfd_create("agent"), "w+b")
    file.write(content)
    file.seek(0)
    return file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where the agent goes, in a folder of its own, under a name that needs quoting."""
    folder = tmp_path / "it's $HOME"
    folder.mkdir()
    return folder / "the agent"


def script(text: str) -> Agent:
    return Agent(f"#!/bin/sh\n{text}\n".encode())


@pytest.mark.parametrize("size", [0, 1, 127_999, 128_000, 128_001, 5 * MIB + 17])
def test_upload_arrives_whole_and_executable(
    connection: SshConnection, path: Path, deadline: Deadline, size: int
) -> None:
    agent = Agent(os.urandom(size))
    assert not connection.has(str(path), agent.sha256, deadline)
    connection.upload(agent, str(path), deadline)
    assert path.read_bytes() == agent.content
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    assert list(path.parent.iterdir()) == [path]
    assert connection.has(str(path), agent.sha256, deadline)


@pytest.mark.parametrize("cipher", CIPHERS)
def test_upload_survives_a_change_of_keys(cipher: str, path: Path, deadline: Deadline) -> None:
    """An sshd changes them after a gigabyte, or as it was told to, in the middle of whatever is sent."""
    server = SshServer(ssh_keys.public_line(KEY))
    server.options = {"encryption_algs": [cipher], "rekey_bytes": MIB}
    agent = Agent(os.urandom(5 * MIB))
    with server, closing(SshDialer(KEY, "root", server.port, 2).dial("127.0.0.1", None, deadline)) as connection:
        connection.upload(agent, str(path), deadline)
    assert path.read_bytes() == agent.content


def test_running_agent_is_replaced_and_not_overwritten(
    connection: SshConnection, path: Path, deadline: Deadline
) -> None:
    """Writing to the file of a running program fails, or breaks the program."""
    path.write_bytes(b"old")
    with path.open("rb") as running:
        connection.upload(Agent(b"new"), str(path), deadline)
        assert running.read() == b"old"
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize(
    ("size", "taken", "words"),
    [
        (384_000, 0, "Permission denied"),
        (384_000, 256_000, "Input/output error"),
        (20 * MIB, 0, "Permission denied"),
        (20 * MIB, 16 * MIB, "No space left on device"),
    ],
)
def test_failed_write_is_named_wherever_it_happens(
    server: SshServer, connection: SshConnection, path: Path, deadline: Deadline, *, size: int, taken: int, words: str
) -> None:
    """A full disk, a read-only and a broken one are repaired in different ways; the old agent stays."""
    tools = path.parent.parent / "tools"
    tools.mkdir()
    (tools / "cat").write_text(f"#!/bin/sh\nhead -c {taken}\necho 'cat: write error: {words}' >&2\nexit 1\n")
    (tools / "cat").chmod(0o755)
    server.tools = str(tools)
    path.write_bytes(b"old")
    with pytest.raises(SshUploadFailed, match=words):
        connection.upload(Agent(os.urandom(size)), str(path), deadline)
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path], "the unfinished file still takes the space"


def test_missing_folder_is_named(connection: SshConnection, path: Path, deadline: Deadline) -> None:
    with pytest.raises(SshUploadFailed, match=r"No such file|nonexistent"):
        connection.upload(Agent(b"agent"), str(path / "agent"), deadline)


def test_a_folder_is_no_place_for_an_agent(connection: SshConnection, path: Path, deadline: Deadline) -> None:
    """`mv` would put each try into it, and none would ever run."""
    path.mkdir()
    with pytest.raises(SshUploadFailed, match="the agent is a folder"):
        connection.upload(Agent(b"agent"), str(path), deadline)
    assert list(path.iterdir()) == []


def test_upload_of_another_size_is_refused(connection: SshConnection, path: Path, deadline: Deadline) -> None:
    class Short(Agent):
        def open(self) -> BinaryIO:
            return in_memory(self.content[:-1])

    with pytest.raises(SshUploadFailed, match="4 bytes long instead of 5"):
        connection.upload(Short(b"agent"), str(path), deadline)
    assert list(path.parent.iterdir()) == []


def test_connection_lost_while_uploading_leaves_the_old_agent(
    server: SshServer, connection: SshConnection, path: Path, deadline: Deadline
) -> None:
    def cut(connection: asyncssh.SSHServerConnection, offset: int) -> None:
        if offset > MIB:
            connection.abort()

    path.write_bytes(b"old")
    server.on_input = cut
    with pytest.raises(SshConnectionLost, match="while uploading"):
        connection.upload(Agent(bytes(8 * MIB)), str(path), deadline)
    assert path.read_bytes() == b"old"


def test_uploads_that_were_cut_off_do_not_pile_up(connection: SshConnection, path: Path, deadline: Deadline) -> None:
    """An agent can exceed 100 MB, and a slow machine is tried many times."""
    leftover = path.with_name(path.name + ".0123456789abcdef.shepherd-upload")
    others = [path.with_name("the agent.conf"), path.with_name("notes.shepherd-upload")]
    for file in (leftover, *others):
        file.write_bytes(b"")
    connection.upload(Agent(b"agent"), str(path), deadline)
    assert sorted(path.parent.iterdir()) == sorted((path, *others))


def test_upload_takes_little_memory_whatever_the_size(
    connection: SshConnection, path: Path, deadline: Deadline
) -> None:
    size = 50 * MIB

    class Sparse(Agent):
        @property
        def size(self) -> int:
            return size

        def open(self) -> BinaryIO:
            file = in_memory(b"")
            file.truncate(size)
            return file

    connection.upload(Agent(b""), str(path), deadline)  # so that what is imported late is
    (process,) = processes.below(processes.running("shepherd_core.adapters.ssh.fork_server")[0])
    before = processes.peak(process)
    connection.upload(Sparse(b""), str(path), deadline)
    assert path.stat().st_size == size
    assert processes.peak(process) - before < 2 * MIB


def test_agent_that_lost_its_mode_is_mended(connection: SshConnection, path: Path, deadline: Deadline) -> None:
    """It has the right content, so it would never be uploaded again, nor run."""
    agent = script("exit 0")
    path.write_bytes(agent.content)
    assert connection.has(str(path), agent.sha256, deadline)
    assert connection.run(str(path), b"", deadline).exit_status == 0


def test_machine_that_allows_one_channel_at_a_time_is_served(
    server: SshServer, connection: SshConnection, path: Path, deadline: Deadline
) -> None:
    """As an sshd with MaxSessions 1: a channel may be opened when the last one is closed at both ends."""
    server.max_sessions = 1
    agent = script("exit 0")
    for _ in range(5):
        assert not connection.has(str(path), agent.sha256, deadline)
        connection.upload(agent, str(path), deadline)
        assert connection.run(str(path), b"", deadline).exit_status == 0
        path.unlink()


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (142, 'Please login as the user "ubuntu" rather than the user "root".\n\n'),
        (0, "This account is \x1b[31mclosed" + "!" * 1_000),
    ],
)
def test_machine_that_refuses_the_user_with_words_is_quoted(
    server: SshServer, connection: SshConnection, path: Path, deadline: Deadline, *, status: int, words: str
) -> None:
    """Cloud images let root log in and then say which user to take; that is what the operator must read."""

    async def refuse(process: Process) -> None:
        process.stdout.write(words.encode())
        process.exit(status)

    server.program = refuse
    with pytest.raises(SshAuthenticationFailed, match=f"runs no commands for root: {words[:16]}") as caught:
        connection.has(str(path), "0" * 64, deadline)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_greeting_of_the_shell_is_no_refusal(
    server: SshServer, connection: SshConnection, path: Path, deadline: Deadline
) -> None:
    async def greet(process: Process) -> None:
        process.stdout.write(b"Welcome!\n")
        await server.shell(process)

    server.program = greet
    path.write_bytes(b"agent")
    assert connection.has(str(path), Agent(b"agent").sha256, deadline)
    assert not connection.has(str(path), Agent(b"another").sha256, deadline)


BYTES = bytes(range(256)) * 250
FLOOD = "head -c 5000000 /dev/zero | tr '\\0' e >&2"


@pytest.mark.parametrize(
    ("text", "stdin", "result"),
    [
        # Bytes are bytes, in all three directions, and the end of input is the end.
        ("cat; echo oops >&2; exit 3", BYTES, RunResult(BYTES, b"oops\n", 3)),
        # An agent that knows at once that it cannot run still gets to say so.
        ("exec <&-; echo no; exit 1", bytes(MIB), RunResult(b"no\n", b"", 1)),
        # Both outputs share the channel: one that is not read would keep the other from coming.
        (
            f"{FLOOD}; head -c 60000 /dev/zero; {FLOOD}; printf end >&2",
            b"",
            RunResult(bytes(60_000), b"e" * (STDERR_BYTES - 3) + b"end", 0),
        ),
        # A program that closed its output is waited for.
        ("printf done; exec >&- 2>&-; sleep 0.2; exit 7", b"", RunResult(b"done", b"", 7)),
    ],
    ids=["bytes", "unread input", "two floods", "closed output"],
)
def test_program_gets_its_input_and_gives_its_output(
    connection: SshConnection, path: Path, deadline: Deadline, text: str, stdin: bytes, result: RunResult
) -> None:
    """What counts is its exit status; that of a missing program the shell gives."""
    assert connection.run(str(path), b"", deadline).exit_status == 127
    connection.upload(script(text), str(path), deadline)
    assert connection.run(str(path), stdin, deadline) == result


@pytest.mark.parametrize(
    ("text", "seconds", "error", "words"),
    [
        ("exec cat /dev/zero", 30, MalformedAnswer, "more than 64 KiB"),
        ("exec cat /dev/zero >&2", 1, SshTimedOut, "running"),
        ("exec sleep 60", 0.3, SshTimedOut, r"running .* took longer than 0\.\d+ s"),
    ],
    ids=["answer", "complaint", "silence"],
)
def test_program_without_end_is_cut_off(
    connection: SshConnection, path: Path, text: str, seconds: float, error: type[Exception], words: str
) -> None:
    """A program in the place of the agent must not fill our memory; a flood keeps everybody busy, and time passes."""
    connection.upload(script(text), str(path), soon(30))
    with pytest.raises(error, match=words):
        connection.run(str(path), b"", soon(seconds))


def test_detached_child_that_holds_the_output_is_not_waited_for(
    server: SshServer, connection: SshConnection, deadline: Deadline
) -> None:
    """An agent has to stay; sshd holds the channel open for as long as the agent holds the pipe."""
    stays = threading.Event()

    async def answer_and_stay(process: Process) -> None:
        process.stdout.write(b"first half, ")
        process.channel._send_request(b"exit-status", UInt32(0))
        await asyncio.sleep(0.1)  # sshd reads the pipe when it gets to it
        process.stdout.write(b"second half")
        stays.set()
        await process.channel.wait_closed()

    server.program = answer_and_stay
    result = connection.run("agent", b"init", deadline)
    assert stays.is_set()
    assert (result.stdout, result.exit_status) == (b"first half, second half", 0)


def test_program_that_was_killed_has_no_exit_status(
    server: SshServer, connection: SshConnection, deadline: Deadline
) -> None:
    """The kernel kills an agent that needs too much memory; that is no lost connection."""

    async def die(process: Process) -> None:
        process.exit_with_signal("KILL")

    server.program = die
    assert connection.run("agent", b"", deadline).exit_status == -1


def test_late_message_to_a_closed_channel_is_not_sent(server: SshServer) -> None:
    """A thread of ours may be between making and sending it when another answers the machine's CLOSE."""

    async def end(process: Process) -> None:
        process.exit(0)

    server.program = end
    with socket.create_connection(("127.0.0.1", server.port)) as machine:
        client = Client(machine)
        client.exchange_keys("ssh-ed25519")
        client.log_in("root", KEY)
        assert client.execute("agent", os.memfd_create("input")).exit_status == 0
        channel = client._transport.channel
        assert channel is not None
        assert client._transport.unlinked.wait(20)
        channel.eof_sent = False
        channel.shutdown_write()
        assert client.execute("agent", os.memfd_create("input")).exit_status == 0
        client._transport.close()


def test_connection_lost_while_running_is_named(
    server: SshServer, connection: SshConnection, deadline: Deadline
) -> None:
    async def cut(process: Process) -> None:
        process.stdout.write(b"half")
        process.channel.get_connection().abort()

    server.program = cut
    with pytest.raises(SshConnectionLost, match="while running agent"):
        connection.run("agent", b"", deadline)
    with pytest.raises(SshConnectionLost, match="while hashing agent"):
        connection.has("agent", "0" * 64, deadline)


DOINGS: dict[str, Callable[[SshConnection, str], object]] = {
    "uploading": lambda connection, path: connection.upload(Agent(bytes(8 * MIB)), path, soon()),
    "running": lambda connection, path: connection.run(path, b"", soon()),
    "hashing": lambda connection, path: connection.has(path, "0" * 64, soon()),
}


@pytest.mark.parametrize(
    ("step", "doing"),
    [
        *((step, "uploading") for step in ("channel", "program", "input")),
        *((step, "running") for step in ("channel", "program")),
        ("program", "hashing"),
    ],
)
def test_machine_that_freezes_times_out_and_stays_lost(
    server: SshServer, connection: SshConnection, path: Path, deadline: Deadline, *, step: str, doing: str
) -> None:
    server.freezes_at = step
    with pytest.raises(SshTimedOut, match=doing):
        DOINGS[doing](connection, str(path))
    with pytest.raises(SshError):
        connection.run(str(path), b"", deadline)
    with pytest.raises(SshError):
        connection.upload(Agent(b"agent"), str(path), deadline)


def test_machine_without_commands_has_nothing_and_runs_nothing(
    server: SshServer, connection: SshConnection, deadline: Deadline
) -> None:
    """Not to know the hash only costs an upload; not to run is a failure."""
    server.has_commands = False
    assert not connection.has("agent", "0" * 64, deadline)
    with pytest.raises(SshError, match="running agent"):
        connection.run("agent", b"", deadline)


def test_hash_that_floods_is_no_hash(server: SshServer, connection: SshConnection, deadline: Deadline) -> None:
    async def flood(process: Process) -> None:
        for _ in range(64):
            process.stdout.write(bytes(65_536))
            await process.stdout.drain()
        process.exit(0)

    server.program = flood
    assert not connection.has("agent", "0" * 64, deadline)
