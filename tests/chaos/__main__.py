"""
The long form of the reliability checks: ``make chaos``.

    python -m tests.chaos [--seconds S] [--seed N] [--only PART]...
    python -m tests.chaos --replay NAME --seed N

The parts, in this order: kill every loop at every effect; kill the Provisioner
twice in a row; interleave concurrent invocations; kill real processes with
SIGKILL and run them concurrently; break every network link at every exchange;
run every case of the tests that otherwise draw one; search for histories in
which the BMDB differs from its model.
The second form replays one schedule and prints it.
"""

import argparse
import faulthandler
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import combinations, count, takewhile
from pathlib import Path
from random import Random, SystemRandom

import pytest
from shepherd_core.adapters import ssh_keys
from shepherd_core.domain.clock import SystemClock

from simulator.environment.postgres import Postgres
from simulator.machines.pool import MachinePool
from tests.chaos.concurrent_runs import normal
from tests.chaos.crash_points import Killed
from tests.chaos.explore import OUTAGE_SECONDS, SOON_SECONDS, Explored, explore, explore_pairs, undisturbed
from tests.chaos.faults import long
from tests.chaos.scenarios.creation import MAKERS, Creating
from tests.chaos.scenarios.decommissioning import Decommissioning
from tests.chaos.scenarios.fleet_operation import FleetOperation, OperatorsAndAgents
from tests.chaos.scenarios.looks import Looks
from tests.chaos.scenarios.loops import (
    AgentStarts,
    OneCapacity,
    ProviderOutage,
    Provisioning,
    Quarantining,
    Recoveries,
    Scenario,
)
from tests.chaos.scenarios.reboots import Reboots
from tests.chaos.scenarios.records import Installing, Reports, Updates
from tests.chaos.scenarios.ssh_brake import SshBrake
from tests.chaos.scenarios.two_stacks import TwoStacks
from tests.chaos.schedules import Concurrent, Play, Played, play_all, play_seed, play_seeds
from tests.chaos.stage.operators import COMMANDS
from tests.chaos.stage.processes import PACE, Functions, event_of, explore_processes, load
from tests.support.agents.machine_client import Client
from tests.support.bmdb.fleet import Fleet

PARTS = ("crashes", "pairs", "schedules", "processes", "network", "samples", "model")
SAMPLED = (
    "tests/acceptance/test_build.py",
    "tests/acceptance/test_demo.py",
    "tests/acceptance/test_interrupts.py",
    "tests/integration/chaos/test_faults_matrix.py",
    "tests/integration/transactions/test_locks.py",
    "tests/unit/rules/test_lost_heartbeats.py",
)
"""Tests that draw one of their cases elsewhere."""
ROOT = Path(__file__).parents[2]
SECONDS = 300.0
AT_ONCE = 4
# Shares of --seconds, for the parts that have no end of their own. The others do not depend on --seconds.
_PAIRS, _INTERRUPTIONS, _SEEDS, _LOAD = 0.15, 0.3, 0.3, 0.1


