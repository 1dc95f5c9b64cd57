"""The processes of simulated machines: known by a mark in their environment, wherever they detached to."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

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


async def kill_all(park: str, machine: str | None, executions: Callable[[], set[asyncio.Task[None]]]) -> None:
    """
    Kill every process of *machine*, or of all machines of *park*, and wait for their *executions* to end.

    Looks again until none is left: one may be born while we look.
    """
    while True:
        processes = await asyncio.to_thread(find, park, machine)
        send(signal.SIGKILL, processes)
        running = executions()
        if running:
            await asyncio.wait(running, timeout=0.02)
        elif processes:
            await asyncio.sleep(0.002)
        else:
            return
