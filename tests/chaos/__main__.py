"""The long form: die at every effect of every scenario; ``make chaos``."""

from __future__ import annotations

import logging
import sys
import tempfile
import time
from pathlib import Path

from shepherd_core import ssh_key
from shepherd_core.clock import SystemClock

from simulator.machines import MachinePark
from simulator.postgres import Postgres
from tests.chaos.departures import Departures
from tests.chaos.explore import explore
from tests.chaos.scenarios import AgentStarts, GivingUp, Provisioning, Recoveries
from tests.integration.fleet import Fleet
from tests.integration.machine_client import Client


def main() -> int:
    """Print a line for each scenario, and what was broken; return 1 if anything was."""
    logging.disable(logging.CRITICAL)  # the functions tell of every failure that is planned here
    private_key = ssh_key.generate()
    broken: list[str] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Postgres() as postgres,
        MachinePark(Path(folder) / "park", 0, boot_seconds=0) as park,
    ):
        client = Client(park)
        client.authorized_key = ssh_key.public_line(private_key)
        for name in ("a", "b"):
            client.rack(name)
        fleet = Fleet(postgres.new_database(), SystemClock())
        starts = AgentStarts(fleet, park, private_key, Path(folder))
        for scenario in (Provisioning(fleet), starts, Recoveries(fleet), GivingUp(fleet), Departures(fleet)):
            began = time.monotonic()
            explored = explore(scenario)
            broken += explored.broken
            sys.stdout.write(
                f"{scenario.name:<12} {explored.effects:3} effects, {explored.deaths:4} deaths, "
                f"{explored.ticks:4} ticks afterwards, {len(explored.broken)} promises broken, "
                f"{time.monotonic() - began:.0f} s\n"
            )
        fleet.close()
    sys.stdout.writelines(f"  - {each}\n" for each in broken)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
