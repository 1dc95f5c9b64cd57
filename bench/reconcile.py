"""Reconcile: what it takes to compare a provider's listing with as many rows, beside a bare comparison of two dicts."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from bench.results import Curve, Result, Table, in_turn, median

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shepherd_core.bmdb.provisioning import Ledger
    from shepherd_core.machine import Machine

SIZES = (1_000, 10_000, 100_000, 200_000)
LARGE = 100_000


def measure(*, quick: bool) -> Result:
    """Return the figures; each size in a process of its own, whose memory is looked at."""
    sizes = (100, 1_000) if quick else SIZES
    figures = {}
    for size in sizes:
        command = [sys.executable, "-m", "bench.reconcile", str(size), "1" if quick else "9"]
        figures[size] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    result = Result()
    result.tables.append(
        Table(
            "The same machines on both sides",
            [
                "machines",
                "reconcile ms",
                "bare dicts ms",
                "ratio",
                "lists MB",
                "peak MB",
                "of which Python and imports MB",
            ],
            [
                [size, *(found[name] for name in ("ours", "bare", "ratio", "lists", "peak", "imports"))]
                for size, found in figures.items()
            ],
        )
    )
    result.curves.append(
        Curve(
            "reconcile",
            "Comparing a provider's listing with the BMDB's rows",
            "machines",
            "milliseconds",
            {name: [(size, found[name]) for size, found in figures.items()] for name in ("ours", "bare")},
        )
    )
    if not quick:
        large = figures[LARGE]
        result.at_most(f"{LARGE:,} machines: times the bare comparison", 2, large["ratio"])
        result.at_most(f"{LARGE:,} machines: peak memory of the process, MB", 256, large["peak"])
        linear = (large["ours"] / LARGE) / (figures[10_000]["ours"] / 10_000)
        result.at_most("time per machine, times that at 10,000 machines", 1.5, linear)
    return result


def _one(size: int, repeats: int) -> dict[str, float]:
    from shepherd_core.reconcile import Limits, reconcile  # noqa: PLC0415 - what it takes to import is told apart

    limits = Limits(max_machines=0, chunk=20, max_disputed=3, assimilate=False, forget_seconds=3600)
    imports = _megabytes()
    listing, ledger = _sides(size)
    lists = _megabytes()

    def ours() -> None:
        plan = reconcile(listing, replace(ledger), limits)  # new, as after reading: nothing is remembered
        if plan.differences or plan.managed != size:
            raise RuntimeError(plan)

    def bare() -> None:
        here = {machine.provider_id: machine for machine in listing}
        there = {provided.provider_id: provided for provided in ledger.provided}
        if [name for name in here if name not in there] or [name for name in there if name not in here]:
            raise RuntimeError("they differ")

    found = in_turn(repeats, {"ours": _timed(ours), "bare": _timed(bare)})
    ratio = median([one / other for one, other in zip(found["ours"], found["bare"], strict=True)])
    return {
        **{name: 1000 * median(seconds) for name, seconds in found.items()},
        "ratio": ratio,
        "imports": imports,
        "lists": lists - imports,
        "peak": _megabytes(),
    }


def _sides(size: int) -> tuple[Sequence[Machine], Ledger]:
    from ipaddress import IPv4Address  # noqa: PLC0415 - as above

    from shepherd_core.bmdb.provisioning import Ledger, Provided  # noqa: PLC0415
    from shepherd_core.machine import Availability, Machine, ProviderId, ProviderStatus  # noqa: PLC0415

    names = [ProviderId(str(uuid4())) for _ in range(size)]
    listing = [
        Machine(
            provider_id=name,
            availability=Availability.KNOWN_USED,
            address=IPv4Address(0x0A000000 + number),
            location="ams",
            status=ProviderStatus.RUNNING,
        )
        for number, name in enumerate(names)
    ]
    # The rows come from the database: other objects with the same text.
    rows = tuple(Provided(uuid4(), ProviderId("".join(list(name))), None, ProviderStatus.RUNNING) for name in names)
    return listing, Ledger(provided=rows)


def _timed(call: Callable[[], None]) -> Callable[[], float]:
    def way() -> float:
        began = time.process_time()
        call()
        return time.process_time() - began

    return way


def _megabytes() -> float:
    """Return the most memory that this process ever had; what its parent had would count in ``getrusage``."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) / 1000


if __name__ == "__main__":
    print(json.dumps(_one(int(sys.argv[1]), int(sys.argv[2]))))
