"""The time that the pages of the web console take in the database."""

from collections.abc import Callable

from shepherd_core.bmdb.machines import overview
from shepherd_core.bmdb.machines.search import Search, search
from shepherd_core.bmdb.work.ticks import last_ticks, tick_totals
from shepherd_core.domain.states import State

from bench.fleet import BenchFleet
from bench.results import Result, Table, median, timed
from shepherdctl.console.pages import fleet as fleet_page
from simulator.environment.postgres import Postgres

_GOAL_MILLISECONDS = 150
_POLICY = "INSERT INTO recovery_policy VALUES ('static', 600, 1800, 1800)"
_EXCEPTIONS = """
UPDATE machine_agent_heartbeat SET agent_heartbeat_at = now() - interval '1 hour'
    WHERE machine_id IN (SELECT machine_id FROM machines ORDER BY machine_id LIMIT {number});
INSERT INTO machine_quarantine
    SELECT machine_id, now(), 'PolicyExhausted: ?', '' FROM machines ORDER BY machine_id DESC LIMIT {number};
"""
"""Machines that are unhealthy, and as many that are quarantined."""
_OUTAGE = "UPDATE machine_agent_heartbeat SET agent_heartbeat_at = now() - interval '1 hour'"
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
        for script in (_POLICY, _TICKS, _EXCEPTIONS.format(number=machines // 200)):
            bench.admin.run(script)
        bench.admin.run("VACUUM ANALYZE")
        connection = bench.connect()
        quarantined = Search(states=(State.QUARANTINED,))
        statements: dict[str, Callable[[], object]] = {
            "fleet_counts": lambda: overview.fleet_counts(connection, fleet_page.AGES),
            "fleet_notices": lambda: overview.fleet_notices(connection),
            "last_ticks": lambda: last_ticks(connection, fleet_page.TICKS),
            "tick_totals": lambda: tick_totals(connection),
        }
        pages: dict[str, Callable[[], object]] = {
            "fleet page": lambda: fleet_page.fleet(connection),
            "first 100 machines": lambda: search(connection, Search(), None, 100),
            "5,000 examined, none quarantined": lambda: search(connection, quarantined, None, 100),
        }
        taken = {name: _milliseconds(call, repeats) for name, call in (statements | pages).items()}
        bench.admin.run(_OUTAGE)
        bench.admin.run("VACUUM ANALYZE")
        taken["fleet page, all machines unhealthy"] = _milliseconds(pages["fleet page"], repeats)
    result = Result()
    title = f"Milliseconds for the console, {machines:,} machines"
    result.tables.append(Table(title, ["what", "ms"], [[name, figure] for name, figure in taken.items()]))
    what = f"ms for the fleet page at {machines:,} machines, 1 % of them not running"
    result.at_most(what, _GOAL_MILLISECONDS, taken["fleet page"])
    return result


def _milliseconds(call: Callable[[], object], repeats: int) -> float:
    call()
    return 1000 * median([timed(call) for _ in range(repeats)])
