"""
The bench: what Shepherd costs, as ratios to what it replaces and to what is possible, side by side in one run.

    make bench                                       # everything, about half an hour
    make bench BENCH="claims idle"                   # parts
    python -m bench --quick claims                   # sizes that only show that it works

Each part prints a table and its goals, and writes build/bench/PART.json; with --publish also the curves and the JSON
into docs/performance/DATE, which is what is committed. Everything runs against a PostgreSQL of its own. Figures are
medians, ways to do the same thing take turns, and the absolute ones mean little: read the ratios.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from bench.results import machine, shown

ROOT = Path(__file__).parents[1]
PARTS = ("claims", "flatness", "idle", "history", "reconcile", "upload", "initializer", "world", "heartbeats")


def main() -> None:
    """Measure, show, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; none: all of them")
    parser.add_argument("--quick", action="store_true", help="small sizes, few repeats: the figures mean nothing")
    parser.add_argument("--publish", action="store_true", help="write JSON and curves for the repository")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench", help="folder to write to instead")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    output = options.output
    if options.publish:
        output = ROOT / "docs" / "performance" / f"{datetime.now(UTC):%Y-%m-%d}"
    output.mkdir(parents=True, exist_ok=True)
    for name in options.parts or PARTS:
        print(f"== {name}", flush=True)
        before = machine()
        result = importlib.import_module(f"bench.{name}").measure(quick=options.quick)
        print(shown(result), flush=True)
        record = {"part": name, "at": datetime.now(UTC).isoformat(timespec="minutes"), "machine": before}
        file = output / f"{name}.json"
        file.write_text(json.dumps({**record, **asdict(result)}, indent=1) + "\n", encoding="utf-8")
        plotter = ROOT / ".venv-bench" / "bin" / "python"
        if result.curves and plotter.exists():
            subprocess.run([plotter, Path(__file__).with_name("plots.py"), file], check=True)


if __name__ == "__main__":
    main()
