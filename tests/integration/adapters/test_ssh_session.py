import asyncio
import hashlib
import os
import shlex
import shutil
import stat
import subprocess
import threading
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE
from typing import BinaryIO

import asyncssh
import pytest
from asyncssh.packet import UInt32
from shepherd_core.adapters import ssh_keys
from shepherd_core.adapters.ssh.client import CIPHERS
from shepherd_core.adapters.ssh.connection import SshConnection
from shepherd_core.adapters.ssh.dialer import SshDialer
from shepherd_core.agent.takeover import STDERR_BYTES, AgentProgram, RunResult
from shepherd_core.domain.clock import Deadline, SystemClock
from shepherd_core.domain.errors.bmdb import SessionExpired
from shepherd_core.domain.errors.machine import (
    MalformedAnswer,
    SshAuthenticationFailed,
    SshConnectionLost,
    SshError,
    SshTimedOut,
    SshUploadFailed,
)

from tests.conftest import ManualClock
from tests.support import processes
from tests.support.agents.ssh_server import KEY, Process, SshServer, ready, soon
from tests.support.waiting import eventually

MIB = 1 << 20
UMASK = os.umask(0)
os.umask(UMASK)


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
        file = os.fdopen(os.memfd_create("agent"), "w+b")
        file.write(self.content)
        file.seek(0)
        return file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where the agent goes, in a folder of its own, under a name that needs quoting."""
    folder = tmp_path / "it's $HOME"
    folder.mkdir()
    return folder / "the agent"


def script(text: str, size: int = 0) -> Agent:
    """Return an agent that does *text*, followed by so many bytes that the shell does not read."""
    return Agent(f"#!/bin/sh\n{text}\nexit\n".encode() + os.urandom(size))


def start(
    server: SshServer, agent: Agent, path: Path, stdin: bytes = b"", seconds: float = 30, within: Deadline | None = None
) -> RunResult:
    program = AgentProgram(binary=agent, path=str(path), answer_seconds=seconds)
    limit = within or Deadline(SystemClock(), 60)
    with closing(SshDialer(KEY, "root", server.port, 2).dial("127.0.0.1", None, limit)) as connection:
        return connection.start(program, stdin, limit)


@pytest.mark.parametrize("size", [0, 1, 127_999, 128_000, 128_001, 5 * MIB + 17])
def test_upload_arrives_whole_executable_and_once(server: SshServer, path: Path, size: int) -> None:
    """In one command: a machine may allow one channel, and its shell may take seconds to be ready."""
    agent, commands = Agent(script("exit 0", size).content[:size]), []

    async def count(process: Process) -> None:
        commands.append(process.command)
        await server.shell(process)

    server.program = count
    assert (start(server, agent, path).exit_status, path.read_bytes()) == (0, agent.content)
    assert (stat.S_IMODE(path.stat().st_mode), list(path.parent.iterdir())) == (0o755, [path])
    before = path.stat()
    assert (start(server, agent, path).exit_status, path.stat().st_ino, len(commands)) == (0, before.st_ino, 2)


@pytest.mark.parametrize("cipher", CIPHERS)
def test_upload_survives_a_change_of_keys(cipher: str, path: Path) -> None:
    """An sshd changes them after a gigabyte, or as it was told to, in the middle of whatever is sent."""
    server = SshServer(ssh_keys.public_line(KEY))
    server.options = {"encryption_algs": [cipher], "rekey_bytes": MIB}
    agent = script("exit 0", 5 * MIB)
    with server:
        start(server, agent, path)
    assert path.read_bytes() == agent.content


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
    server: SshServer, path: Path, *, size: int, taken: int, words: str
) -> None:
    """A full disk, a read-only and a broken one are repaired in different ways; the old agent stays."""
    tools = path.parent.parent / "tools"
    tools.mkdir()
    head = f"{shutil.which('head')} -c {taken}\necho 'head: write error: {words}' >&2"
    (tools / "head").write_text(f"#!/bin/sh\n{head}\nexit 1\n")
    (tools / "head").chmod(0o755)
    server.tools = str(tools)
    path.write_bytes(b"old")
    with pytest.raises(SshUploadFailed, match=words):
        start(server, Agent(os.urandom(size)), path)
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path], "the unfinished file still takes the space"


def test_a_place_that_can_hold_no_agent_is_named(server: SshServer, path: Path) -> None:
    """`mv` would put each try into a folder, and none would ever run."""
    path.mkdir()
    for place, words in ((path, "the agent is a folder"), (path / "none/agent", r"No such file|nonexistent")):
        with pytest.raises(SshUploadFailed, match=words):
            start(server, Agent(b"agent"), place)
        assert list(path.iterdir()) == []


@pytest.mark.parametrize("shell", [name for name in ("dash", "bash", "busybox", "mksh") if shutil.which(name)])
@pytest.mark.parametrize(
    ("parts", "status", "left"),
    [([], 1, b"old"), ([b"exit 4"], 1, b"old"), ([b"exit 42"], 1, b"exit 42"), ([b"exit 42", b"go\n"], 42, b"exit 42")],
    ids=["nothing", "a part", "the agent", "all"],
)
def test_connection_that_breaks_anywhere_leaves_one_whole_agent(
    server: SshServer, path: Path, *, shell: str, parts: list[bytes], status: int, left: bytes
) -> None:
    """And runs none: nobody would record its key."""
    commands = []

    async def keep(process: Process) -> None:
        commands.append(shlex.split(process.command or "")[1:])
        process.exit(0)

    server.program = keep
    with pytest.raises(SshError, match="hashing"):
        start(server, Agent(b"exit 42"), path)
    path.write_bytes(b"old")
    shells = [shell, "sh"] if shell == "busybox" else [shell]
    with subprocess.Popen([*shells, *commands[0]], stdin=PIPE, stdout=PIPE, bufsize=0) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for part in parts:
            process.stdout.readline()
            process.stdin.write(part)
        process.stdin.close()
        process.stdout.read()
    assert (process.returncode, path.read_bytes(), [*path.parent.iterdir()]) == (status, left, [path])


def test_connection_lost_while_uploading_leaves_the_old_agent(server: SshServer, path: Path) -> None:
    def cut(connection: asyncssh.SSHServerConnection, offset: int) -> None:
        if offset > MIB:
            connection.abort()

    path.write_bytes(b"old")
    server.on_input = cut
    with pytest.raises(SshConnectionLost, match="while uploading"):
        start(server, Agent(bytes(8 * MIB)), path)
    assert path.read_bytes() == b"old"


def test_nothing_is_run_when_it_is_too_late(server: SshServer, path: Path, clock: ManualClock) -> None:
    """The agent would not be recorded, and another session may be at work on the machine by then."""
    uploaded = threading.Event()
    server.on_input = lambda _connection, _offset: uploaded.set()
    late = Deadline(clock, 20, session_left=lambda: 0.0 if uploaded.is_set() else 20.0)
    with pytest.raises(SessionExpired):
        start(server, script(f"touch '{path.parent.parent}/ran'"), path, within=late)
    eventually(lambda: server.sessions == 0)
    assert (path.exists(), (path.parent.parent / "ran").exists()) == (True, False)


def test_an_upload_replaces_the_agent_and_what_was_cut_off(server: SshServer, path: Path) -> None:
    """Writing to the file of a running program breaks it; an agent can exceed 100 MB, and is tried many times."""
    leftover = path.with_name(path.name + ".0123456789abcdef.shepherd-upload")
    others = [path.with_name("the agent.conf"), path.with_name("notes.shepherd-upload")]
    for file in (path, leftover, *others):
        file.write_bytes(b"old")
    with path.open("rb") as running:
        start(server, script("exit 0"), path)
        assert running.read() == b"old"
    assert (path.read_bytes(), sorted(path.parent.iterdir())) == (script("exit 0").content, sorted((path, *others)))


def test_upload_takes_little_memory_whatever_the_size(server: SshServer, path: Path) -> None:
    pids, peaks, agent = list[int](), list[int](), Agent(b"exit 0\n" + bytes(50 * MIB))

    def peak(_connection: object, _offset: int) -> None:
        if not pids:
            pids.extend(processes.below(processes.running("shepherd_core.adapters.ssh.fork_server")[0]))
        peaks.append(processes.peak(pids[-1]))

    server.on_input = peak
    start(server, agent, path)
    assert path.stat().st_size == agent.size
    assert peaks[-1] - peaks[0] < 2 * MIB


def test_an_agent_that_lost_its_mode_is_mended_and_run(server: SshServer, path: Path) -> None:
    """It has the right content, so it would never be uploaded again, nor run. Its umask is that of its user."""
    agent = script("umask; exit 5")
    path.write_bytes(agent.content)
    inode = path.stat().st_ino
    result = start(server, agent, path)
    assert (int(result.stdout, 8), result.exit_status, path.stat().st_ino) == (UMASK, 5, inode)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (142, 'Please login as the user "ubuntu" rather than the user "root".\n\n'),
        (0, "This account is \x1b[31mclosed" + "!" * 1_000),
    ],
)
def test_machine_that_refuses_the_user_with_words_is_quoted(
    server: SshServer, path: Path, *, status: int, words: str
) -> None:
    """Cloud images let root log in and then say which user to take; that is what the operator must read."""

    async def refuse(process: Process) -> None:
        process.stdout.write(words.encode())
        process.exit(status)

    server.program = refuse
    with pytest.raises(SshAuthenticationFailed, match=f"runs no commands for root: {words[:16]}") as caught:
        start(server, Agent(b""), path)
    assert ("\x1b" in str(caught.value), len(str(caught.value)) < 300) == (False, True)


def test_greeting_of_the_shell_is_no_refusal(server: SshServer, path: Path) -> None:
    """Nor a part of the agent's answer."""

    async def greet(process: Process) -> None:
        process.stdout.write(b"Welcome!\n")
        await server.shell(process)

    server.program = greet
    for _ in range(2):
        assert start(server, script("echo answer"), path) == RunResult(b"answer\n", b"", 0)


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
    server: SshServer, path: Path, text: str, stdin: bytes, result: RunResult
) -> None:
    assert start(server, script(text), path, stdin) == result


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
    server: SshServer, path: Path, text: str, seconds: float, error: type[Exception], words: str
) -> None:
    """A program in the place of the agent must not fill our memory; a flood keeps everybody busy, and time passes."""
    with pytest.raises(error, match=words):
        start(server, script(text), path, seconds=seconds)


