"""
What is left of a command that somebody interrupts, wherever it is: one line, and nothing else.

Of the stages of an environment one is drawn; ``make chaos`` tries all.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.chaos.sample import SEED, drawn
from tests.support.waiting import eventually

SIMULATE = (str(Path(sys.executable).with_name("shepherdctl")), "simulate", "--machines", "2", "--minutes", "600")
WAIT_SECONDS = 90


@contextmanager
def heard() -> Iterator[None]:
    """Start processes that hear these signals, also where the tests ignore them: in the background of a shell."""
    previous = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGHUP, signal.SIGTERM)}
    previous[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in previous.items():
        signal.signal(number, handler)


class Started:
    """A command that runs in a process group of its own, as a shell starts it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.errors = ""
        with heard():
            self.process = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                process_group=0,
            )

    def when(self, holds: Callable[[], object]) -> None:
        eventually(lambda: self.process.poll() is not None or holds(), seconds=WAIT_SECONDS)
        assert self.process.poll() is None, self.process.communicate()[1]

    def interrupt(self, number: signal.Signals) -> None:
        """Send a signal: SIGINT as a terminal does, to all of the group."""
        with suppress(ProcessLookupError):
            if number is signal.SIGINT:
                os.killpg(self.process.pid, number)
            else:
                self.process.send_signal(number)

    def ended(self) -> int:
        self.errors = self.process.communicate(timeout=WAIT_SECONDS)[1]
        return self.process.returncode


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return the folder for temporary files; its path is short, since there are Unix sockets in it."""
    name = Path(tempfile.mkdtemp(prefix="int-"))
    yield name
    shutil.rmtree(name)


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., Started]]:
    made = []

    def start(command: Sequence[str], **environment: str) -> Started:
        made.append(Started(command, {"TMPDIR": str(folder), **environment}))
        return made[-1]

    yield start
    for each in made:
        with each.process:
            each.process.kill()


def left(folder: Path) -> list[str]:
    found = [str(path) for path in folder.glob("*")]
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            known = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            if str(folder).encode() in known:
                found.append(known.replace(b"\0", b" ").decode(errors="replace"))
    return found


def exists(folder: Path, pattern: str) -> Callable[[], object]:
    return lambda: list(folder.glob(pattern))


STAGES = {
    "PostgreSQL's data are being made": "bmdb-*/data/base",
    "PostgreSQL starts": "bmdb-*/data/postmaster.pid",
    "machines are being made": "machines-*/*",
    "the functions run": "shepherd-*/functions.log",
    "a second shell may operate the fleet": "shepherd-*/settings.sh",
}
INTERRUPTED = (
    (SIMULATE, signal.SIGINT, "PostgreSQL's data are being made"),
    (SIMULATE, signal.SIGTERM, "PostgreSQL starts"),
    (SIMULATE, signal.SIGHUP, "machines are being made"),
    ((sys.executable, "-m", "simulator", "initializer"), signal.SIGINT, "the functions run"),
    ((*SIMULATE, "--hold"), signal.SIGINT, "a second shell may operate the fleet"),
)


def test_an_interrupted_environment_leaves_nothing_but_one_line(start: Callable[..., Started], folder: Path) -> None:
    """A database and 55 MB stayed behind on every computer where somebody ended the demo."""
    for command, number, stage in drawn(INTERRUPTED, "interrupted"):
        started = start(command)
        started.when(exists(folder, STAGES[stage]))
        started.interrupt(number)
        assert started.ended() == 128 + number, f"{stage}, seed {SEED}"
        assert started.errors.splitlines()[-1] in ("interrupted", "terminated", "the terminal is gone")
        assert "Traceback" not in started.errors
        assert left(folder) == []


def test_even_an_environment_that_is_killed_leaves_nothing_behind(start: Callable[..., Started], folder: Path) -> None:
    for stage in drawn(("PostgreSQL's data are being made", "the functions run"), "killed"):
        started = start(SIMULATE)
        started.when(exists(folder, STAGES[stage]))
        started.interrupt(signal.SIGKILL)
        started.ended()
        eventually(lambda: not left(folder), (stage, SEED), WAIT_SECONDS)


def test_a_command_is_interrupted_while_its_modules_are_imported(start: Callable[..., Started]) -> None:
    """Which takes a second, in which who mistyped something is quick."""
    started = start((sys.executable, "-X", "importtime", "-m", "shepherdctl", "status"))
    assert started.process.stderr is not None
    for module in ("shepherdctl.interrupts", "pydantic"):
        while module not in started.process.stderr.readline():
            assert started.process.poll() is None
    started.interrupt(signal.SIGINT)
    assert (started.ended(), started.errors.splitlines()[-1]) == (130, "interrupted")
    assert "Traceback" not in started.errors
