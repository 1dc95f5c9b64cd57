import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.shown import missing, steps
from tests.support.waiting import eventually

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"
WAIT_SECONDS = 120


@contextmanager
def held(command: str, folder: Path) -> Iterator[str]:
    """Run the fleet of the first shell; yield the line for the second one."""
    log = folder / "fleet.log"
    with log.open("w") as file:
        fleet = subprocess.Popen(
            command.split(), cwd=folder, stdin=subprocess.DEVNULL, stdout=file, stderr=file, process_group=0
        )
    try:
        eventually(lambda: "/settings.sh\n" in log.read_text(), "no fleet", WAIT_SECONDS)
        yield log.read_text().partition("in a second shell: ")[2].splitlines()[0]
    finally:
        os.killpg(fleet.pid, signal.SIGINT)
        ended = fleet.wait(WAIT_SECONDS)
    assert ended == 128 + signal.SIGINT


class Reader:
    """Types the commands of the second shell, again and again until they print what is shown."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.first = ":"
        self.printed: list[str] = []
        self._example = ""

    def type(self, command: str, shown: Sequence[str]) -> None:
        command = re.sub(r" 1\d{3}$", f" {self._example}", command)  # which machines are examples is chance
        asks = re.match("shepherdctl machine re(try|boot)", command)
        told = (command, self.printed, "instead of", shown)
        eventually(lambda: self._prints(command + " --yes" * bool(asks), shown), told, WAIT_SECONDS)
        if "causes" in command:
            self._example = re.findall(r" ago +(\d+) \(", "\n".join(self.printed))[0]

    def _prints(self, command: str, shown: Sequence[str]) -> bool:
        done = subprocess.run(
            ["sh", "-c", f"{self.first}; {command}"],
            cwd=self.folder,
            env={**os.environ, "PATH": f"{self.folder}/.venv/bin:{os.environ['PATH']}"},
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.printed[:] = done.stdout.splitlines()
        loops_came_first = "machine retry" in command and "no machine matches" in done.stdout
        ended = done.returncode in (0, 3 if "status" in command else 0) or loops_came_first
        return ended and not missing(shown, done.stdout)


def test_each_command_of_the_tutorial_prints_what_it_shows(tmp_path: Path) -> None:
    (tmp_path / ".venv").symlink_to(sys.prefix)
    reader = Reader(tmp_path)
    _, (before, _), (start, _), (first, _), _, *rest = steps(TUTORIAL)
    reader.type(before, [])
    with held(start, tmp_path) as reader.first:
        assert re.fullmatch(r"\. /tmp/shepherd-\w+/settings\.sh", first)
        settings = Path(reader.first.removeprefix(". "))
        assert "reboot:3:boot-wait=2:" in settings.read_text(), "a machine is rebooted at the fleet's speed"
        for command, shown in rest:
            reader.type(command, shown)
    assert not settings.exists()
