"""
The bench: Shepherd's costs as ratios to what takes the same place, measured side by side in one run.

    make bench                                       # everything, about an hour
    make bench BENCH="claims heartbeats"             # parts
    python -m bench --quick claims                   # small sizes, only to check that it works

Each part prints tables and goals, and writes build/bench/PART.json. Everything runs against a private PostgreSQL
server. Figures are medians, and alternatives take turns. Absolute figures mean little: read the ratios. The figures
that count stand in docs/performance.md.
"""

import argparse
import importlib
import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from bench.results import machine, shown

ROOT = Path(__file__).parents[1]
PARTS = {
    module.rpartition(".")[2]: module
    for module in ("claims", "fleet_size", "heartbeats.heartbeats", "minute", "pages", "ssh.initializer")
}


def main() -> None:
    """Run the command line: measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="small sizes, few repeats; the figures are meaningless")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench", help="folder to write to")
    options = parser.parse_args()
    if unknown := set(options.parts) - PARTS.keys():
        parser.error(f"unknown part {', '.join(sorted(unknown))}; the parts are {', '.join(PARTS)}")
    options.output.mkdir(parents=True, exist_ok=True)
    for name in options.parts or PARTS:
        print(f"== {name}", flush=True)
        before = machine()
        result = importlib.import_module(f"bench.{PARTS[name]}").measure(quick=options.quick)
        print(shown(result), flush=True)
        record = {"part": name, "at": datetime.now(UTC).isoformat(timespec="minutes"), "machine": before}
        file = options.output / f"{name}.json"
        file.write_text(json.dumps({**record, **asdict(result)}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
