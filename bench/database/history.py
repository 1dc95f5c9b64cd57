"""The cost of a long history: a hundred rows for each machine, and thousands of expired sessions."""

import time
from collections.abc import Callable

from shepherd_core.bmdb.work import history, work
from shepherd_core.domain.machine import Process

from bench.fleet import PROVIDER, BenchFleet
from bench.results import Result, Table, in_turn, median, timed
from simulator.environment.postgres import Postgres

BATCH = 10

_PAST = """
INSERT INTO work_history
    SELECT machine_id, 'ShepherdAgentStart', 'Started', machine_created_at - n * interval '1 hour', NULL, NULL
    FROM machines, generate_series(1, {rows}) n;
INSERT INTO sessions (component_name, runtime_info, interval_seconds, deadline)
    SELECT 'bench', 'expired', 60, now() - n * interval '1 second' FROM generate_series(1, {expired}) n;
ANALYZE;
"""


def measure(*, quick: bool) -> Result:
    """Return the figures."""
    machines, expired, repeats = (200, 200, 3) if quick else (50_000, 10_000, 60)
    with Postgres() as postgres:
        fleets = {"short": BenchFleet(postgres, machines, due=50), "long": BenchFleet(postgres, machines, due=50)}
        fleets["long"].admin.run(_PAST.format(rows=100, expired=expired))
        subjects = {name: _Subject(fleet) for name, fleet in fleets.items()}
        ways = {f"{what}|{name}": way for name, subject in subjects.items() for what, way in subject.ways().items()}
        figures = {name: 1000 * median(seconds) for name, seconds in in_turn(repeats, ways).items()}
        size = fleets["long"].admin.run(
            "SELECT pg_total_relation_size('work_history')::float8 / (SELECT count(*) FROM work_history)"
        )[0][0]
        forgetting = _forgetting(fleets["long"])
    result = Result()
    names = list(dict.fromkeys(name.split("|")[0] for name in ways))
    rows = []
    for name in names:
        short, long = figures[f"{name}|short"], figures[f"{name}|long"]
        rows.append([name, short, long, long / short])
        result.at_most(f"{name}: times the same with a short history", 1.5, long / short)
    result.tables.append(
        Table(
            f"Milliseconds, {machines:,} machines with 2 and 102 rows of history each, {expired:,} expired sessions",
            ["what", "short history", "long history", "ratio"],
            rows,
        )
    )
    result.tables.append(
        Table(
            "The size of the history, and the time to delete it",
            ["bytes of a row, indexes included", "ms for 1,000 rows, median", "longest"],
            [[size, 1000 * median(forgetting), 1000 * max(forgetting)]],
        )
    )
    return result


class _Subject:
    """One fleet."""

    def __init__(self, fleet: BenchFleet) -> None:
        self._fleet = fleet
        fleet.make_due()
        self._session = fleet.session()
        self._machine_id = fleet.admin.run("SELECT machine_id FROM machines LIMIT 1")[0][0]
        for way in self.ways().values():
            way()

    def ways(self) -> dict[str, Callable[[], float]]:
        connection = self._session.connection
        return {
            "claim and cancel of 10": self._work,
            "opening a session": self._open,
            "the last 2 rows of a machine's history": lambda: timed(
                lambda: history.read_history(connection, self._machine_id, 2)
            ),
        }

    def _work(self) -> float:
        began = time.perf_counter()
        claim = work.claim(self._session, Process.AGENT_START, PROVIDER, BATCH)
        ended = work.cancel(self._session, claim.work)
        seconds = time.perf_counter() - began
        if len(ended) != BATCH:
            raise RuntimeError(claim)
        return seconds

    def _open(self) -> float:
        """Leave it open: closing it would reap expired sessions."""
        return timed(lambda: self._fleet.session(self._session.connection))


def _forgetting(fleet: BenchFleet) -> list[float]:
    """Return the seconds of each bounded deletion from the old end of a long history."""
    connection = fleet.connect()
    history.delete_old_history(connection, 36_500)
    return [timed(lambda: history.delete_old_history(connection, 3)) for _ in range(20)]
