"""Installations: run the operator's command once for each request, and keep the result of the last one."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import stat
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ..duration import seconds_from
from ..messages import installation_report
from .permit import NotPermitted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..messages import InstallationRequest
    from .permit import Permit

LIMIT_VARIABLE = "SHEPHERD_AGENT_INSTALL_SECONDS"
GENERATION_VARIABLE = "SHEPHERD_AGENT_INSTALL_GENERATION"
_LIMIT = 3600.0
_LONGEST_OUTPUT = 4096
_POLL_SECONDS = 1.0


def time_limit(environment: Mapping[str, str]) -> float:
    """
    Return the time limit of an installation, in seconds.

    Raises:
        AgentRefusal: see ``seconds_from``.
    """
    return seconds_from(environment, LIMIT_VARIABLE, _LIMIT)


class Installer:
    """Runs one installation at a time, in the background. Not thread-safe."""

    def __init__(self, command: str, limit: float, permit: Permit) -> None:
        """Prepare to run the file *command*, for *limit* seconds at most, for the requests that *permit* accepts."""
        self._command = command
        self._limit = limit
        self._permit = permit
        self._thread: threading.Thread | None = None
        self._generation: int | None = None
        self._outcome = b""
        """The report on the last installation that has ended."""
        self._wanted = False
        """Whether the endpoint waits for the report."""
        self._refusal = b""
        """The report on a request that was refused, until it is sent."""

    def report(self) -> bytes:
        """Return the encoded OSInstallationReport to send; empty if there is none."""
        return self._outcome if self._wanted else self._refusal

    def reported(self) -> None:
        """Record that the endpoint has accepted or refused the report."""
        if self._wanted:
            self._wanted = False
        else:
            self._refusal = b""

    def take(self, request: InstallationRequest) -> None:
        """
        Start the installation of *request*, unless one is running: the endpoint repeats the request.

        The result of the last generation is only reported again; older generations are ignored. A request that is not
        permitted is reported as an error, and changes nothing: a later one may have any generation.
        """
        if self._thread is not None and self._thread.is_alive():
            return
        if self._generation is not None and request.generation <= self._generation:
            self._wanted = self._wanted or request.generation == self._generation
            return
        try:
            permitted = self._permit.check(request)
        except NotPermitted as refusal:
            self._refusal = installation_report(request.generation, f"refused: {refusal}")
            return
        try:
            lock = self._lock()
        except OSError as error:
            self._end(request.generation, f"no installation command is configured: {self._command}: {error.strerror}")
            return
        if lock is None:
            return  # an installation of an earlier agent is still running
        self._thread = threading.Thread(target=self._run, args=(permitted, lock), name="installation", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            os.close(lock)  # the system has no more threads: wait for the repeated request

    def _lock(self) -> int | None:
        """Lock the command's file for all processes of one installation; return None if it is locked already."""
        file = os.open(self._command, os.O_RDONLY | os.O_NONBLOCK)  # without O_NONBLOCK, opening a pipe would wait
        try:
            _check(self._command, file)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return None
        except OSError:
            os.close(file)
            raise
        return file

    def _run(self, request: InstallationRequest, lock: int) -> None:
        try:
            self._permit.use(request.generation)
            error = _execute(self._command, request, self._limit, lock)
        except NotPermitted as refusal:
            error = f"refused: {refusal}"
        except Exception as failure:  # noqa: BLE001 - the endpoint waits for the result of any failure
            error = f"the installation command could not be run: {failure}"
        finally:
            os.close(lock)
        self._end(request.generation, error)

    def _end(self, generation: int, error: str | None) -> None:
        self._generation, self._outcome, self._wanted = generation, installation_report(generation, error), True


def _check(command: str, file: int) -> None:
    """
    Check that only root and the agent's user can change *command*, which is open as *file*.

    As sshd does for the keys of a user (StrictModes): neither the file nor a directory above it may be a link, belong
    to somebody else or be writable by others. Further up, a directory with the sticky bit may be writable by others,
    because only the owner of a file can rename it there.

    Raises:
        OSError: somebody else can change it, or it is not an executable file.
    """
    path = Path(command).absolute()
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode) or not os.access(command, os.X_OK):
        raise FileNotFoundError(0, "not an executable file")
    if path.resolve() != path:
        raise PermissionError(0, f"not safe to run: it is reached by a link, and is {path.resolve()}")
    for place, found in {path: status, **{directory: directory.stat() for directory in path.parents}}.items():
        fault = unsafe(found, os.geteuid(), may_be_sticky=place not in (path, path.parent))
        if fault is not None:
            raise PermissionError(0, f"not safe to run: {place} {fault}")


def unsafe(found: os.stat_result, user: int, *, may_be_sticky: bool) -> str | None:
    """Return why others than root and *user* can change a file or directory; None: they cannot."""
    if found.st_uid not in (0, user):
        return f"belongs to user {found.st_uid}, not to root"
    sticky = may_be_sticky and found.st_mode & stat.S_ISVTX
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not sticky:
        return f"is writable by others (mode {stat.S_IMODE(found.st_mode):04o})"
    return None


def _execute(command: str, request: InstallationRequest, limit: float, lock: int) -> str | None:
    """Run *command* and return the reason of a failure, None for success."""
    end = time.monotonic() + limit
    # In memory: the request may hold secrets of the new system, and the disk is about to be overwritten.
    with os.fdopen(os.memfd_create("request"), "w+b", buffering=0) as source:
        source.write(request.received)
        source.seek(0)
        process = subprocess.Popen(  # noqa: S603 - the operator's own command
            [command],
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, GENERATION_VARIABLE: str(request.generation)},
            start_new_session=True,
            pass_fds=(lock,),
            cwd="/",
        )
    assert process.stdout is not None
    with process.stdout:  # open until it has ended: writing to a closed pipe would kill it
        output = _last_output(process, process.stdout.fileno(), end)
        try:
            status = process.wait(max(0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"the installation command took longer than {limit:g} s{output}"
    if status == 0:
        return None
    how = f"ended with status {status}" if status > 0 else f"was killed by signal {-status}"
    return f"the installation command {how}{output}"


def _last_output(process: subprocess.Popen[bytes], pipe: int, end: float) -> str:
    """Read the output of *process* until it has ended or *end* is reached; return the last part, after a colon."""
    output = b""
    while (left := end - time.monotonic()) > 0:
        exited = process.poll() is not None  # before reading, so that no output is missed
        if select.select([pipe], [], [], 0 if exited else min(left, _POLL_SECONDS))[0]:
            chunk = os.read(pipe, 1 << 16)
            if not chunk:
                break
            output = (output + chunk)[-_LONGEST_OUTPUT:]
        elif exited:
            break  # a child process that it left behind holds the pipe open
    text = output.decode(errors="replace").strip()
    return f": {text}" if text else ""
