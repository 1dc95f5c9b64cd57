"""
The long form of the reliability tests: ``make chaos``.

    python -m tests.chaos [--seconds S] [--seed N] [--only PART]...

Every case of what the tests otherwise draw from, and for what has no end as much as there is time for.
Prints how much each test tried; a failure says how to try it again.
"""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from random import SystemRandom

import pytest

ROOT = Path(__file__).parents[2]
PARTS = {
    "crashes": ["integration/chaos/test_crash_points.py"],
    "network": ["integration/chaos/test_faulty_network.py"],
    "model": ["integration/bmdb/test_model.py::test_the_bmdb_does_what_its_model_does"],
    "concurrent": ["integration/chaos/test_concurrent_invocations.py"],
    "samples": [
        "integration/transactions/test_locks.py::test_the_second_writer_sees_the_change_of_the_first",
        "integration/chaos/test_lost_heartbeats.py::test_large_fleets_keep_the_same_rules",
        "acceptance/test_demo.py::test_the_demo_creates_machines_at_a_provider",
        "acceptance/test_interrupts.py::test_an_interrupted_environment_leaves_nothing_but_one_line",
        "acceptance/test_interrupts.py::test_even_an_environment_that_is_killed_leaves_nothing_behind",
    ],
}
"""What takes longest comes first."""


class Telling:
    def __init__(self) -> None:
        self._sums: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.user_properties:
            for name, number in report.user_properties:
                self._sums[name] += int(str(number))
            _tell(f"{report.nodeid.partition('::')[2]}: {_counted(report.user_properties)}, {report.duration:.0f} s")

    def pytest_terminal_summary(self) -> None:
        _tell(f"together: {_counted(self._sums.items())}")


def _counted(numbers: Iterable[tuple[str, object]]) -> str:
    return ", ".join(f"{number} {name}" for name, number in numbers)


def _tell(text: str) -> None:
    sys.stdout.write(f"\n{text}")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tests.chaos",
        description="Kill and interleave invocations at external side effects; check docs/reliability.md's promises.",
    )
    parser.add_argument(
        "--seconds", type=float, default=300.0, help="time for what has no end of its own (default: %(default)s)"
    )
    random = SystemRandom().randrange(1_000_000)
    parser.add_argument(
        "--seed", type=int, default=random, help="of all random choices (default: random; it is printed)"
    )
    parser.add_argument("--only", choices=PARTS, action="append", help="run only this part; may be repeated")
    arguments = parser.parse_args()
    os.environ.update({"CHAOS_WHOLE": "1", "CHAOS_SEED": str(arguments.seed), "CHAOS_SECONDS": str(arguments.seconds)})
    _tell(f"seed {arguments.seed}")
    return pytest.main(
        [
            # One more than the processors, since much of a test is waiting.
            *("-p", "no:cacheprovider", "--numprocesses", str(1 + (os.cpu_count() or 1)), "--dist", "load"),
            "--maxschedchunk=1",
            *("--hypothesis-profile=long", f"--hypothesis-seed={arguments.seed}", f"--rootdir={ROOT}"),
            *(f"{ROOT}/tests/{test}" for part in arguments.only or PARTS for test in PARTS[part]),
        ],
        plugins=[Telling()],
    )


if __name__ == "__main__":
    sys.exit(main())
