"""A command that is interrupted more than once: it cleans up all the same, in order, and says one line."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

# It holds the signals back until it is told that all were sent: then they come at once.
HOLDS_BACK = """
import signal, sys, time
from shepherdctl.interrupts import graceful_exit

with graceful_exit(), graceful_exit():
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
        print("ready", flush=True)
        sys.stdin.readline()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
        while True:
            time.sleep(1)
    finally:
        print("cleaned up", flush=True)
"""

CLEANS_UP = """
import sys, time
from shepherdctl.interrupts import graceful_exit

with graceful_exit(), graceful_exit():
    try:
        print("ready", flush=True)
        while True:
            time.sleep(1)
    finally:
        print("cleans up", flush=True)
        sys.stdin.readline()
        print("cleaned up", flush=True)
"""


@pytest.fixture
def command(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", request.param], cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


@pytest.mark.parametrize("command", [HOLDS_BACK], ids=["at once"], indirect=True)
def test_of_signals_that_come_at_once_one_counts(command: subprocess.Popen[str]) -> None:
    """A closed terminal sends several signals, in any order."""
    for number in SIGNALS:
        os.kill(command.pid, number)
    output, errors = command.communicate("\n", timeout=60)
    lines = {
        128 + signal.SIGTERM: "terminated\n",
        128 + signal.SIGINT: "interrupted\n",
        128 + signal.SIGHUP: "the terminal is gone\n",
    }
    assert errors == lines.get(command.returncode)
    assert output == "cleaned up\n"


@pytest.mark.parametrize("command", [CLEANS_UP], ids=["one after the other"], indirect=True)
def test_a_command_that_cleans_up_is_not_interrupted_again(command: subprocess.Popen[str]) -> None:
    os.kill(command.pid, SIGNALS[0])
    assert command.stdout is not None
    assert command.stdout.readline() == "cleans up\n"
    for number in (*SIGNALS[1:], *SIGNALS):
        os.kill(command.pid, number)
    output, errors = command.communicate("\n", timeout=60)
    assert (command.returncode, output, errors) == (128 + signal.SIGTERM, "cleaned up\n", "terminated\n")
