"""The database queries of an invocation by size of the fleet, compared with the predecessor's query."""

import time
from collections.abc import Callable

from shepherd_core.bmdb.recovery import suspension
from shepherd_core.bmdb.work import work
from shepherd_core.domain.machine import Process

from bench.fleet import PROVIDER, BenchFleet
from bench.results import Curve, Result, Table, in_turn, median, timed
from bench.rivals.predecessor import Predecessor
from simulator.environment.postgres import Postgres

SIZES = (1_000, 10_000, 100_000, 1_000_000)
BATCH = 10


def measure(*, quick: bool) -> Result:
    """Return the figures."""
    sizes = (100, 1_000) if quick else SIZES
    repeats = 3 if quick else 60
    with Postgres() as postgres:
        # All fleets at once, so that they can take turns, with the same number of due machines.
        subjects = {size: Subject(BenchFleet(postgres, size, due=50)) for size in sizes}
        queries = {
            (name, size): query
            for size, subject in subjects.items()
            for name, query in subject.queries().items()
            if name != PREDECESSOR
        }
        found = in_turn(repeats, {f"{name}|{size}": query for (name, size), query in queries.items()})
        slow = in_turn(3, {f"{PREDECESSOR}|{size}": each.queries()[PREDECESSOR] for size, each in subjects.items()})
    figures = {tuple(name.split("|")): median(seconds) * 1000 for name, seconds in {**found, **slow}.items()}
    names = [*dict.fromkeys(name for name, _ in queries), PREDECESSOR]
    smallest, largest = str(sizes[0]), str(sizes[-1])
    result = Result()
    result.tables.append(
        Table(
            "Milliseconds, by machines in the fleet",
            ["query", *(f"{size:,}" for size in sizes), "largest to smallest"],
            [
                [name, *(figures[name, str(size)] for size in sizes), figures[name, largest] / figures[name, smallest]]
                for name in names
            ],
        )
    )
    result.curves.append(
        Curve(
            "fleet_size",
            "Database queries of an invocation",
            "machines in the fleet",
            "milliseconds",
            {name: [(size, figures[name, str(size)]) for size in sizes] for name in names},
        )
    )
    for name in names[:-1]:
        ratio = figures[name, largest] / figures[name, smallest]
        result.at_most(f"{name}: times the smallest fleet's", 2, ratio)
    return result


PREDECESSOR = "the predecessor's query, nothing due"


class Subject:
    """A fleet and the queries."""

    def __init__(self, fleet: BenchFleet) -> None:
        fleet.make_due()
        self._session = fleet.session()
        self._predecessor = Predecessor(fleet.settings)
        self._fleet = fleet
        for query in self.queries().values():
            query()  # prepares the statement and fills the caches

    def queries(self) -> dict[str, Callable[[], float]]:
        """Return the queries by name; each returns its seconds."""
        return {
            "claim of 10": self._claim,
            "claim, nothing due": self._claim_nothing,
            "status counts (closing a session)": self._close,
            "opening a session": self._open,
            "health snapshot": lambda: timed(lambda: suspension.take_health_snapshot(self._session, PROVIDER)),
            PREDECESSOR: self._predecessors_query,
        }

    def _claim(self) -> float:
        began = time.perf_counter()
        claim = work.claim(self._session, Process.AGENT_START, PROVIDER, BATCH)
        seconds = time.perf_counter() - began
        if len(claim.work) != BATCH:
            raise RuntimeError(claim)
        work.cancel(self._session, claim.work)
        return seconds

    def _claim_nothing(self) -> float:
        return timed(lambda: work.claim(self._session, Process.RECOVERY, PROVIDER, BATCH))

    def _open(self) -> float:
        connection = self._session.connection
        began = time.perf_counter()
        session = self._fleet.session(connection)
        seconds = time.perf_counter() - began
        session.close()
        return seconds

    def _close(self) -> float:
        session = self._fleet.session(self._session.connection)
        return timed(lambda: session.close(Process.AGENT_START, PROVIDER))

    def _predecessors_query(self) -> float:
        """Measure with no eligible machine: the usual case, and the predecessor's worst."""
        self._fleet.admin.run(
            "INSERT INTO machine_agent_started SELECT machine_id, now(), decode(repeat('5e', 32), 'hex') "
            "FROM bench_due ON CONFLICT DO NOTHING"
        )
        seconds = self._predecessor.query()
        self._fleet.make_due()
        return seconds
