"""Reconcile: the comparison of a provider's listing with as many rows, against a bare comparison of two dicts."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from uuid import uuid4

from shepherd_core.domain.machine import Machine
from shepherd_core.domain.records import Ledger

from bench.results import Curve, Result, Table, in_turn, median

SIZES = (1_000, 10_000, 100_000, 200_000)
LARGE = 100_000


def measure(*, quick: bool) -> Result:
    """Return the figures; each size in a new process, because its peak memory is measured."""
    sizes = (100, 1_000) if quick else SIZES
    repeats = 1 if quick else 9
    figures = {size: _apart(size, repeats, "same") for size in sizes}
    common = sizes[-1] if quick else LARGE
    mixed = {common: _apart(common, repeats, "mixed")}
    result = Result()
    result.tables += [
        _table("The same machines on both sides", figures),
        _table("With 5 % more capacity, and drift or other changes at 1 % of the machines", mixed),
    ]
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
        # A larger fleet fits less into the processor's caches, which slows down the bare comparison too.
        beside = large["ratio"] / figures[10_000]["ratio"]
        result.at_most("the same, divided by the slowdown of the bare comparison", 1.5, beside)
    return result


def _apart(size: int, repeats: int, fleet: str) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.reconcile", str(size), str(repeats), fleet]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def _table(title: str, figures: Mapping[int, Mapping[str, float]]) -> Table:
    names = ("ours", "bare", "ratio", "lists", "peak", "imports")
    return Table(
        title,
        ["machines", "reconcile ms", "bare dicts ms", "ratio", "lists MB", "peak MB", "of which Python and imports MB"],
        [[size, *(found[name] for name in names)] for size, found in figures.items()],
    )


def _one(size: int, repeats: int, fleet: str = "same") -> dict[str, float]:
    from shepherd_core.rules.provisioning import PlanLimits, make_plan  # noqa: PLC0415 - imports are measured separately

    limits = PlanLimits(max_machines=0, chunk=20, drift_limit=3, assimilate=False, abandon_seconds=3600)
    imports = _megabytes()
    listing, ledger = _same(size)
    wanted = 0
    if fleet == "mixed":
        listing, ledger, wanted = _mixed(listing, ledger)
    lists = _megabytes()

    def ours() -> None:
        plan = make_plan(listing, replace(ledger), limits)  # a copy, because a ledger caches results
        if len(plan.drift) != wanted or plan.managed != size:
            raise RuntimeError(plan)

    def bare() -> None:
        here = {machine.provider_id: machine for machine in listing}
        there = {provided.provider_id: provided for provided in ledger.provided}
        if bool(here.keys() - there.keys() | there.keys() - here.keys()) != bool(wanted):
            raise RuntimeError("listing and rows differ from how they were created")

    found = in_turn(repeats, {"ours": _timed(ours), "bare": _timed(bare)})
    ratio = median([one / other for one, other in zip(found["ours"], found["bare"], strict=True)])
    return {
        **{name: 1000 * median(seconds) for name, seconds in found.items()},
        "ratio": ratio,
        "imports": imports,
        "lists": lists - imports,
        "peak": _megabytes(),
    }


def _same(size: int) -> tuple[list[Machine], Ledger]:
    """Return a fleet whose machines are all in use and in the BMDB, in the same order."""
    from ipaddress import IPv4Address  # noqa: PLC0415 - as above

    from shepherd_core.domain.machine import Availability, Machine, ProviderId, ProviderStatus  # noqa: PLC0415
    from shepherd_core.domain.records import Ledger, Provided  # noqa: PLC0415

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


def _mixed(listing: list[Machine], ledger: Ledger) -> tuple[list[Machine], Ledger, int]:
    """
    Return the fleet shuffled and with drift, and the number of machines with drift.

    Of each 500 machines, one has vanished, one belongs to another BMDB, one has failed, one is being released, and
    one that was set aside is back.
    """
    from shepherd_core.domain.machine import INVALID, Availability, Machine, ProviderId  # noqa: PLC0415 - as above

    some = max(1, len(listing) // 500)
    rows = list(ledger.provided)
    first, second, third, fourth = (slice(number * some, (number + 1) * some) for number in range(4))
    listing[first] = [replace(each, provider_id=ProviderId(str(uuid4())), token=uuid4()) for each in listing[first]]
    listing[second] = [replace(each, failed=True) for each in listing[second]]
    rows[third] = [replace(each, asked_seconds=2, released_seconds=1) for each in rows[third]]
    rows[fourth] = [replace(each, set_aside=True) for each in rows[fourth]]
    listing += [
        Machine(provider_id=INVALID, availability=Availability.KNOWN_UNUSED, reservation_id=f"r{number}")
        for number in range(len(listing) // 20)
    ]
    shuffle = Random(7).shuffle
    shuffle(listing)
    shuffle(rows)
    return listing, replace(ledger, provided=tuple(rows)), 2 * some


def _timed(call: Callable[[], None]) -> Callable[[], float]:
    def way() -> float:
        began = time.process_time()
        call()
        return time.process_time() - began

    return way


def _megabytes() -> float:
    """Return the peak memory of this process in MB; ``getrusage`` would include that of its parent."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) / 1000


if __name__ == "__main__":
    print(json.dumps(_one(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])))
