"""The SSH services of a simulated machine: SFTP on its disk, and commands."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import posixpath
import pwd
import random
import shlex
import signal
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import asyncssh

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Awaitable, Sequence

    from simulator.machines.server import MachineServer

HOME = "/root"
PATH = f"{sys.base_exec_prefix}/bin:{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
"""Real Pythons first, because ``python3`` may be a slow wrapper on a developer's computer."""

_LOG = logging.getLogger(__name__)
_USER_IDS = range(61_184, 65_520)
"""The ids that systemd gives to users that exist while a service runs; most containers map them, too."""

_TOOLS = frozenset(
    ("cat", "chmod", "false", "ls", "mkdir", "mv", "rm", "sh", "sha256sum", "stat", "test", "true", "uname")
)
_USAGE, _NOT_EXECUTABLE, _NOT_FOUND = 2, 126, 127
_CHUNK = 1 << 16


class Sftp(asyncssh.SFTPServer):
    """SFTP on the disk of a machine, which may be full."""

    def __init__(self, channel: asyncssh.SSHServerChannel[bytes], machine: MachineServer) -> None:
        self._machine = machine
        super().__init__(channel, chroot=os.fsencode(machine.disk))

    def open(self, path: bytes, pflags: int, attrs: asyncssh.SFTPAttrs) -> object:
        """Open a file, which belongs to the machine's user."""
        opened = super().open(path, pflags, attrs)
        if self._machine.user is not None:
            os.fchown(opened.fileno(), self._machine.user, self._machine.user)  # type: ignore[attr-defined]
        return opened

    def write(self, file_obj: object, offset: int, data: bytes) -> int | Awaitable[int]:
        """Write, if there is space."""
        if self._machine.disk_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(file_obj, offset, data)


class _Failure(NamedTuple):
    status: int
    message: str


async def execute(machine: MachineServer, client: asyncssh.SSHServerProcess[bytes]) -> None:
    """
    Run the client's command; end the session when it has exited and its output is closed.

    A command is one program with quoted arguments and no other shell syntax:
    the absolute path of a file on the machine's disk, or one of a few tools.
    Tools see the machine's paths and, except ``sh``, have no standard input.
    """
    command = client.command or ""
    try:
        words = shlex.split(command) or ["true"]
    except ValueError as error:
        _fail(client, _Failure(_USAGE, f"{command}: {error}"))
        return
    uploaded = words[0].startswith("/")
    if uploaded:
        started = await _start(machine, [str(locate(machine.disk, words[0])), *words[1:]], stdin=PIPE)
        machine.runs += isinstance(started, asyncio.subprocess.Process)
    elif words[0] in _TOOLS:
        script = 2 if words[:2] == ["sh", "-c"] else None
        arguments = [
            str(locate(machine.disk, word)) if number != script and ("/" in word or word == "..") else word
            for number, word in enumerate(words[1:], 1)
        ]
        if machine.disk_full and script:
            arguments[1] = f"head() {{ echo 'head: {os.strerror(errno.ENOSPC)}' >&2; return 1; }}; {arguments[1]}"
        started = await _start(machine, [words[0], *arguments], stdin=PIPE if words[0] == "sh" else DEVNULL)
    else:
        started = _Failure(_NOT_FOUND, "command not found")
    if isinstance(started, _Failure):
        _fail(client, started._replace(message=f"{words[0]}: {started.message}"))
        return
    await _connect(machine, started, client, hide=b"" if uploaded or words[0] == "sh" else os.fsencode(machine.disk))
    _exit(client, await started.wait())


def unprivileged_user() -> int | None:
    """Return an unused user id, for the programs on machines; None: this process is not root's, or it does not work."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_uid for entry in pwd.getpwall()}
    user = random.choice([number for number in _USER_IDS if number not in known])
    try:
        subprocess.run(
            ["/usr/bin/env", "python3", "-c", ""],
            cwd="/",
            env={"PATH": PATH},
            user=user,
            group=user,
            extra_groups=[],
            check=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        _LOG.warning("simulated machines run as root: no other user can run a python3 of %s: %s", PATH, error)
        return None
    return user


def locate(disk: Path, path: str) -> Path:
    """Return the path on this computer of the machine's *path*, which is absolute or below the home folder."""
    return disk / posixpath.normpath(posixpath.join(HOME, path)).lstrip("/")


async def _start(machine: MachineServer, words: Sequence[str], stdin: int) -> Process | _Failure:
    while True:
        try:
            return await asyncio.create_subprocess_exec(
                *words,
                stdin=stdin,
                stdout=PIPE,
                stderr=PIPE,
                cwd=locate(machine.disk, HOME),
                env=machine.environment,
                start_new_session=True,
                **machine.as_user,
            )
        except FileNotFoundError:
            return _Failure(_NOT_FOUND, "No such file or directory")
        except PermissionError:
            return _Failure(_NOT_EXECUTABLE, "Permission denied")
        except OSError as error:
            # Another process that is being started may hold the uploaded file open for writing between fork and exec.
            if error.errno != errno.ETXTBSY:
                return _Failure(_NOT_EXECUTABLE, str(error.strerror))
            await asyncio.sleep(0.005)


async def _connect(
    machine: MachineServer, process: Process, client: asyncssh.SSHServerProcess[bytes], hide: bytes
) -> None:
    """Copy the three streams until the outputs are closed; like sshd, let the process run on if the client leaves."""
    assert process.stdout is not None
    assert process.stderr is not None
    feeding = asyncio.create_task(_feed(machine, client.stdin, process.stdin)) if process.stdin else None
    try:
        await asyncio.gather(
            _drain(process.stdout, client.stdout, hide),
            _drain(process.stderr, client.stderr, os.fsencode(machine.disk)),
        )
        await process.wait()
    finally:
        if feeding:
            feeding.cancel()
            await asyncio.wait([feeding])


async def _feed(machine: MachineServer, source: asyncssh.SSHReader[bytes], sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(_CHUNK):
            machine.runs += data.startswith(b"go\n")  # before the input of an agent that a script starts
            sink.write(data)
            await sink.drain()
    except (OSError, asyncssh.Error, asyncssh.SignalReceived, asyncssh.BreakReceived):
        pass  # the client or the process has gone
    finally:
        sink.close()


async def _drain(source: asyncio.StreamReader, sink: asyncssh.SSHWriter[bytes], hide: bytes) -> None:
    gone = False
    while data := await source.read(_CHUNK):
        try:
            if not gone:
                sink.write(data.replace(hide, b"") if hide else data)
                await sink.drain()
        except (OSError, asyncssh.Error):
            gone = True


def _fail(client: asyncssh.SSHServerProcess[bytes], failure: _Failure) -> None:
    try:
        client.stderr.write(f"sh: {failure.message}\n".encode())
    except OSError:
        return  # the client has gone
    client.exit(failure.status)


def _exit(client: asyncssh.SSHServerProcess[bytes], status: int) -> None:
    if status < 0:
        client.exit_with_signal(signal.Signals(-status).name.removeprefix("SIG"))
    else:
        client.exit(status)
