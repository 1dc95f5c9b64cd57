"""A whole simulated fleet in front of OpenStack Ironic."""

import subprocess
import sys
from pathlib import Path

import pytest

from simulator.providers.ironic.service import installed
from tests.chaos.sample import WHOLE


@pytest.mark.skipif(installed() is None and not WHOLE, reason="a part of make test-ironic, and of make chaos")
def test_the_demo_deploys_ironic_nodes_and_brings_two_back() -> None:
    """
    The whole lifecycle; the fake may be wrong where no single request shows it.

    Ironic's own time does not run faster, so the fleet's runs at half of the usual speed.
    """
    shepherdctl = str(Path(sys.executable).with_name("shepherdctl"))
    command = [shepherdctl, *["demo", "--machines", "3", "--provider", "ironic", "--speed", "30"]]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    for scene in (
        "a fake" if installed() is None else "the real service",
        "all 3 machines are running",
        "both machines are running again",
    ):
        assert scene in done.stdout
