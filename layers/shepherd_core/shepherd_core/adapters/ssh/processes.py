"""The processes that talk to machines, as the function sees them: it starts the fork server, and asks for a process."""

from __future__ import annotations

import atexit
import os
import select
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path

from shepherd_core.settings.sources import library_path

_FORK_SERVER = "shepherd_core.adapters.ssh.fork_server"


class ForkServer:
    """The fork server of this function; started when it is needed first, or again. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._pid = 0

    def start(self) -> None:
        """Start it, if it does not run; returns before it is ready."""
        with self._lock, suppress(OSError):  # then ``process`` tries again, and says why not
            if self._control is None:
                self._control = self._spawn()

    def wait(self, seconds: float) -> None:
        """
        Start it, if it does not run, and wait until it is ready; one that ends meanwhile is left to ``process``.

        Raises:
            OSError: it cannot be started, or is not ready after *seconds*.
        """
        with self._lock:
            if self._control is None:
                self._control = self._spawn()
            control = self._control.dup()
        ready = select.poll()
        ready.register(control, select.POLLIN)  # its first message, which stays unread for others that wait
        with control:
            if not ready.poll(seconds * 1_000):
                message = f"the fork server was not ready after {seconds:.3g} s"
                raise TimeoutError(message)

    def process(self, machine: socket.socket) -> socket.socket:
        """
        Return the socket for requests to a new process, which has the connection *machine*.

        The caller closes it, which ends the process.

        Raises:
            OSError: no process can be made.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, self._lock:
            for _ in range(2):
                if self._control is None:
                    self._control = self._spawn()
                try:
                    socket.send_fds(self._control, [b"."], [machine.fileno(), theirs.fileno()])
                except OSError:  # it was killed
                    self._control.close()
                    self._control = None
                else:
                    return ours
        ours.close()
        raise OSError("the fork server does not run")

    def _spawn(self) -> socket.socket:
        """Start the fork server with a clean environment: it knows no secret of this function."""
        if self._pid:
            with suppress(ChildProcessError):
                os.waitpid(self._pid, 0)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        atexit.register(ours.close)
        environment = {
            "PYTHONPATH": os.pathsep.join(str(Path(path).absolute()) for path in sys.path if path),
            "MALLOC_ARENA_MAX": "1",  # each arena would count as 64 MiB of a process's memory
            **library_path(),
        }
        with theirs:
            self._pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-P", "-s", "-m", _FORK_SERVER],
                environment,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, theirs.fileno(), 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                ],
            )
        return ours


FORK_SERVER = ForkServer()
"""The one of this process."""
