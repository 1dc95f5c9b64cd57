"""
What a fleet's size costs: a tick of each loop, the Provisioner's memory, the BMDB's bytes, and what people ask.

The Provisioner compares a listing of all machines with the BMDB. The listing is there already: what the provider's
answers take besides is not counted. What people ask is asked on the bad day of ``pages``.
"""

from ipaddress import ip_address
from pathlib import Path

from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.listings import provisioning
from shepherd_core.domain.clock import SystemClock
from shepherd_core.domain.machine import Availability, Machine, ProviderId, ProviderStatus
from shepherd_core.rules.provisioning import PlanLimits, make_plan

from bench import minute, pages
from bench.fleet import PROVIDER, BenchFleet
from bench.results import Result, Table
from bench.workers import Meter, together
from simulator.environment.postgres import Postgres

FLEETS = (100_000, 1_000_000)
_LIMITS = PlanLimits(max_machines=0, chunk=20, drift_limit=10, assimilate=False, abandon_seconds=3600)
_SIZES = """
SELECT relname, sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
WHERE nspname = 'public' AND relkind = 'r' AND relname NOT LIKE 'bench%' GROUP BY relname ORDER BY 2 DESC LIMIT 6
"""


def measure(*, quick: bool) -> Result:
    """Return the figures."""
    result = Result()
    loops: list[list[object]] = []
    provisioner: list[list[object]] = []
    stored: list[list[object]] = []
    asked: list[list[object]] = []
    with Postgres() as postgres:
        for machines in (400,) if quick else FLEETS:
            bench = BenchFleet(postgres, machines)
            spent = [minute.tick(bench, read, 3)[0] for read in minute.LOOPS.values()]
            if machines in FLEETS:
                goal = minute.GOAL_SECONDS * machines
                result.at_most(f"server seconds a minute at {machines:,} machines", goal, sum(spent))
            loops.append([machines, *(1000 * seconds for seconds in spent)])
            (figures,) = together(1, lambda _, bench=bench: lambda: _compare(bench))  # type: ignore[misc]
            provisioner.append([machines, *figures])
            stored += [[machines, table, size / machines] for table, size in bench.admin.run(_SIZES)]
            pages.bad_day(bench)
            connection = Connection(bench.settings, None, SystemClock())
            for name, (server, own, _) in pages.figures(connection, bench, 1 if machines == FLEETS[-1] else 3).items():
                asked.append([machines, name, 1000 * server, 1000 * own])
            connection.close()
            postgres.drop(bench.settings)
    result.tables += [
        Table("A tick with nothing to do: milliseconds of the server", ["fleet", *minute.LOOPS], loops),
        Table(
            "The Provisioner's plan of a fleet without drift",
            ["fleet", "server, s", "function, s", "listing, MB", "at most, MB"],
            provisioner,
        ),
        Table("The BMDB: bytes for a machine, the largest tables", ["fleet", "table", "bytes"], stored),
        Table(
            "What people ask on a bad day: milliseconds of processors",
            ["fleet", "what", "server", "console or command"],
            asked,
        ),
    ]
    return result


def _compare(bench: BenchFleet) -> tuple[float, float, float, float]:
    """Return the seconds of the server and of this process, and how much memory the listing and all of it took."""
    before = _memory("VmRSS")
    listing = [
        Machine(
            provider_id=ProviderId(provider_id),
            availability=Availability.KNOWN_USED,
            address=ip_address("192.0.2.1"),
            location="ams",
            status=ProviderStatus.RUNNING,
        )
        for (provider_id,) in bench.admin.run("SELECT provider_id FROM machine_provided")
    ]
    listed = _memory("VmRSS")
    connection = Connection(bench.settings, None, SystemClock())
    connection.run("now")
    server = Meter(connection._connected(), server_only=True)  # noqa: SLF001 - to find the server's process
    both = Meter(connection._connected())  # noqa: SLF001
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins here
    server.begin()
    both.begin()
    make_plan(listing, provisioning.ledger(connection, PROVIDER), _LIMITS)
    spent = server.spent()
    return spent, both.spent() - spent, listed - before, _memory("VmHWM") - before


def _memory(what: str) -> float:
    """Return a figure of this process in MB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) / 1024
