"""
The share of small changes to the package that the tests notice: ``make mutants``.

    python -m tests.mutants [--size N] [--seed N] [--only GLOB]... [--at-once N]
    python -m tests.mutants --planted [--only GLOB]... [--at-once N]

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
SIZE = 40
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
    """
    Check that the tests of a mutant pass without it; otherwise every mutant would be killed.

    Raises:
        AssertionError: they do not.
    """
    what, why = verdict(replace(mutant, new=mutant.old), tests)
    assert what == "survived", f"the tests fail without any mutant: {why or 'none was run'}"


def plant(bugs: list[PlantedBug], at_once: int) -> int:
    """Print for each bug whether its check found it. Return 1 if one did not."""
    missed = 0
    with ThreadPoolExecutor(at_once) as pool:
        for bug, (caught, output) in zip(bugs, pool.map(PlantedBug.try_out, bugs), strict=True):
            missed += not caught
            _tell(f"{'caught' if caught else 'MISSED'} by {bug.check.split('::')[1]}: {bug.bug}")
            if not caught:
                _tell(output)
    _tell(f"{len(bugs)} bugs, {missed} missed")
    return 1 if missed else 0


def main() -> int:
    """Print the verdict on each mutant, the survivors, and the rate."""
    parser = argparse.ArgumentParser(
        prog="tests.mutants", description="Check whether the tests notice small changes to the package."
    )
    parser.add_argument("--size", type=int, default=SIZE, help=f"number of mutants (default: {SIZE})")
    parser.add_argument(
        "--seed",
        type=int,
        default=SystemRandom().randrange(1_000_000),
        help="seed of the draw (default: a random one, which is printed)",
    )
    parser.add_argument(
        "--only",
        metavar="GLOB",
        action="append",
        help="only mutants of these files, such as bmdb/work/* (default: all)",
    )
    parser.add_argument(
        "--at-once",
        type=int,
        default=os.cpu_count() or 1,
        help="number of concurrent trials (default: the number of processors)",
    )
    parser.add_argument("--planted", action="store_true", help="plant the bugs of planted.toml instead")
    arguments = parser.parse_args()

    def wanted(file: str) -> bool:
        return any(fnmatch(file, each) for each in arguments.only or ["*"])

    if arguments.planted:
        bugs = [bug for bug in planted_bugs() if any(wanted(edit.file) for edit in bug.edits)]
        return plant(bugs, arguments.at_once)
    tests = recorded(arguments.at_once, _tell)
    sample = drawn(arguments.seed, wanted)[: arguments.size]
    _tell(f"{len(sample)} mutants, seed {arguments.seed}")
    for mutant in sample[:1]:
        see_that_tests_run(mutant, tests)
    counts: Counter[str] = Counter()
    survivors = []
    with ThreadPoolExecutor(arguments.at_once) as pool:
        verdicts = pool.map(
            lambda each: ("equivalent", "") if each.name in equivalent() else verdict(each, tests), sample
        )
        for mutant, (what, why) in zip(sample, verdicts, strict=True):
            counts[what] += 1
            _tell(f"{what:<10} {mutant.file}:{mutant.line} {why}")
            if what == "survived":
                survivors.append((mutant, why))
    for mutant, why in survivors:
        _tell(f"\nsurvived {why}: {mutant.file}:{mutant.line} {mutant.place}\n{mutant.diff}")
    noticed = counts["killed"] + counts["hung"]
    rate = noticed / max(1, noticed + counts["survived"])
    _tell(
        f"\n{len(sample)} mutants, seed {arguments.seed}: {noticed} killed ({counts['hung']} of them hung), "
        f"{counts['equivalent']} equivalent, {counts['survived']} survived; {rate:.1%} killed, the goal is {GOAL:.0%}"
    )
    return 0 if rate >= GOAL else 1


def _tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
