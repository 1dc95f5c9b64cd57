"""The commands by which an operator reboots machines."""

import json
import shlex
from uuid import UUID

import pytest
from shepherd_core.bmdb.work import work

from tests.integration.cli.ec2_fleet import Ec2Fleet
from tests.support.bmdb.fleet import Fleet
from tests.support.command_line import CommandLine


@pytest.mark.parametrize(("typed", "events"), [("healthy {}", ["reboot"]), ("{}", [])])
def test_rebooting_a_healthy_machine_needs_a_confirmation_that_says_so(
    fleet: Fleet, shepherdctl: CommandLine, ec2: Ec2Fleet, typed: str, events: list[str]
) -> None:
    name, machine_id = next(iter(ec2.machines.items()))
    fleet.change(
        f"INSERT INTO machine_agent_started VALUES ('{machine_id}', now(), decode(repeat('5e', 32), 'hex'))",
        f"INSERT INTO machine_agent_heartbeat VALUES ('{machine_id}', clock_timestamp())",
    )
    arguments = ("machine", "reboot", str(machine_id)[:12], "--reason", "new kernel", "--owner", "ana")
    assert "reboot: running, heartbeat" in shepherdctl.read(*arguments, "--dry-run")
    shepherdctl.on_terminal(80, *arguments, typed=typed.format(name) + "\n", status=int(not events))
    history = shepherdctl.load("history", str(machine_id))
    assert [line["step"] for line in history if line["event"] == "Attempted"] == events
    assert [line["cause"] for line in history if line["event"] == "Started"] == ["ana: new kernel"] * len(events)


def test_matches_reboot_and_others_are_named(fleet: Fleet, shepherdctl: CommandLine, ec2: Ec2Fleet) -> None:
    first, *others = sorted(ec2.machines.values())
    work.start_work(fleet.open_session(), first, "?")
    result = shepherdctl("machine", "power-cycle", "--state", "needs_agent", "--reason", "x", "--yes", "-o", "json")
    assert result.exit_code == 1
    rows = {UUID(each["machine_id"]): each for each in json.loads(result.stdout)["machines"]}
    assert rows.keys() == set(ec2.machines.values())
    assert (rows[first]["result"], "is being worked on" in rows[first]["text"]) == ("refused", True)
    assert {rows[other]["result"] for other in others} == {"done"}


@pytest.mark.parametrize("brake", ["silent", "ssh"])
def test_machines_are_rebooted_although_the_budget_is_used_up(
    fleet: Fleet, shepherdctl: CommandLine, ec2: Ec2Fleet, brake: str
) -> None:
    """By the command that status prints: what holds the Recoverer back does not hold an operator back."""
    elsewhere, *down = ec2.machines.values()
    fleet.watch("ec2")
    fleet.sql("DELETE FROM work_backoff")
    for machine_id in ec2.machines.values():
        fleet.locate(machine_id, "fra" if machine_id == elsewhere else "rack 3")
        if brake == "ssh":
            fleet.make_overdue(machine_id)
        else:
            key = "decode(repeat('5e', 32), 'hex')"
            fleet.change(f"INSERT INTO machine_agent_started VALUES ('{machine_id}', now() - interval '1 day', {key})")
    fleet.sql(f"INSERT INTO recovery_budgets VALUES ('ec2', 'rack 3', 0, '{brake}', '?')")
    (told,) = [
        each for each in shepherdctl.load("status", status=3)["conditions"] if each["name"] == "recovery-limited"
    ]
    _, _, command = told["cure"].strip("`").partition("if the machines are down: `shepherdctl ")
    done = json.loads(shepherdctl.read(*shlex.split(command), "--yes", "-o", "json"))["machines"]
    assert {UUID(each["machine_id"]): each["result"] for each in done} == dict.fromkeys(down, "done")
    assert all(fleet.events(machine_id) == ["Started", "Attempted", "Finished"] for machine_id in down)
