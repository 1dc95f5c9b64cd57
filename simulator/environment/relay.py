"""A relay for the heartbeats of simulated machines: a process that runs the agent's own code."""

import subprocess
import sys
from pathlib import Path

from simulator.closeable import Closeable
from simulator.lambda_.service import ROOT


class Relay(Closeable):
    """A running relay. Its times are real, not fleet time."""

    def __init__(self, address: str, endpoint: str, ca_certificate: Path, folder: Path) -> None:
        """Listen at a free port of *address*, for machines there. *folder* has its log, and is its ``TMPDIR``."""
        arguments = ["--relay", f"{address}:0", endpoint, address, str(ca_certificate)]
        with (folder / "relays.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "agent.shepherd_agent", *arguments],
                cwd=ROOT,
                env={"TMPDIR": str(folder)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # so that Ctrl-C in a terminal does not reach it
            )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().split()[-1]
        """HOST:PORT, where agents report."""

    def close(self) -> None:
        """Kill it. May be called twice."""
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
