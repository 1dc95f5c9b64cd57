"""The process of the agent: one for each machine, and independent of the SSH session that started it."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import time
from pathlib import Path

from .refusal import AgentRefusal

_KILL_SECONDS = 10


def older_agents(path: str) -> list[int]:
    """Return the detached agents that were started from *path*, also those that no longer have a pid file."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            *_, last, _ = (process / "cmdline").read_bytes().split(b"\0")
            detached = (process / "fd/0").readlink() == Path(os.devnull)
            if detached and os.path.realpath(os.fsdecode(last)) == path:
                found.append(int(process.name))
        except (OSError, ValueError):
            continue  # it is no process, has ended, or belongs to another user
    return found


def has_open(pid: int, path: str) -> bool:
    """Return whether process *pid* has the file *path* open."""
    try:
        file = Path(path).stat()
        return any(os.path.samestat(file, entry.stat()) for entry in os.scandir(f"/proc/{pid}/fd"))
    except OSError:
        return False


def keep_memory_private() -> None:
    """Disable core dumps, which would write the private key to the disk."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class PidFile:
    """
    A locked file with the process id of the agent.

    The lock belongs to all processes that have this file open: the detached
    agent inherits it, and it is released when the agent ends, however that
    happens.
    """

    def __init__(self, path: str) -> None:
        """
        Lock *path* and write the id of this process to it; kill the older agent, if there is one.

        Raises:
            OSError: the file cannot be written.
            AgentRefusal: the older agent cannot be killed.
        """
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        end = time.monotonic() + _KILL_SECONDS
        while not self._lock():
            self._kill_older()
            if time.monotonic() > end:
                raise AgentRefusal(f"the agent that holds the lock on {path} cannot be killed")
            time.sleep(0.02)
        try:
            self.name(os.getpid())
        except OSError:
            os.close(self._file)  # a lock without a process id would block every later agent
            raise

    def name(self, pid: int) -> None:
        """Overwrite the process id with *pid*, in place, because the disk may be full by now."""
        os.pwrite(self._file, b"%-20d\n" % pid, 0)

    def _lock(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _kill_older(self) -> None:
        text = os.pread(self._file, 20, 0).strip()
        # If the agent has just started or ended, the id is missing or stale: the caller tries again.
        if text.isdigit() and self._is_opened_by(int(text)):
            os.kill(int(text), signal.SIGKILL)

    def _is_opened_by(self, pid: int) -> bool:
        """Return whether process *pid* is an agent, not another process with a reused id."""
        return pid != os.getpid() and has_open(pid, f"/proc/self/fd/{self._file}")


def detach(pid_file: PidFile | None) -> None:
    """
    Continue in a new process without terminal, session or standard streams.

    Returns in that process only. The calling process exits, with status 0 once
    the new one runs and its id is in *pid_file*.
    """
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        os._exit(0 if status == 0 else 1)
    os.setsid()
    agent = os.fork()
    if agent:
        # Not done by the agent itself: if it were stopped before, no later agent could replace it.
        if pid_file is not None:
            pid_file.name(agent)
        os._exit(0)
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.close(null)
