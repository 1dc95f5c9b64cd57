"""
The fork server of a function: a process that makes one process for each machine, and ends it.

Run as ``python -m`` with the control socket as standard input. A message there
brings a connection to a machine and the socket for its requests. The fork server
forks, which takes milliseconds because it has imported everything; unlike the
function it has one thread, so that forking is safe, and it knows no secret. A
machine's process is killed when the function closes the socket of its requests,
or ends. When a process ends by itself, its last message says how.
"""

from __future__ import annotations

import gc
import os
import resource
import select
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass

from shepherd_core.adapters.ssh import child, messages
from shepherd_core.adapters.ssh.messages import SshFailure

_CONTROL = 0
"""The file descriptor of the control socket."""


@dataclass(frozen=True, slots=True)
class _Child:
    pid: int
    lifeline: int
    """The reading end of a pipe whose other end the process alone holds: it closes when the process ends."""
    requests: socket.socket
    """The child's end, to notice that the function has closed the other, and for the last message."""


class _ForkServer:
    def __init__(self) -> None:
        self._control = socket.socket(fileno=_CONTROL)
        self._poll = select.poll()
        self._poll.register(self._control, select.POLLIN)
        self._children: dict[int, _Child] = {}  # by the process, and by the socket of its requests

    def ready(self) -> None:
        """Tell the function that processes can be made."""
        with suppress(OSError):  # it has ended
            self._control.send(b".")

    def serve(self) -> None:
        """Serve until the function ends; then no process is left."""
        try:
            while True:
                for descriptor, _ in self._poll.poll():
                    if descriptor == _CONTROL:
                        if not self._begin():
                            return
                    elif found := self._children.get(descriptor):  # else it ended in this round
                        if descriptor == found.lifeline:
                            self._end(found)
                        else:
                            self._poll.unregister(descriptor)
                            os.kill(found.pid, signal.SIGKILL)
        finally:
            for left in set(self._children.values()):
                os.kill(left.pid, signal.SIGKILL)

    def _begin(self) -> bool:
        """Make the process for one machine; return False if the function has ended."""
        try:
            message, descriptors, _, _ = socket.recv_fds(self._control, 1, 2)
        except ConnectionResetError:  # it has ended, and nobody read that this is ready
            return False
        if not message:
            return False
        machine, requests = (socket.socket(fileno=descriptor) for descriptor in descriptors)
        fork_server = os.getpid()
        try:
            lifeline, held = os.pipe()
            pid = os.fork()
        except OSError as error:
            _report(requests, SshFailure.OURS, f"no process can be made: {error.strerror}")
            machine.close()
            return True
        if pid == 0:
            os.close(lifeline)
            self._control.close()
            for other in set(self._children.values()):
                other.requests.close()
                os.close(other.lifeline)
            child.serve(machine, requests, fork_server)
        os.close(held)
        machine.close()
        begun = _Child(pid, lifeline, requests)
        self._children[lifeline] = self._children[requests.fileno()] = begun
        self._poll.register(lifeline, 0)  # reports only that the other end is closed
        self._poll.register(requests, 0)
        return True

    def _end(self, ended: _Child) -> None:
        """Report how a process ended, if the function still waits for an answer of it."""
        os.kill(ended.pid, signal.SIGKILL)  # without effect on a process that has ended
        _, status = os.waitpid(ended.pid, 0)
        for descriptor in (ended.lifeline, ended.requests.fileno()):
            del self._children[descriptor]
            with suppress(KeyError):
                self._poll.unregister(descriptor)
        _report(ended.requests, *child.how_it_ended(os.waitstatus_to_exitcode(status)))
        os.close(ended.lifeline)


def _report(requests: socket.socket, failure: SshFailure, text: str) -> None:
    """Tell the function, if it still waits for an answer, and close the socket."""
    requests.settimeout(0)
    with requests, suppress(OSError):  # the function has closed it, or does not read
        requests.send(messages.encode({"failure": failure, "text": text}))


def main() -> None:
    """Serve until the function ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal interrupts the function too, whose end ends this
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.closerange(3, most)  # what the function's process lets its children inherit
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    gc.collect()
    gc.freeze()  # a collection in a child then copies no memory
    server = _ForkServer()
    server.ready()
    server.serve()


if __name__ == "__main__":
    main()
