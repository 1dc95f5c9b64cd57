"""The command that takes machines from service until they are forgotten; for releases see test_reconcile.py."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from shepherd_core.bmdb.machines import pauses

from tests.support.bmdb.fleet import HOUR, Fleet
from tests.support.command_line import CommandLine

RETIRE = ("--reason", "rack 7 was sold")


@pytest.fixture
def listed(tmp_path: Path) -> Callable[..., dict[str, str]]:
    file = tmp_path / "machines.json"

    def listed(*names: str) -> dict[str, str]:
        file.write_text(json.dumps([{"ID": name, "Addr": f"192.0.2.{number}"} for number, name in enumerate(names, 1)]))
        return {"SHEPHERD_PROVIDER": "static", "SHEPHERD_PROVIDER_MACHINES": str(file)}

    return listed


def test_machines_are_retired_step_by_step(fleet: Fleet, listed: Callable[..., dict[str, str]]) -> None:
    """Each run does what can be done and says what is next, so that an interruption loses nothing."""
    gone, there = fleet.provided_machine(), fleet.provided_machine()
    shepherdctl = CommandLine(fleet.settings, listed("machine-1", "machine-2"))
    fleet.pass_time(HOUR)

    def run(*more: str) -> tuple[int, dict[str, tuple[str, str]]]:
        result = shepherdctl("machine", "retire", str(gone), str(there), *RETIRE, "-o", "json", *more)
        found = json.loads(result.stdout)["machines"] if result.stdout else []
        return result.exit_code, {one["machine_id"]: (one["result"], one["text"]) for one in found}

    next_step = ("begun", "take its entry out of machines, stop its agent, and run this again")
    assert run("--dry-run") == (0, {str(gone): next_step, str(there): next_step})
    assert pauses.pauses_in_force(fleet.connection) == []

    assert run("--yes") == (3, {str(gone): next_step, str(there): next_step})
    listed("machine-2")
    fleet.sql("INSERT INTO machine_agent_heartbeat VALUES (:id, clock_timestamp())", id=gone)
    status, found = run("--yes")
    assert (status, found[str(there)]) == (3, next_step)
    assert re.match(r"its agent reported \d+ s ago: stop it, and run this again, in 2 h ", found[str(gone)][1])
    fleet.pass_time(3 * HOUR)
    assert run("--yes") == (3, {str(gone): ("done", "forgotten"), str(there): next_step})
    assert [(pause.machine_id, pause.reason) for pause in pauses.pauses_in_force(fleet.connection)] == [
        (there, "retire: rack 7 was sold")
    ]
    again = shepherdctl("machine", "retire", str(gone), *RETIRE, "--yes")
    assert (again.exit_code, again.stderr) == (0, "")
    none = shepherdctl("machine", "retire", "--location", "rack7", *RETIRE, "--yes")
    assert (none.exit_code, none.stdout, none.stderr) == (0, "", "no machine matches: nothing is left to retire\n")


@pytest.mark.parametrize(("typed", "paused"), [("machine-1\n", 1), ("yes\n", 0)])
def test_retiring_needs_the_name(fleet: Fleet, listed: Callable[..., dict[str, str]], typed: str, paused: int) -> None:
    fleet.provided_machine()
    shepherdctl = CommandLine(fleet.settings, listed("machine-1"))
    shepherdctl.on_terminal(80, "machine", "retire", "machine-1", *RETIRE, typed=typed, status=3 if paused else 1)
    assert len(pauses.pauses_in_force(fleet.connection)) == paused
