"""One agent to a machine, in a process that outlives the SSH session that started it."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import time

from .refusal import Refusal

_PATIENCE_SECONDS = 10


def keep_memory_private() -> None:
    """Forbid core dumps: they would write the private key to the disk."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class PidFile:
    """
    A locked file that names the agent's process.

    The lock belongs to the processes that have this file open: it passes on to
    the detached agent, and is gone with it however it ends.
    """

    def __init__(self, path: str) -> None:
        """
        Become the agent that *path* names; kills the older one, if there is one.

        Raises:
            OSError: the file cannot be written.
            Refusal: the older agent cannot be killed.
        """
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        end = time.monotonic() + _PATIENCE_SECONDS
        while not self._lock():
            self._kill_older()
            if time.monotonic() > end:
                raise Refusal(f"the agent that locks {path} cannot be killed")
            time.sleep(0.02)
        try:
            self.name(os.getpid())
        except OSError:
            os.close(self._file)  # a lock without a name would keep every later agent out
            raise

    def name(self, pid: int) -> None:
        """Name process *pid*; over the name before, so that it needs no space on a disk that is full by now."""
        os.pwrite(self._file, b"%-20d\n" % pid, 0)

    def _lock(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _kill_older(self) -> None:
        text = os.pread(self._file, 20, 0).strip()
        # Just started or just ended, it may name nobody, or a process that is gone: the next look will tell.
        if text.isdigit() and self._is_opened_by(int(text)):
            os.kill(int(text), signal.SIGKILL)

    def _is_opened_by(self, pid: int) -> bool:
        """Return whether process *pid* is an agent, and not another one that was given its number since."""
        if pid == os.getpid():
            return False
        ours = os.fstat(self._file)
        try:
            return any(os.path.samestat(ours, entry.stat()) for entry in os.scandir(f"/proc/{pid}/fd"))
        except OSError:
            return False


def detach(pid_file: PidFile | None) -> None:
    """
    Go on in a process of its own, without terminal, session or standard streams.

    Returns in that process only; the one that called exits, with status 0 once
    the other is on its way and named in *pid_file*.
    """
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        os._exit(0 if status == 0 else 1)
    os.setsid()
    agent = os.fork()
    if agent:
        # Not left to the agent itself: it may be stopped before it comes to that, and then nobody could replace it.
        if pid_file is not None:
            pid_file.name(agent)
        os._exit(0)
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.close(null)