def test_detached_child_that_holds_the_output_is_not_waited_for(server: SshServer, path: Path) -> None:
    """An agent has to stay; sshd holds the channel open for as long as the agent holds the pipe."""
    stays = threading.Event()

    async def answer_and_stay(process: Process) -> None:
        await ready(process)
        process.stdout.write(b"first half, ")
        process.channel._send_request(b"exit-status", UInt32(0))
        await asyncio.sleep(0.1)  # sshd reads the pipe when it gets to it
        process.stdout.write(b"second half")
        stays.set()
        await process.channel.wait_closed()

    server.program = answer_and_stay
    result = start(server, Agent(b""), path, b"init")
    assert (stays.is_set(), result.stdout, result.exit_status) == (True, b"first half, second half", 0)


def test_program_that_was_killed_has_no_exit_status(server: SshServer, path: Path) -> None:
    """The kernel kills an agent that needs too much memory; that is no lost connection."""

    async def die(process: Process) -> None:
        await ready(process)
        process.exit_with_signal("KILL")

    server.program = die
    assert start(server, Agent(b""), path).exit_status == -1


def test_connection_lost_while_running_is_named(server: SshServer, path: Path) -> None:
    async def cut(process: Process) -> None:
        await ready(process)
        process.stdout.write(b"half")
        process.channel.get_connection().abort()

    server.program = cut
    with pytest.raises(SshConnectionLost, match=r"while running .*the agent"):
        start(server, Agent(b""), path)


@pytest.mark.parametrize(
    ("step", "doing"), [("channel", "hashing"), ("program", "hashing"), ("input", "uploading"), ("input", "running")]
)
def test_machine_that_freezes_times_out_and_stays_lost(
    server: SshServer, connection: SshConnection, path: Path, *, step: str, doing: str
) -> None:
    agent = script("exit 0", 8 * MIB)
    if doing == "running":
        path.write_bytes(agent.content)
    server.freezes_at = step
    program = AgentProgram(binary=agent, path=str(path), answer_seconds=1)
    with pytest.raises(SshTimedOut, match=doing):
        connection.start(program, b"", soon(1))
    with pytest.raises(SshError, match="lost or closed before"):
        connection.start(program, b"", soon())


def test_machine_without_commands_is_named(server: SshServer, path: Path) -> None:
    server.has_commands = False
    with pytest.raises(SshError, match=r"hashing .*the agent"):
        start(server, Agent(b""), path)
