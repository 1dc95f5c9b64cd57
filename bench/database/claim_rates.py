"""Measures how fast machines are claimed and finished: by us, by the predecessor, and by a bare UPDATE of one row."""

import time
from collections.abc import Callable

from shepherd_core.bmdb.work import work
from shepherd_core.domain.machine import Process

from bench.fleet import PROVIDER, BenchFleet
from bench.results import in_turn, median
from bench.rivals.predecessor import PAUSE_SECONDS, Predecessor
from bench.workers import Done, Meter, together
from tests.support.bmdb.fleet import administrator

LARGE = 100_000
"""Machines of a fleet that takes long to measure."""
BATCHES = (10, 50)
OURS = (*(f"batch {batch}, together" for batch in BATCHES), f"batch {BATCHES[0]}, singly")
PREDECESSOR = "predecessor"
# The predecessor is stopped after this time, which is enough for a rate.
PREDECESSOR_SECONDS = {1_000: 5.0, 10_000: 5.0, 100_000: 10.0, 1_000_000: 30.0}
BARE_SECONDS = 0.5

_FACTS = work.AgentStarted(b"x" * 32, "key")


def cell(
    fleet: BenchFleet, count: int, repeats: int
) -> tuple[dict[str, float], dict[str, float | None], dict[str, float | None]]:
    """Return by alternative: machines per second; per machine, microseconds of processor time and conflicts."""
    spent: dict[str, list[float]] = {}
    conflicts: dict[str, list[float]] = {}

    def rate(way: str, done: Done) -> float:
        if done.count:
            spent.setdefault(way, []).append(1e6 * done.processor_seconds / done.count)
        return done.count / done.seconds

    def drained(way: str, ready: Callable[[int], Callable[[], Done]]) -> float:
        fleet.make_due(spare=count)
        before = fleet.conflicts()
        done = Done.by_all(together(count, ready))
        if done.count:
            # Includes the conflicts and the machines of the warm-up.
            conflicts.setdefault(way, []).append((fleet.conflicts() - before) / (done.count + count))
        return rate(way, done)

    def ours(way: str, batch: int, *, singly: bool) -> float:
        figure = drained(way, lambda _: _ours(fleet, batch, singly=singly))
        if left := fleet.left():
            raise RuntimeError(f"{left} of {fleet.due} due machines were not finished")
        return figure

    together_10, together_50, singly_10 = OURS
    ways: dict[str, Callable[[], float]] = {
        "bare UPDATE": lambda: rate("bare UPDATE", _bare(fleet, count)),
        together_10: lambda: ours(together_10, BATCHES[0], singly=False),
        together_50: lambda: ours(together_50, BATCHES[1], singly=False),
        singly_10: lambda: ours(singly_10, BATCHES[0], singly=True),
    }
    figures = {name: median(found) for name, found in in_turn(repeats, ways).items()}
    seconds = PREDECESSOR_SECONDS.get(fleet.machines, 1.0)
    slow = fleet.machines >= LARGE
    found = [drained(PREDECESSOR, lambda _: _predecessor(fleet, seconds)) for _ in range(1 if slow else repeats)]
    figures = {PREDECESSOR: median(found), **figures}
    medians = [{way: median(of[way]) if way in of else None for way in figures} for of in (spent, conflicts)]
    return figures, medians[0], medians[1]


def eager_predecessor(fleet: BenchFleet, count: int) -> tuple[float, float]:
    """Return the predecessor's machines per second and conflicts per machine, without pauses after conflicts."""
    fleet.make_due(spare=count)
    before = fleet.conflicts()
    done = Done.by_all(together(count, lambda _: _predecessor(fleet, PREDECESSOR_SECONDS[LARGE], pause_seconds=0)))
    return done.count / done.seconds, (fleet.conflicts() - before) / (done.count + count)


def _ours(fleet: BenchFleet, batch: int, *, singly: bool) -> Callable[[], Done]:
    session = fleet.session()
    meter = Meter(session.connection._connected())  # noqa: SLF001 - to find the server's process
    # Warm up like a warm function: one spare machine for each worker, and a claim that finds nothing.
    warm = work.claim(session, Process.AGENT_START, PROVIDER, 1)
    work.finish_agent_start(session, dict.fromkeys(warm.work, _FACTS))
    work.claim(session, Process.AGENT_START, "nobody", batch)

    def run() -> Done:
        meter.begin()
        began = last = time.perf_counter()
        count = 0
        while True:
            claim = work.claim(session, Process.AGENT_START, PROVIDER, batch)
            if not claim.examined:
                return Done(count, last - began, meter.spent())
            done = dict.fromkeys(claim.work, _FACTS)
            for part in [{each: _FACTS} for each in done] if singly else [done]:
                count += len(work.finish_agent_start(session, part))
            last = time.perf_counter()

    return run


def _predecessor(fleet: BenchFleet, seconds: float, pause_seconds: float = PAUSE_SECONDS) -> Callable[[], Done]:
    worker = Predecessor(fleet.settings, pause_seconds)
    worker.drain(seconds, at_most=1)
    return lambda: worker.drain(seconds)


def _bare(fleet: BenchFleet, count: int) -> Done:
    """Update rows over *count* connections, each its own rows, one at a time."""

    def ready(number: int) -> Callable[[], Done]:
        own = administrator(fleet.settings)
        meter = Meter(own)
        machine_ids = [row[0] for row in own.run("SELECT machine_id FROM bench_bare ORDER BY machine_id")]
        machine_ids = machine_ids[number::count]
        update = own.prepare("UPDATE bench_bare SET count = count + 1 WHERE machine_id = :machine_id")
        update.run(machine_id=machine_ids[0])

        def run() -> Done:
            meter.begin()
            began = time.perf_counter()
            done = 0
            while time.perf_counter() - began < BARE_SECONDS:
                update.run(machine_id=machine_ids[done % len(machine_ids)])
                done += 1
            return Done(done, time.perf_counter() - began, meter.spent())

        return run

    return Done.by_all(together(count, ready))
