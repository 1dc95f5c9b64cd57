"""The faulty network in its long form: every exchange of every link of every loop. Run this module."""

import logging
import sys
import tempfile
import time
from pathlib import Path

from shepherd_core.adapters import ssh_keys
from shepherd_core.domain.clock import SystemClock

from simulator.environment.postgres import Postgres
from simulator.machines.pool import MachinePool
from tests.chaos.faults.fault import AgentStarts, FaultyScenario, Provisions, Recoveries, Updates
from tests.chaos.faults.network import Link, explore, slowly
from tests.support.agents.machine_client import Client
from tests.support.bmdb.fleet import Fleet


def main() -> int:
    """Print a line for each loop and link, then all violations. Return 1 if there was any."""
    logging.disable(logging.CRITICAL)  # the functions log every planned failure
    private_key = ssh_keys.generate()
    broken: list[str] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Postgres() as postgres,
        MachinePool(Path(folder) / "pool", 0, boot_seconds=0) as pool,
    ):
        client = Client(pool)
        client.authorized_key = ssh_keys.public_line(private_key)
        for name in ("a", "b"):
            client.rack(name)
        fleet = Fleet(postgres.new_database(), SystemClock())
        starts = AgentStarts(fleet, pool, private_key, Path(folder))
        ways: tuple[tuple[FaultyScenario, tuple[Link, ...]], ...] = (
            (Provisions(fleet), ("database", "provider")),
            (Recoveries(fleet), ("database", "provider")),
            (Updates(fleet), ("database", "provider")),
            (starts, ("database", "ssh")),
        )
        for scenario, links in ways:
            for link in links:
                began = time.monotonic()
                explored = explore(scenario, link)
                for trickling in (False, True):
                    explored.broken += slowly(scenario, link, trickling=trickling)
                broken += explored.broken
                sys.stdout.write(
                    f"{scenario.name:<12} {link:<9} {len(explored.names):3} exchanges, "
                    f"{len(explored.breaks):4} breaks, "
                    f"{explored.ticks:4} ticks afterwards, {len(explored.broken)} violations, "
                    f"{time.monotonic() - began:.0f} s\n"
                )
                sys.stdout.flush()
        fleet.close()
    sys.stdout.writelines(f"  - {each}\n" for each in broken)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
