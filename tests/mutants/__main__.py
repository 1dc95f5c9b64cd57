"""
The share of small changes to the package that the tests notice: ``make mutants``.

    python -m tests.mutants [--size N] [--seed N] [--only GLOB]...
    python -m tests.mutants --planted [--only GLOB]...

Draws mutants of the core package, Python and SQL, and runs for each the tests
that reach it, until one fails: those named after its module first, then the
quickest. What hangs is noticed, too.
Those that are known to be equivalent (equivalent.toml) are left out of the
count. Prints each survivor as a diff, and returns 0 if the goal is met. The
second form plants the bugs of planted.toml, each of which its check must find.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from random import SystemRandom
from tempfile import TemporaryDirectory

from tests.mutants.copies import run_in_copy
from tests.mutants.mutant import Mutant, drawn, equivalent
from tests.mutants.planted import PlantedBug, planted_bugs
from tests.mutants.plugin import TOO_LONG
from tests.mutants.reach import PLUGIN, Trial, ordered, reaching, recorded

GOAL = 0.95
AT_ONCE = os.cpu_count() or 1
SECONDS = 120.0
"""Time for the tests of one mutant; the quickest run first."""
FIRST = 2
"""Number of files that run before the others are imported; most mutants are killed there."""
ALL_PASSED, NONE_RUN = 0, 5
"""Exit statuses of pytest."""


def verdict(mutant: Mutant, tests: list[Trial]) -> tuple[str, str]:
    """Return the verdict on a mutant, and the test that killed it or the number of tests that passed."""
    order = ordered(reaching(mutant, tests), SECONDS, Path(mutant.file).stem)
    if not order:
        return "survived", "no test reaches it"
    files = list(dict.fromkeys(name.partition("::")[0] for name in order))
    for some in filter(None, (files[:FIRST], files[FIRST:])):
        with TemporaryDirectory() as folder:
            chosen = Path(folder) / "order.json"
            chosen.write_text(json.dumps(order))
            environment = {"MUTANTS_ORDER": str(chosen)}
            try:
                outcome = run_in_copy(Path(folder), mutant.apply, "-x", *PLUGIN, *some, environment=environment)
            except subprocess.TimeoutExpired:
                return "hung", ""
        if outcome.status not in {ALL_PASSED, NONE_RUN}:
            failed = re.findall(r"^(?:FAILED|ERROR) (tests/.*?)(?: - |$)", outcome.output, re.MULTILINE)
            if outcome.status != TOO_LONG and not failed and mutant.new != mutant.old:
                see_that_tests_run(mutant, tests)
            return "hung" if outcome.status == TOO_LONG else "killed", "".join(failed[:1])
    return "survived", f"{len(order)} tests"


def see_that_tests_run(mutant: Mutant, tests: list[Trial]) -> None:
    """Check that the tests of a mutant pass without it; otherwise every mutant would be killed."""
    what, why = verdict(replace(mutant, new=mutant.old), tests)
    assert what == "survived", f"the tests fail without any mutant: {why or 'none was run'}"


def plant(bugs: list[PlantedBug]) -> bool:
    """Print for each bug whether its check found it; return whether all did."""
    missed = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for bug, (caught, output) in zip(bugs, pool.map(PlantedBug.try_out, bugs), strict=True):
            missed += not caught
            _tell(f"{'caught' if caught else 'MISSED'} by {bug.check.split('::')[1]}: {bug.bug}")
            if not caught:
                _tell(output)
    _tell(f"{len(bugs)} bugs, {missed} missed")
    return not missed


def try_sample(seed: int, sample: list[Mutant]) -> bool:
    """Print the verdict on each mutant, the survivors, and the rate; return whether that reaches the goal."""
    tests = recorded(AT_ONCE, _tell)
    _tell(f"{len(sample)} mutants, seed {seed}")
    for mutant in sample[:1]:
        see_that_tests_run(mutant, tests)
    counts: Counter[str] = Counter()
    survivors = []

    def tried(mutant: Mutant) -> tuple[str, str]:
        return ("equivalent", "") if mutant.name in equivalent() else verdict(mutant, tests)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for mutant, (what, why) in zip(sample, pool.map(tried, sample), strict=True):
            counts[what] += 1
            _tell(f"{what:<10} {mutant.file}:{mutant.line} {why}")
            if what == "survived":
                survivors.append(f"\nsurvived {why}: {mutant.file}:{mutant.line} {mutant.place}\n{mutant.diff}")
    noticed = counts["killed"] + counts["hung"]
    rate = noticed / max(1, noticed + counts["survived"])
    _tell("\n".join(survivors))
    _tell(
        f"\n{len(sample)} mutants, seed {seed}: {noticed} killed ({counts['hung']} of them hung), "
        f"{counts['equivalent']} equivalent, {counts['survived']} survived; {rate:.1%} killed, the goal is {GOAL:.0%}"
    )
    return rate >= GOAL


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tests.mutants", description="Check whether the tests notice small changes to the package."
    )
    parser.add_argument("--size", type=int, default=40, help="number of mutants (default: %(default)s)")
    random = SystemRandom().randrange(1_000_000)
    parser.add_argument("--seed", type=int, default=random, help="seed of the draw (default: random; it is printed)")
    only = "only mutants of these files, such as bmdb/work/* (default: all)"
    parser.add_argument("--only", metavar="GLOB", action="append", help=only)
    parser.add_argument("--planted", action="store_true", help="plant the bugs of planted.toml instead")
    arguments = parser.parse_args()

    def wanted(file: str) -> bool:
        return any(fnmatch(file, each) for each in arguments.only or ["*"])

    if arguments.planted:
        return not plant([bug for bug in planted_bugs() if any(wanted(edit.file) for edit in bug.edits)])
    return not try_sample(arguments.seed, drawn(arguments.seed, wanted)[: arguments.size])


def _tell(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - the result


if __name__ == "__main__":
    sys.exit(main())
