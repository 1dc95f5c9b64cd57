import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import shepherd_core

ROOT = Path(__file__).parents[2]
PACKAGE = Path(shepherd_core.__path__[0])


@dataclass(frozen=True)
class Outcome:
    status: int
    """The exit status of pytest; 1: a test failed."""
    output: str

    def named(self) -> set[str]:
        """Return all words of the failures: of their messages and of the tests' names."""
        lines = [line for line in self.output.splitlines() if line.startswith(("E ", "FAILED "))]
        return {word.strip("'\",:[") for line in lines for word in re.sub(r": |::|\[", " ", line).split()}


def run_in_copy(
    folder: Path, change: Callable[[Path], None], *arguments: str, environment: dict[str, str] | None = None
) -> Outcome:
    copy = folder / PACKAGE.name
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("*.pyc.*"))  # other processes may be writing these
    (folder / "shepherd_agent").symlink_to(PACKAGE.parent / "shepherd_agent")
    change(copy)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--tb=short", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(folder), "CI": "1", "CHAOS_WHOLE": "1", **(environment or {})},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    return Outcome(done.returncode, done.stdout + done.stderr)