@dataclass
class Chaos:
    """One run of all checks."""

    fleet: Fleet
    folder: Path
    seconds: float
    seed: int
    stack: ExitStack
    private_key: str = field(default_factory=ssh_keys.generate)
    broken: list[str] = field(default_factory=list)
    points: dict[str, int] = field(default_factory=dict)
    """Outside effects by scenario."""
    kills: int = 0
    interleavings: int = 0

    def plays(self) -> dict[str, Play]:
        """Return the scenarios of concurrent invocations, by name."""
        fleet = self.fleet
        all_plays: tuple[Play, ...] = (
            FleetOperation(fleet),
            TwoStacks(fleet),
            Concurrent(Provisioning(fleet)),
            Concurrent(Provisioning(fleet), 3),
            Concurrent(OneCapacity(fleet)),
            Concurrent(Recoveries(fleet)),
            Concurrent(SshBrake(fleet)),
            Concurrent(Updates(fleet)),
            Concurrent(Reports(fleet)),
            OperatorsAndAgents(fleet),
            Concurrent(Decommissioning(fleet)),
            Concurrent(Reboots(fleet)),
        )
        return {play.name: play for play in all_plays}

    def carry_out(self, part: str) -> None:
        """Carry out a part. One that does not come to its end has found nothing out: that is told as a violation."""
        try:
            getattr(self, part)()
        except Exception as error:  # noqa: BLE001 - the other parts may still find something
            traceback.print_exc()
            self.broken.append(f"the part {part} did not come to its end: {type(error).__name__}: {error}")

    def thread_ended(self, end: threading.ExceptHookArgs) -> None:
        """Tell of the error that ended a thread, unless it was killed as planned."""
        if not issubclass(end.exc_type, Killed):
            threading.__excepthook__(end)
            self.broken.append(f"a thread ended: {end.exc_type.__name__}: {end.exc_value}")

    def tell(self, what: str, text: str, broken: list[str], began: float) -> None:
        """Print one line of results."""
        self.broken += broken
        sys.stdout.write(f"{what:<42} {text}, {len(broken)} violations, {time.monotonic() - began:.0f} s\n")
        sys.stdout.flush()

    def crashes(self) -> None:
        """Kill each loop at each of its effects."""
        scenarios: list[Scenario] = [
            each(self.fleet)
            for each in (
                Provisioning,
                Recoveries,
                ProviderOutage,
                Quarantining,
                Looks,
                SshBrake,
                Updates,
                Reports,
                Installing,
                Decommissioning,
                Reboots,
            )
        ]
        scenarios += [Creating(self.fleet, provider) for provider in MAKERS]
        for scenario in scenarios:
            for gap, when in ((OUTAGE_SECONDS, "late"), (SOON_SECONDS, "soon")):
                began = time.monotonic()
                self._explored(f"{scenario.name}, {when}", explore(scenario, gap=gap), began)
        with self._agent_starts() as starts:
            began = time.monotonic()
            self._explored("initializer, late", explore(starts), began)

    @contextmanager
    def _agent_starts(self) -> Iterator[AgentStarts]:
        with MachinePool(Path(tempfile.mkdtemp(dir=self.folder)) / "pool", 0, boot_seconds=0) as pool:
            client = Client(pool)
            client.authorized_key = ssh_keys.public_line(self.private_key)
            for name in ("a", "b"):
                client.rack(name)
            yield AgentStarts(self.fleet, pool, self.private_key, self.folder)

    def _killed(self, scenario: Scenario, explored: Explored, began: float) -> None:
        self.kills += explored.kills
        self.tell(f"{scenario.name}, SIGKILL", f"{explored.kills:4} kills", explored.broken, began)

    def _explored(self, what: str, explored: Explored, began: float) -> None:
        self.points[what.partition(",")[0]] = explored.effects
        self.kills += explored.kills
        text = f"{explored.effects:3} effects, {explored.kills:4} kills, {explored.checks:6} checks"
        self.tell(what, text, explored.broken, began)

    def pairs(self) -> None:
        """Kill the Provisioner twice in a row."""
        scenario = Provisioning(self.fleet)
        effects = undisturbed(scenario).effects
        began = time.monotonic()
        explored = explore_pairs(
            scenario, effects, Random(self.seed), lambda _: time.monotonic() < began + _PAIRS * self.seconds
        )
        self._explored(f"provisioner, pairs, seed {self.seed}", explored, began)

    def schedules(self) -> None:
        """Play all schedules with at most two interruptions, then random ones, as far as time allows."""
        began = time.monotonic()
        end = began + _INTERRUPTIONS * self.seconds
        played = play_all(Concurrent(OneCapacity(self.fleet)), 2, Random(self.seed), lambda: time.monotonic() < end)
        self._played(
            "at most two interruptions" + (f" (not all: {played.left} more)" if played.left else ""), played, began
        )
        self._operators()
        plays = self.plays()
        for name, play in plays.items():
            began = time.monotonic()
            end = began + _SEEDS * self.seconds / len(plays)
            seeds = takewhile(lambda _, end=end: time.monotonic() < end, count(self.seed))  # type: ignore[misc]  # this end
            self._played(f"{name}, seeds {self.seed}…", play_seeds(play, seeds), began)

    def _operators(self) -> None:
        """Play all pairs of commands and agent reports on one machine, with one interruption."""
        pairs = list(combinations(COMMANDS, 2))
        for pair in Random(self.seed).sample(pairs, len(pairs)):
            began = time.monotonic()
            end = began + _PAIRS * self.seconds / len(pairs)
            play = OperatorsAndAgents(self.fleet, *pair)
            played = play_all(play, 1, Random(self.seed), lambda end=end: time.monotonic() < end)  # type: ignore[misc]  # this end
            left = f" (not all: {played.left} more)" if played.left else ""
            self._played(f"{' and '.join(pair)}{left}", played, began)

    def _played(self, what: str, played: Played, began: float) -> None:
        self.interleavings += played.schedules
        text = f"{played.schedules:4} schedules, {played.steps:6} steps, {played.kills:4} kills, {played.waits:4} waits"
        self.tell(what, text, played.broken, began)

    def processes(self) -> None:
        """Kill real processes, and run many concurrently."""
        functions = self.stack.enter_context(Functions(AT_ONCE, self.private_key))
        sample = range(1, 1_000, 4)
        for scenario in (Provisioning(self.fleet), Recoveries(self.fleet), Updates(self.fleet)):
            began = time.monotonic()
            self._killed(scenario, explore_processes(scenario, functions, sample), began)
        began = time.monotonic()
        reports = Reports(self.fleet)
        explored = explore_processes(reports, functions, range(1, 1_000), lambda: event_of(reports.request()))
        self._killed(reports, explored, began)
        with self._agent_starts() as starts:
            began = time.monotonic()
            # A process uses its own dialer, so that steps over SSH are no crash points here.
            self._killed(
                starts,
                explore_processes(
                    starts,
                    functions,
                    range(1, 1_000, 2),
                    settings=starts.function_settings(),
                    pace=replace(PACE, connect_seconds=5),
                ),
                began,
            )
        began = time.monotonic()
        loaded = load(self.fleet, functions, AT_ONCE, _LOAD * self.seconds, self.seed)
        raised = ", ".join(sorted(loaded.errors)) or "nothing"
        text = (
            f"{loaded.invocations:4} processes, {AT_ONCE} at once, {loaded.killed:4} of them killed, "
            f"{loaded.checks} checks, raised: {raised}"
        )
        self.tell(f"load, seed {self.seed}", text, loaded.broken, began)

    def network(self) -> None:
        """Break every link at every exchange."""
        self.broken += [] if long.main() == 0 else ["faulty network: see above"]

    def samples(self) -> None:
        """Run every case of the tests that otherwise draw one."""
        began = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *SAMPLED]
        ended = subprocess.run(command, cwd=ROOT, env={**os.environ, "CHAOS_WHOLE": "1"}, check=False)
        self.tell("samples", "every case run", [] if ended.returncode == 0 else ["a test failed: see above"], began)

    def model(self) -> None:
        """Search for histories in which the BMDB differs from its model."""
        began = time.monotonic()
        searched = pytest.main(
            [
                "-q",
                "-p",
                "no:cacheprovider",
                f"{ROOT}/tests/integration/bmdb/test_model.py",
                "--hypothesis-profile=long",
                f"--hypothesis-seed={self.seed}",
            ]
        )
        broken = [] if searched == pytest.ExitCode.OK else ["the BMDB differs from its model: see above"]
        self.tell(f"model, seed {self.seed}", "searched", broken, began)


