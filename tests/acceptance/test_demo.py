"""What a new user types first, and whether its verdict can be trusted."""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.chaos.sample import WHOLE

SHEPHERDCTL = Path(sys.executable).with_name("shepherdctl")
NOTHING = {"data": [], "meta": {"stats": {"total": {"count": 0}}}}

# The provider makes a server, says that it refused, and denies it from then on; so its creation is forgotten.
LIES = {
    "api": [
        {"method": "POST", "path": "/servers", "do": "answer", "status": 422, "when": "after"},
        {"method": "GET", "path": "/servers", "do": "answer", "status": 200, "times": 0, "body": NOTHING},
    ]
}


def run(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SHEPHERDCTL, *arguments], check=False, capture_output=True, text=True, timeout=600)


def test_the_demo_gives_machines_agents_and_brings_two_back() -> None:
    done = run(["demo", "--machines", "3", "--speed", "120"])
    assert done.returncode == 0, done.stdout + done.stderr
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
    assert re.search(".*".join(map(re.escape, scenes)), done.stdout, re.DOTALL)
    (hanging,) = re.findall(r"fault +(\S+): machine hangs", done.stdout)
    off_and_on = rf"{hanging}: .*{hanging}: off.*{hanging}: on.*both machines are running again"
    assert re.search(off_and_on, done.stdout, re.DOTALL), "nothing but its power switch helps one that hangs"
    history = done.stdout[done.stdout.index("history of machine") :]
    for line in (r"Initializer +Finished.*Recoverer +Started", r"Recoverer +Finished.*Initializer +Finished"):
        assert re.search(line, history, re.DOTALL)


@pytest.mark.skipif(not WHOLE, reason="a part of make chaos")
def test_the_demo_creates_machines_at_a_provider() -> None:
    """They boot for minutes, and their number is a limit."""
    done = run(["demo", "--machines", "3", "--speed", "120", "--provider", "latitude"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Everything worked." in done.stdout


def test_a_demo_that_lost_a_machine_fails_and_says_so(tmp_path: Path) -> None:
    faults = tmp_path / "faults.json"
    faults.write_text(json.dumps(LIES))
    done = run(
        [
            *("simulate", "--provider", "latitude", "--machines", "1", "--minutes", "1", "--speed", "120"),
            *("--faults", str(faults), "-o", "json"),
        ]
    )
    assert done.returncode == 1, done.stdout + done.stderr
    (problem,) = json.loads(done.stdout)["problems"]
    assert problem.endswith("is at the provider and not in the BMDB")
    assert problem in done.stderr
