"""
The cost of a cold start of each function, as a ratio to the cost of its indispensable libraries alone.

    make bench-coldstart                             # a table

Two stages: ``import`` is the import of the handler, as by Lambda; ``ready`` is the function built from settings with a
machine list in a file (the Recoverer: with Equinix Metal, since a list cannot reboot), its first log line and metrics
written, and, in the Initializer, its side of SSH loaded (the fork server imports paramiko at the same time). Each
figure is the median of new processes, alternating between ours and the bare libraries, which find their modules as on
Lambda: on a path, with bytecode. Time is processor time, memory is the growth of the process. A ratio above the goal of
1.15 means that Shepherd's own code is slow to load.
"""

import argparse
import json
import statistics
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from shepherd_core.settings.base import variable
from shepherd_core.settings.functions.specs import FUNCTIONS
from shepherd_core.settings.providers import BUILT_IN, find

ROOT = Path(__file__).parents[1]
PATHS = [str(ROOT), str(ROOT / "layers" / "shepherd_core"), sysconfig.get_path("purelib")]

# Made up: none of it is used until the first invocation.
SETTINGS = {
    "SHEPHERD_BMDB_HOST": "/nowhere",
    "SHEPHERD_PROVIDER": "static",
    "SHEPHERD_AGENT_ENDPOINT": "agents.example.com:443",
    **{
        variable(spec.settings, name): "1"
        for spec in map(find, BUILT_IN)
        for name, setting in spec.settings.model_fields.items()
        if setting.is_required()
    },
    "SHEPHERD_PROVIDER_IMAGE": "ami-1",
    "SHEPHERD_PROVIDER_MACHINE_TYPE": "m7i.metal-24xl",
}

_ALWAYS = "import pg8000.native; from pydantic import BaseModel, Field"
_TELEMETRY = """
from aws_lambda_powertools import Logger
"""
_SSH = """
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
"""
_MESSAGES = """
from google.protobuf import descriptor_pool, message, symbol_database
from google.protobuf.internal import builder
"""
_READY = {
    "initializer": _TELEMETRY + _SSH + _MESSAGES,
    "recoverer": _TELEMETRY + "import requests",
    "agent_api": _TELEMETRY + "import nacl.signing" + _MESSAGES,
}
_BUILD = {
    "migrator": "from shepherd_core.operator import migrator; handlers.adapters.bmdb()",
    "agent_api": "handlers.agent_endpoint.build()",
}


def built(function: str, **settings: str) -> str:
    """Return the program that imports the handler of *function* and builds its objects, with *settings*."""
    environment = {**SETTINGS, **({"SHEPHERD_PROVIDER": "equinix"} if function == "recoverer" else {}), **settings}
    return f"""
import os
os.environ.update({environment!r})
import functions.{function}.app
from shepherd_core import handlers
{_BUILD.get(function, f"from shepherd_core.wiring import loops; loops.build({function!r})")}
"""


def ours(function: str, stage: str) -> str:
    """Return the program that brings *function* to *stage*."""
    if stage == "import":
        return f"import functions.{function}.app"
    return f"""{built(function)}
from shepherd_core import telemetry
telemetry.info("ready")
telemetry.emit({function!r}, "static", {{telemetry.Metric.CLAIMED: 1}})
{"from shepherd_core.adapters.ssh import dialer" if function == "initializer" else ""}
"""


def bare(function: str, stage: str) -> str:
    """Return the program that imports the indispensable libraries of *function* at *stage*."""
    return "\n".join((_ALWAYS, _READY.get(function, _TELEMETRY) if stage == "ready" else ""))


@dataclass(frozen=True)
class Cost:
    """The cost of a program in a new process, and the modules that it loaded."""

    seconds: float
    kib: float
    modules: frozenset[str]


def measure(*programs: str) -> list[Cost]:
    """Return the cost after each of *programs*, which run one after another in one new process."""
    whole = f"""
import json, sys, time
sys.path[:0] = {PATHS!r}
def kib():
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4
    except OSError:  # not on Linux
        return 0
known, before, began, costs = set(sys.modules), kib(), time.process_time(), []
for program in {programs!r}:
    exec(program)
    costs.append([time.process_time() - began, kib() - before, sorted(set(sys.modules) - known)])
print(json.dumps(costs))
"""
    command = [sys.executable, "-S", "-c", whole]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={"POWERTOOLS_LOG_LEVEL": "INFO"})
    costs = json.loads(done.stdout.splitlines()[-1])
    return [Cost(seconds, kib, frozenset(modules)) for seconds, kib, modules in costs]


@dataclass(frozen=True)
class Figure:
    """The figures of a function at a stage: its own, those of the bare libraries, and the ratios."""

    function: str
    stage: str
    ms: float
    bare_ms: float
    mib: float
    bare_mib: float
    time_ratio: float
    memory_ratio: float


def figure(function: str, stage: str, repeats: int) -> Figure:
    """Measure *function* at *stage*."""
    programs = ours(function, stage), bare(function, stage)
    for program in programs:
        measure(program)  # writes the bytecode
    rounds = [(*measure(programs[0]), *measure(programs[1])) for _ in range(repeats)]
    ms, bare_ms = (statistics.median(each[which].seconds for each in rounds) * 1000 for which in (0, 1))
    mib, bare_mib = (statistics.median(each[which].kib for each in rounds) / 1024 for which in (0, 1))
    # The median of the ratios of neighbours, because the speed of a computer changes over minutes.
    time_ratio = statistics.median(mine.seconds / theirs.seconds for mine, theirs in rounds)
    memory_ratio = mib / bare_mib if bare_mib else 0.0
    rounded = (round(value, 2) for value in (ms, bare_ms, mib, bare_mib, time_ratio, memory_ratio))
    return Figure(function, stage, *rounded)


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15, metavar="COUNT", help="processes for each figure (15)")
    options = parser.parse_args()
    figures = [figure(function, stage, options.repeats) for function in FUNCTIONS for stage in ("import", "ready")]
    print(f"{'function':<11} {'stage':<6} {'ms':>7} {'bare':>7} {'ratio':>6} {'MiB':>7} {'bare':>7} {'ratio':>6}")
    for each in figures:
        print(
            f"{each.function:<11} {each.stage:<6} {each.ms:>7.1f} {each.bare_ms:>7.1f} {each.time_ratio:>6.2f} "
            f"{each.mib:>7.1f} {each.bare_mib:>7.1f} {each.memory_ratio:>6.2f}"
        )


if __name__ == "__main__":
    main()