def main() -> int:
    """Print a line for each check, then all violations. Return 1 if there was any."""
    parser = argparse.ArgumentParser(
        prog="tests.chaos",
        description="Kill and interleave invocations at outside effects; check what docs/reliability.md promises.",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=SECONDS,
        help="time for the parts without an end of their own (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=SystemRandom().randrange(1_000_000),
        help="seed of all random choices (default: a random one, which is printed)",
    )
    parser.add_argument(
        "--only", choices=PARTS, action="append", help="run only this part; may be repeated (default: all parts)"
    )
    parser.add_argument("--replay", metavar="NAME", help="replay the schedule of --seed; NAME as it was printed")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)  # the functions log every planned failure
    faulthandler.enable()
    began = time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        postgres = stack.enter_context(Postgres())
        postgres._run("ALTER SYSTEM SET fsync = off")  # the machine does not lose power during the run
        postgres._run("SELECT pg_reload_conf()")
        fleet = Fleet(postgres.new_database(), SystemClock())
        stack.callback(fleet.close)
        chaos = Chaos(fleet, folder, arguments.seconds, arguments.seed, stack)
        threading.excepthook = chaos.thread_ended
        if arguments.replay is not None:
            return _replay(chaos.plays()[arguments.replay], arguments.seed)
        for name in arguments.only or PARTS:
            chaos.carry_out(name)
        sys.stdout.write(
            f"{sum(chaos.points.values())} crash points, {chaos.kills} kills, {chaos.interleavings} schedules, "
            f"seed {chaos.seed}, {len(chaos.broken)} violations, {time.monotonic() - began:.0f} s\n"
        )
        sys.stdout.writelines(f"  - {each}\n" for each in chaos.broken)
        return 1 if chaos.broken else 0


def _replay(play: Play, seed: int) -> int:
    ran = play_seed(play, seed)
    sys.stdout.writelines(f"{step}\n" for step in normal(ran.trace))
    sys.stdout.writelines(f"  - raised: {each}\n" for each in ran.errors)
    sys.stdout.writelines(f"  - broken: {each}\n" for each in ran.broken)
    return 1 if ran.broken else 0


if __name__ == "__main__":
    sys.exit(main())
