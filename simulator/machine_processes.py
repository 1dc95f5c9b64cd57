"""The processes of simulated machines: known by a mark in their environment, wherever they detached to."""

# Also run by itself, without the rest of the package: the standard library only, and little of it.

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

MARK = "SHEPHERD_SIM_MACHINE"
"""The environment variable that every process of a machine inherits: ``<park>/<machine>``."""


def find(park: str, machine: str | None = None) -> dict[int, str]:
    """
    Return the processes of *machine*, or of all machines of *park*: process id to name of the machine.

    Reads ``/proc`` once, some 15 µs a process of the whole system. A process
    that replaced its environment is not found; a dead one has none.
    """
    wanted = f"{MARK}={park}/".encode()
    found = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            environment = Path(entry.path, "environ").read_bytes()
        except OSError:
            continue  # ended just now, or not ours to look at
        for variable in environment.split(b"\0"):
            if variable.startswith(wanted):
                name = variable.removeprefix(wanted).decode()
                if machine in (None, name):
                    found[int(entry.name)] = name
    return found


def detached(processes: Collection[int]) -> list[int]:
    """Return those of *processes* that live on when SSH is over: their session is not one that the park started."""
    alone = []
    for pid in sorted(processes):
        with contextlib.suppress(ProcessLookupError):
            if not _is_our_child(os.getsid(pid)):
                alone.append(pid)
    return alone


def _is_our_child(pid: int) -> bool:
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    except OSError:
        return False
    return int(after_name.split()[1]) == os.getpid()


def send(number: signal.Signals, processes: Collection[int]) -> None:
    """Send a signal to each of *processes* that is still there."""
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def guard(park: str) -> subprocess.Popen[bytes]:
    """Start a process that kills all processes of *park* when this one dies without doing so; kill it to end it."""
    command = [sys.executable, "-I", "-S", __file__, park]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)


def _guard(park: str) -> None:
    sys.stdin.buffer.read()  # ends when nobody holds the other end any more
    while processes := find(park):
        send(signal.SIGKILL, processes)
        time.sleep(0.01)


if __name__ == "__main__":
    _guard(sys.argv[1])
