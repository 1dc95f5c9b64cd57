"""
Upload speed and memory of our SSH, compared with OpenSSH's sftp over the same link, by the size of the file.

The stock client is measured twice: with its defaults, by which it prefers
ChaCha20 if the server has it, as here; and with the cipher of ours.
"""

import threading
import time
from collections.abc import Callable

from shepherd_core.adapters.agent_cache import AgentCache
from shepherd_core.adapters.ssh.client import CIPHERS
from shepherd_core.adapters.ssh.dialer import SshDialer
from shepherd_core.domain.clock import Deadline, SystemClock

from bench.results import Curve, Result, Table, in_turn, median
from bench.ssh.pool import BenchPool, machines
from bench.ssh.processes import memory, processor_seconds

SIZES = (1, 10, 100)
_MB = 1_000_000


def measure(*, quick: bool) -> Result:
    """Return the figures."""
    rows = []
    with machines(1) as machine_pool:
        for size in (1,) if quick else SIZES:
            repeats = 1 if quick else 7
            ways = {
                "ours": _ours(machine_pool, size * _MB),
                "sftp": _theirs(machine_pool, size * _MB),
                "same": _theirs(machine_pool, size * _MB, "-c", CIPHERS[0]),
            }
            seconds = in_turn(repeats, ways)
            spent = in_turn(repeats, {name: _processor(way) for name, way in ways.items()})
            rates = [size / median(taken) for taken in seconds.values()]
            ratios = [_ratio(seconds[other], seconds["ours"]) for other in ("sftp", "same")]
            costs = [_ratio(spent["ours"], spent[other]) for other in ("sftp", "same")]
            rows.append([size, *rates, *ratios, *costs, _growth(machine_pool, size * _MB)])
    result = Result()
    result.tables.append(
        Table(
            "An upload to a simulated machine, connecting included",
            [
                "MB",
                "ours MB/s",
                "sftp MB/s",
                "sftp, our cipher MB/s",
                "ratio",
                "ratio, our cipher",
                "our processor time to sftp's",
                "to sftp's, our cipher",
                "our memory grows by MB",
            ],
            rows,
        )
    )
    result.curves.append(
        Curve(
            "upload",
            "Uploading an agent",
            "MB",
            "MB per second",
            {
                name: [(row[0], row[column]) for row in rows]
                for column, name in enumerate(("ours", "OpenSSH's sftp", "sftp with our cipher"), start=1)
            },
        )
    )
    for row in rows:
        result.at_least(f"{row[0]} MB: times the speed of sftp", 0.7, row[4])
        result.at_least(f"{row[0]} MB: times the speed of sftp with our cipher", 0.7, row[5])
    if not quick:
        result.at_least("speed at 100 MB, times that at 10 MB", 0.7, rows[2][1] / rows[1][1])
        result.at_most("memory, MB more at 100 MB than at 1 MB", 8, rows[2][-1] - rows[0][-1])
    return result


def _ours(machine_pool: BenchPool, size: int) -> Callable[[], float]:
    dialer = SshDialer(machine_pool.private_key, "root", machine_pool.port, 10)
    binary = AgentCache(machine_pool.folder).fetch(str(machine_pool.agent(size)))

    def way() -> float:
        began = time.perf_counter()
        deadline = Deadline(SystemClock(), 600)
        connection = dialer.dial(machine_pool.addresses[0], None, deadline)
        connection.upload(binary, "/root/agent", deadline)
        seconds = time.perf_counter() - began
        connection.close()
        return seconds

    return way


def _theirs(machine_pool: BenchPool, size: int, *options: str) -> Callable[[], float]:
    source = machine_pool.agent(size)

    def way() -> float:
        began = time.perf_counter()
        machine_pool.sftp(machine_pool.addresses[0], source, *options)
        return time.perf_counter() - began

    return way


def _processor(way: Callable[[], float]) -> Callable[[], float]:
    """Return *way*, measured in processor seconds of our processes: other load matters little."""

    def measured() -> float:
        before = processor_seconds()
        way()
        return processor_seconds() - before

    return measured


def _ratio(ones: list[float], others: list[float]) -> float:
    """Return the median of the ratios of neighbouring measurements."""
    return median([one / other for one, other in zip(ones, others, strict=True)])


def _growth(machine_pool: BenchPool, size: int) -> float:
    """Return by how many megabytes our processes grow, at most, while this one uploads."""
    over = threading.Event()
    before = memory()
    sizes = [before]

    def watch() -> None:
        while not over.wait(0.01):
            sizes.append(memory())

    watching = threading.Thread(target=watch)
    watching.start()
    _ours(machine_pool, size)()
    over.set()
    watching.join()
    return (max(sizes) - before) / _MB
