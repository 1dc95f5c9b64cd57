import json
import re
import sys
from pathlib import Path

import pytest

from simulator.providers.ironic.service import installed
from tests.chaos.sample import WHOLE
from tests.support.processes import ran

SHEPHERDCTL = Path(sys.executable).with_name("shepherdctl")
NOTHING = {"data": [], "meta": {"stats": {"total": {"count": 0}}}}

# The provider makes a server, says that it refused, and denies it from then on; so its creation is forgotten.
LIES = {
    "api": [
        {"method": "POST", "path": "/servers", "do": "answer", "status": 422, "when": "after"},
        {"method": "GET", "path": "/servers", "do": "answer", "status": 200, "times": 0, "body": NOTHING},
    ]
}


def demo(*arguments: str) -> str:
    return ran(SHEPHERDCTL, "demo", "--machines", "3", *arguments, timeout=600).stdout


def test_the_demo_gives_machines_agents_and_brings_two_back() -> None:
    told = demo("--speed", "120")
    scenes = (
        "all 3 machines are running",
        "two machines break:",
        "agent stops",
        "machine hangs",
        "both machines are running again",
        "agent API outage of 15 min: no heartbeat arrives",
        "alive over SSH: restarts agents",
        "the outage is over",
        "all agents report again",
        "What you saw:",
        "Everything worked.",
        "Try next:",
        ".venv/bin/shepherdctl simulate",  # nothing is on the PATH after `make demo`
    )
    assert re.search(".*".join(map(re.escape, scenes)), told, re.DOTALL)
    (hanging,) = re.findall(r"fault +(\S+): machine hangs", told)
    off_and_on = rf"{hanging}: .*{hanging}: off.*{hanging}: on.*both machines are running again"
    assert re.search(off_and_on, told, re.DOTALL), "nothing but its power switch helps one that hangs"
    history = told[told.index("history of machine") :]
    for line in (r"Initializer +Finished.*Recoverer +Started", r"Recoverer +Finished.*Initializer +Finished"):
        assert re.search(line, history, re.DOTALL)


@pytest.mark.skipif(not WHOLE, reason="a part of make chaos")
def test_the_demo_creates_machines_at_a_provider() -> None:
    """They boot for minutes, and their number is a limit."""
    assert "Everything worked." in demo("--speed", "120", "--provider", "latitude")


@pytest.mark.skipif(installed() is None and not WHOLE, reason="a part of make test-ironic, and of make chaos")
def test_the_demo_deploys_ironic_nodes_and_brings_two_back() -> None:
    """
    The whole lifecycle; the fake may be wrong where no single request shows it.

    Ironic's own time does not run faster, so the fleet's runs at half of the usual speed.
    """
    scenes = ("a fake" if installed() is None else "the real service", "all 3 machines are running", "running again")
    assert re.search(".*".join(scenes), demo("--provider", "ironic", "--speed", "30"), re.DOTALL)


def test_a_demo_that_lost_a_machine_fails_and_says_so(tmp_path: Path) -> None:
    faults = tmp_path / "faults.json"
    faults.write_text(json.dumps(LIES))
    arguments = ("--provider", "latitude", "--machines", "1", "--minutes", "1", "--speed", "120", "-o", "json")
    done = ran(SHEPHERDCTL, "simulate", *arguments, "--faults", faults, status=1, timeout=600)
    (problem,) = json.loads(done.stdout)["problems"]
    assert problem.endswith("is at the provider and not in the BMDB")
    assert problem in done.stderr
