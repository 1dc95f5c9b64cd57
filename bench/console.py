"""What the pages of the web console take of the database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shepherd_core.bmdb.machines import overview
from shepherd_core.bmdb.machines.search import Search, search
from shepherd_core.bmdb.work.ticks import last_ticks
from shepherd_core.domain.states import State

from bench.fleet import BenchFleet
from bench.results import Goal, Result, Table, median, timed
from shepherdctl.console import fleet as fleet_page
from simulator.environment.postgres import Postgres

if TYPE_CHECKING:
    from collections.abc import Callable

_GOAL_MILLISECONDS = 150
_TICKS = """
INSERT INTO ticks
    SELECT gen_random_uuid(), loop, 'static', '', now() - n * interval '1 minute', now() - n * interval '1 minute'
        + interval '3 seconds', 'Succeeded', NULL, '{"claimed": 5, "finished": 4, "failed": 1, "backlog": 0}'
    FROM unnest(ARRAY['provisioner', 'initializer', 'recoverer', 'updater']) AS loop, generate_series(1, 20000) AS n;
"""


def measure(*, quick: bool) -> Result:
    """Return the figures."""
    machines, repeats = (200, 2) if quick else (100_000, 7)
    with Postgres() as postgres:
        bench = BenchFleet(postgres, machines, due=10)
        bench.admin.run(_TICKS)
        bench.admin.run("VACUUM ANALYZE")
        connection = bench.connect()
        quarantined = Search(states=(State.QUARANTINED,))
        statements: dict[str, Callable[[], object]] = {
            "fleet_counts": lambda: overview.fleet_counts(connection, fleet_page.AGES),
            "fleet_notices": lambda: overview.fleet_notices(connection),
            "last_ticks": lambda: last_ticks(connection, fleet_page.TICKS),
            "tick_totals": lambda: overview.tick_totals(connection),
        }
        pages: dict[str, Callable[[], object]] = {
            "fleet page": lambda: fleet_page.fleet(connection),
            "first 100 machines": lambda: search(connection, Search(), None, 100),
            "5,000 examined, none quarantined": lambda: search(connection, quarantined, None, 100),
        }
        taken = {name: _milliseconds(call, repeats) for name, call in (statements | pages).items()}
    result = Result()
    title = f"Milliseconds for the console, {machines:,} machines"
    result.tables.append(Table(title, ["what", "ms"], [[name, figure] for name, figure in taken.items()]))
    figure = taken["fleet page"]
    wanted = f"at most {_GOAL_MILLISECONDS} ms"
    result.goals.append(Goal(f"fleet page at {machines:,} machines", wanted, figure, figure <= _GOAL_MILLISECONDS))
    return result


def _milliseconds(call: Callable[[], object], repeats: int) -> float:
    call()
    return 1000 * median([timed(call) for _ in range(repeats)])
