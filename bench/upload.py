"""Upload speed and memory of our SSH, beside OpenSSH's sftp over the same link, by the size of the file."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

import psutil
from shepherd_core.clock import Deadline, SystemClock
from shepherd_core.object_source import AgentCache
from shepherd_core.ssh import SshDialer

from bench.park import Park, machines
from bench.results import Curve, Result, Table, in_turn, median

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = (1, 10, 100)
_MB = 1_000_000


def measure(*, quick: bool) -> Result:
    """Return the figures."""
    rows = []
    with machines(1) as park:
        for size in (1,) if quick else SIZES:
            repeats = 1 if quick else 3 if size == SIZES[-1] else 7
            found = in_turn(repeats, {"ours": _ours(park, size * _MB), "sftp": _theirs(park, size * _MB)})
            ours, theirs = size / median(found["ours"]), size / median(found["sftp"])
            spent = median(_spent(_ours(park, size * _MB), repeats)) / median(
                _spent(_theirs(park, size * _MB), repeats)
            )
            ratio = median([their / our for our, their in zip(found["ours"], found["sftp"], strict=True)])
            rows.append([size, ours, theirs, ratio, spent, _growth(park, size * _MB)])
    result = Result()
    result.tables.append(
        Table(
            "An upload to a simulated machine, connecting included",
            ["MB", "ours MB/s", "sftp MB/s", "ratio", "our processor time to sftp's", "our memory grows by MB"],
            rows,
        )
    )
    result.curves.append(
        Curve(
            "upload",
            "Uploading an agent",
            "MB",
            "MB per second",
            {"ours": [(row[0], row[1]) for row in rows], "OpenSSH's sftp": [(row[0], row[2]) for row in rows]},
        )
    )
    for row in rows:
        result.at_least(f"{row[0]} MB: times the speed of sftp", 0.7, row[3])
    if not quick:
        result.at_least("speed at 100 MB, times that at 10 MB", 0.7, rows[2][1] / rows[1][1])
        result.at_most("memory, MB more at 100 MB than at 1 MB", 8, rows[2][5] - rows[0][5])
    return result


def _ours(park: Park, size: int) -> Callable[[], float]:
    dialer = SshDialer(park.private_key, "root", park.port, 10)
    binary = AgentCache(park.folder).fetch(str(park.agent(size)))

    def way() -> float:
        began = time.perf_counter()
        deadline = Deadline(SystemClock(), 600)
        connection = dialer.dial(park.addresses[0], None, deadline)
        connection.upload(binary, "/root/agent", deadline)
        seconds = time.perf_counter() - began
        connection.close()
        return seconds

    return way


def _theirs(park: Park, size: int) -> Callable[[], float]:
    source = park.agent(size)

    def way() -> float:
        began = time.perf_counter()
        park.sftp(park.addresses[0], source)
        return time.perf_counter() - began

    return way


def _spent(way: Callable[[], float], repeats: int) -> list[float]:
    """Return the processor seconds of this process and its children, which other load hardly changes."""
    figures = []
    for _ in range(repeats):
        before = os.times()
        way()
        figures.append(sum(os.times()[:4]) - sum(before[:4]))
    return figures


def _growth(park: Park, size: int) -> float:
    """Return how many megabytes this process is larger, at most, while it uploads."""
    process, over = psutil.Process(), threading.Event()
    before = process.memory_info().rss
    sizes = [before]

    def watch() -> None:
        while not over.wait(0.01):
            sizes.append(process.memory_info().rss)

    watching = threading.Thread(target=watch)
    watching.start()
    _ours(park, size)()
    over.set()
    watching.join()
    return (max(sizes) - before) / _MB
