"""A whole simulated fleet in front of the real OpenStack Ironic: a part of ``make test-ironic``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from simulator.providers.ironic.service import installed


@pytest.mark.skipif(installed() is None, reason="a part of make test-ironic")
def test_the_demo_deploys_nodes_of_ironic_and_brings_two_machines_back() -> None:
    """The fake may be wrong where no single request shows it."""
    command: list[str | Path] = [
        Path(sys.executable).with_name("shepherdctl"),
        "demo",
        "--machines",
        "3",
        "--provider",
        "ironic",
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    for scene in ("the real service", "all 3 machines are running", "both machines are running again"):
        assert scene in done.stdout
