"""A command that is interrupted, also more than once: it cleans up in order, and says in one line what changed."""

import fcntl
import os
import signal
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.bmdb.fleet import Fleet, administrator
from tests.support.command_line import CommandLine

ROOT = Path(__file__).parents[3]
SAID = {signal.SIGTERM: "terminated", signal.SIGINT: "interrupted", signal.SIGHUP: "the terminal is gone"}
REASON = ("--reason", "why", "--yes")
PAUSE = ("pause", "--machine", "machine-1", *REASON)

# It holds the signals back until it is told that all were sent: then they come at once.
HOLDS_BACK = """
import signal, sys, time
from shepherdctl.interrupts import graceful_exit

SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
with graceful_exit(), graceful_exit():
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        print("ready", flush=True)
        sys.stdin.readline()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        while True:
            time.sleep(1)
    finally:
        print("cleans up", flush=True)
        sys.stdin.readline()
        print("cleaned up", flush=True)
"""


def test_one_signal_of_several_counts_and_cleaning_up_continues() -> None:
    """A closed terminal sends several, in any order, and a person more of them."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS_BACK], cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        for told in ("ready\n", "cleans up\n"):
            assert process.stdout.readline() == told
            for number in SAID:
                os.kill(process.pid, number)
            process.stdin.write("\n")
            process.stdin.flush()
        output, errors = process.communicate(timeout=60)
    assert {128 + number: f"{said}\n" for number, said in SAID.items()}.get(process.returncode) == errors
    assert output == "cleaned up\n"


def interrupted(fleet: Fleet, number: int, lock: str, *arguments: str) -> tuple[int, str, str]:
    """Return the status, output and errors of a command that gets the signal while *lock* keeps it waiting."""

    def send(pid: int) -> None:
        fleet.wait_until_blocked()
        os.kill(pid, number)

    with closing(administrator(fleet.settings)) as other:
        other.run("BEGIN")
        other.run(lock)
        ended = CommandLine(fleet.settings).process(*arguments, meanwhile=send)
        other.run("ROLLBACK")
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize("number", SAID)
@pytest.mark.parametrize(
    ("lock", "told"),
    [("LOCK TABLE pauses IN SHARE MODE", ": nothing was changed"), ("LOCK TABLE machine_provided", "")],
    ids=["for the change", "before the change"],
)
def test_an_interrupted_command_has_changed_nothing(fleet: Fleet, lock: str, told: str, number: signal.Signals) -> None:
    """What waits at the server is canceled: it would be carried out after the command had said that it was not."""
    fleet.provided_machine()
    assert interrupted(fleet, number, lock, *PAUSE) == (128 + number, "", f"{SAID[number]}{told}\n")
    fleet.wait_until_idle()
    assert fleet.sql("SELECT FROM pauses") == []


def test_a_command_interrupted_between_its_changes_tells_both(fleet: Fleet) -> None:
    machines = [fleet.quarantine(machine_id) for machine_id in fleet.machines(3)]
    lock = f"SELECT FROM machine_quarantine WHERE machine_id = '{machines[1]}' FOR UPDATE"
    unquarantine = ("machine", "unquarantine", *map(str, machines), *REASON)
    told = "interrupted: 1 transaction committed, which nothing takes back; the same command does the rest\n"
    assert interrupted(fleet, signal.SIGINT, lock, *unquarantine) == (130, "", told)
    left = {machine_id for (machine_id,) in fleet.sql("SELECT machine_id FROM machine_quarantine")}
    assert left == set(machines[1:])


def test_a_command_whose_commit_came_first_says_so(fleet: Fleet, shepherdctl: CommandLine) -> None:
    """It succeeds, or is interrupted while it prints: its output fits nowhere until the signal has come."""
    fleet.provided_machine()
    theirs, ours = os.pipe()
    with os.fdopen(theirs) as reader, os.fdopen(ours, "w") as writer, ThreadPoolExecutor(1) as pool:
        writer.write("x" * fcntl.fcntl(ours, fcntl.F_GETPIPE_SZ))
        writer.flush()
        read: list[Future[str]] = []

        def send(pid: int) -> None:
            fleet.wait_until("EXISTS (SELECT FROM pauses)")
            os.kill(pid, signal.SIGINT)
            read.append(pool.submit(reader.read))

        ended = shepherdctl.process(*PAUSE, output=writer, meanwhile=send)
        writer.close()
        printed = read[0].result().strip("x")
    cut_short = "interrupted: everything was done; only its output may be incomplete\n"
    said = ended.stderr.removeprefix("work that has begun continues\n")
    assert (ended.returncode, said) in [(0, ""), (130, cut_short)]
    assert ended.returncode or "machine-1" in printed
