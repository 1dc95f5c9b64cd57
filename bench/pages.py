"""
What people ask of a large fleet on a bad day: each page of the console, ``status``, ``causes`` and lists by state.

Of each, the seconds of the server's processor and of the console's or command's own; and
the size of a page. A twentieth of the machines is unhealthy, in racks whose recovery is limited.
"""

from collections.abc import Callable

from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.machines import overview
from shepherd_core.bmdb.machines.search import Search
from shepherd_core.domain.clock import SystemClock
from shepherd_core.domain.states import State

from bench.fleet import PROVIDER, BenchFleet
from bench.results import Result, Table, median
from bench.workers import Meter
from shepherdctl import fleet_status
from shepherdctl.commands.machine import list as machine_list
from shepherdctl.console.pages import fails, fleet, machine, machines, open_work, rendering
from simulator.environment.postgres import Postgres

FLEETS = (10_000, 100_000)
SECONDS, BYTES = 0.3, 100_000
"""Of a page at most, server and console together."""

# Racks of 40. In every twentieth, all are unhealthy: they count as failing, wait for the budget, and one is paused.
_BAD_DAY = """
UPDATE machine_provided p SET provider_location = 'rack-' || n / 40, provider_id = 'rack' || n / 40 || '-' || n % 40
    FROM (SELECT machine_id, row_number() OVER () - 1 AS n FROM machines) AS m WHERE m.machine_id = p.machine_id;
CREATE TEMPORARY TABLE dark AS
    SELECT machine_id, provider_location FROM machine_provided WHERE substr(provider_location, 6)::integer % 20 = 0;
INSERT INTO recovery_policy VALUES ('static', 600, 1800, 1800) ON CONFLICT DO NOTHING;
UPDATE machine_agent_heartbeat SET agent_heartbeat_at = now() - interval '1 hour'
    WHERE machine_id IN (SELECT machine_id FROM dark);
INSERT INTO work_backoff (machine_id, process, until, kind, cause, fault)
    SELECT machine_id, 'ShepherdRecovery', now() + interval '1 hour', 'held-back', 'the budget is used up', 'ours'
    FROM dark;
INSERT INTO work_history (machine_id, process, event, timestamp, failed_cause, kind)
    SELECT machine_id, 'ShepherdRecovery', 'Looked', now(), 'no answer', 'ssh-timed-out' FROM dark;
INSERT INTO recovery_budgets (provider, location, per_hour, brake, reason)
    SELECT DISTINCT 'static', provider_location, 1, 'share', '40 of 40 machines are dead' FROM dark;
INSERT INTO pauses (machine_id, owner, reason)
    SELECT DISTINCT ON (provider_location) machine_id, 'ana', 'ticket ' || provider_location FROM dark;
INSERT INTO machine_operator_labels SELECT machine_id, '{"role": "db"}' FROM machine_provided;
INSERT INTO ticks
    SELECT gen_random_uuid(), loop, 'static', '', now() - n * interval '1 minute', now() - n * interval '1 minute',
        'Succeeded', NULL, '{}'
    FROM unnest(ARRAY['provisioner', 'initializer', 'recoverer', 'updater']) AS loop, generate_series(1, 1440) AS n;
ANALYZE;
"""


def measure(*, quick: bool) -> Result:
    """Return the figures."""
    result = Result()
    rows: list[list[object]] = []
    with Postgres() as postgres:
        for size in (400,) if quick else FLEETS:
            bench = BenchFleet(postgres, size)
            bad_day(bench)
            connection = Connection(bench.settings, None, SystemClock())
            for name, (server, own, sent) in figures(connection, bench, 3 if quick else 5).items():
                rows.append([size, name, 1000 * server, 1000 * own, sent or ""])
                if size == FLEETS[-1]:
                    result.at_most(f"{name}: seconds at {size:,} machines", SECONDS, server + own)
                    result.at_most(f"{name}: bytes", BYTES, sent)
            connection.close()
            postgres.drop(bench.settings)
    columns = ["fleet", "what", "server, ms", "console or command, ms", "bytes"]
    result.tables.append(Table("What people ask on a bad day: milliseconds of processors", columns, rows))
    return result


def bad_day(bench: BenchFleet) -> None:
    """Let a twentieth of the fleet be unhealthy."""
    bench.admin.run(_BAD_DAY)
    bench.admin.run("VACUUM")


def figures(connection: Connection, bench: BenchFleet, repeats: int) -> dict[str, tuple[float, float, int]]:
    """Return by name the seconds of the server, those of this process and the bytes of a page; medians."""
    (machine_id,) = bench.admin.run("SELECT machine_id FROM pauses LIMIT 1")[0]
    templates = rendering.environment()

    def page(template: str, active: str, **context: object) -> int:
        ours = {"bmdb": "bench", "every": 5, "known": True, "active": active, "send": "shepherdctl console"}
        return len(templates.get_template(template).render(ours | context).encode())

    def listing(search: Search) -> int:
        return page("machines.html", "machines", **machines.page(connection, machines.Query(search, None)))

    def listed(*states: State) -> Callable[[], object]:
        search = Search(states=states)
        return lambda: machine_list._read(connection, search, None, None, 100)  # noqa: SLF001 - all but the printing

    asked: dict[str, Callable[[], object]] = {
        "page /": lambda: page("fleet.html", "fleet", **fleet.fleet(connection)),
        "page /fails": lambda: page("fails.html", "fails", **fails.fails(connection)),
        "page /machines": lambda: listing(Search()),
        "page /machines, unhealthy": lambda: listing(Search(states=(State.UNHEALTHY,))),
        "page /machines, role=db": lambda: listing(Search(labels=("role=db",))),
        "page /machines/ID": lambda: page("machine.html", "machines", **machine.machine(connection, machine_id, None)),
        "page /work": lambda: page("work.html", "work", **open_work.work(connection)),
        "status": lambda: fleet_status.judged(fleet_status.read(connection)),
        "causes": lambda: (
            fleet_status.judged(fleet_status.read(connection)),
            overview.failures(connection, provider=PROVIDER),
        ),
        "machine list": listed(),
        "machine list --state unhealthy": listed(State.UNHEALTHY),
        "machine list --state running": listed(State.RUNNING),
    }
    connection.run("now")
    server = Meter(connection._connected(), server_only=True)  # noqa: SLF001 - to find the server's process
    both = Meter(connection._connected())  # noqa: SLF001
    found = {}
    for name, ask in asked.items():
        ask()  # prepares its statements
        seconds: list[tuple[float, float]] = []
        for _ in range(repeats):
            server.begin()
            both.begin()
            answer = ask()
            seconds.append((server.spent(), both.spent()))
        spent, total = (median([each[which] for each in seconds]) for which in (0, 1))
        found[name] = spent, total - spent, answer if isinstance(answer, int) else 0
    return found
