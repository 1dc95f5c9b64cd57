"""
Shepherd's cost a month on AWS: a formula with named prices and assumptions.

    make cost                                        # 10, 1,000, 10,000 and 100,000 machines, and with other settings
    python -m simulator.cost --machines 500 --set interval_seconds=60 --set failures_per_machine=2

The prices are inputs (list prices of us-east-1 without the free tier, as of the date below): check them before you
rely on a figure. Below the sum stand the database and the network, whose prices you may set, too. The cost of a
heartbeat is what ``make bench BENCH=heartbeats`` measured (docs/performance.md).
"""

import argparse
import sys
from dataclasses import fields, replace

from simulator.cost.inputs import Inputs
from simulator.cost.tables import MACHINES, comparison, intervals, table


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        "python -m simulator.cost", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--machines", type=int, nargs="+", default=MACHINES, metavar="COUNT", help="sizes of the fleet")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="another price or assumption")
    arguments = parser.parse_args()
    names = {field.name for field in fields(Inputs)}
    changes: dict[str, float] = {}
    for item in arguments.set:
        name, _, value = item.partition("=")
        if name not in names:
            parser.error(f"--set {item}: unknown input {name!r}; the inputs are {', '.join(sorted(names))}")
        try:
            changes[name] = float(value)
        except ValueError:
            parser.error(f"--set {item}: {value!r} is not a number")
    inputs = replace(Inputs(), **changes)  # type: ignore[arg-type]  # counts may be fractions here
    tables = [each(arguments.machines, inputs) for each in (table, intervals, comparison)]
    sys.stdout.write("\n\n".join(tables) + "\n")


if __name__ == "__main__":
    main()
