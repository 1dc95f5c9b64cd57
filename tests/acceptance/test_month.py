import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shepherdctl.main import app
from simulator.cost.formula import bill, heartbeats, month
from simulator.cost.inputs import Inputs
from simulator.month.month import DAY, Month

MACHINES, DAYS = 10, 4


def test_days_pass_in_which_no_healthy_machine_is_interrupted() -> None:
    """A machine hangs until its power is cut, and the agent API has an outage."""
    arguments = ["simulate", "--machines", str(MACHINES), "--days", str(DAYS), "--seed", "5", "--bill", "-o", "json"]
    ended = CliRunner().invoke(app, arguments)
    assert ended.exit_code == 0, ended.output
    told = json.loads(ended.stdout)
    assert (told["failures"], told["outages"]) == ({"hangs until its power is cut": 1}, {"agent API": 1})
    assert told["recovery_steps"] == {"reboot": 3, "power-cycle": 1}
    assert (told["false_recoveries"], told["running"], told["problems"]) == (0, MACHINES, [])
    assert 95 < float(told["availability"].removesuffix(" %")) < 100
    assert (told["ticks"], told["heartbeats"]) == (4 * DAYS * DAY, pytest.approx(MACHINES * DAYS * DAY / 4, rel=0.03))
    assert told["dollars_a_month"]["heartbeats: requests"] == pytest.approx(
        month(MACHINES, Inputs())["heartbeats: requests"], rel=0.03
    )


def test_the_bill_of_what_happened_is_that_of_assumptions() -> None:
    """Thirty days are a little less than the month that AWS charges for."""
    ticks = 4 * 30 * DAY
    did = Month(1_000, 30, ticks=ticks, requests=1_000 * 30 * DAY // 4, log_bytes=1_200 * ticks)
    did.listed, did.agent_starts = 1_000 * 30 * (DAY + 24), 1_000
    costs = bill(did.activity(Inputs()), Inputs())
    assert did.activity(Inputs()).requests == pytest.approx(heartbeats(1_000, Inputs()))
    assert costs == pytest.approx(month(1_000, Inputs()), rel=0.02)


@pytest.mark.parametrize(("says", "told"), [("echo python3.1", "python3.1,"), ("exit 1", "Python,")])
def test_an_emulator_that_cannot_run_the_functions_is_refused(tmp_path: Path, says: str, told: str) -> None:
    """The deployment would wait for them without a word."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{says}\n")
    python.chmod(0o755)
    ended = CliRunner().invoke(app, ["simulate", "--account", str(python)])
    assert (ended.exit_code, told in ended.output.split()) == (2, True), ended.output
