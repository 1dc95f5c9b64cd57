import json
import re
import shlex
from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from shepherd_core.bmdb.machines import pauses
from shepherd_core.bmdb.work import work

from tests.integration.cli.conftest import Ec2Fleet
from tests.support.bmdb.capacity import provided
from tests.support.bmdb.fleet import HOUR, Fleet
from tests.support.command_line import CommandLine

WHY = ("--reason", "it is gone")


def begin(fleet: Fleet) -> UUID:
    begun = fleet.bare_machine()
    fleet.sql("INSERT INTO machine_creation_intent (machine_id, provider) VALUES (:id, 'ec2')", id=begun)
    return begun


def test_each_difference_is_shown_with_class_and_way_out(fleet: Fleet, shepherdctl: CommandLine, ec2: Ec2Fleet) -> None:
    """A release is stranded when the operator's computer crashed before the provider heard of it; it is taken back."""
    assert shepherdctl.load("reconcile") == {"provider": "ec2", "drift": []}
    assert "ec2: 0 machines with drift" in shepherdctl.told("reconcile")
    gone, alive, stranded = ec2.machines
    ec2.end(gone)
    ec2.end(alive)
    fleet.plant("machine_agent_heartbeat", machine_id=ec2.machines[alive], agent_heartbeat_at=timedelta(minutes=-2))
    asked = {"asked_at": timedelta(hours=-1), "asked_by": "alice", "reason": "slow"}
    fleet.plant("machine_release", machine_id=ec2.machines[stranded], **asked)
    begun = begin(fleet)
    ours, foreign = ec2.create(begun), ec2.create(uuid4())
    found = {row["provider_id"]: row for row in shepherdctl.load("reconcile", status=3)["drift"]}
    assert {name: (row["class"], row["machine_id"], row["operator_action"]) for name, row in found.items()} == {
        gone: ("vanished", str(ec2.machines[gone]), f"machine forget {ec2.machines[gone]}"),
        alive: ("disputed", str(ec2.machines[alive]), "find out why the provider does not list it"),
        stranded: ("stranded", str(ec2.machines[stranded]), f"machine release {ec2.machines[stranded]}"),
        ours: ("adoptable", str(begun), f"machine adopt {ours}"),
        foreign: ("foreign", None, f"find out who owns it; machine adopt --class foreign {foreign}"),
    }
    assert "but its agent reported 12" in found[alive]["description"]
    assert "ec2: 5 machines with drift" in shepherdctl("reconcile").stderr
    assert (len(provided(fleet)), fleet.sql("SELECT * FROM sessions")) == (3, [])
    facts = shepherdctl.read("machine", "show", stranded)
    assert "requested 60 min ago by alice, not known to be accepted: slow" in facts
    assert shepherdctl("machine", "release", stranded, "--cancel", *WHY, "--yes").exit_code == 0
    left = {row["provider_id"] for row in shepherdctl.load("reconcile", status=3)["drift"]}
    assert (left, stranded in ec2.living) == (found.keys() - {stranded}, True)


def test_a_vanished_machine_is_forgotten_and_still_looked_up(
    fleet: Fleet, shepherdctl: CommandLine, ec2: Ec2Fleet
) -> None:
    name, machine_id = next(iter(ec2.machines.items()))
    ec2.end(name)
    dry = shepherdctl("machine", "forget", name, *WHY, "--dry-run")
    assert (dry.exit_code, len(provided(fleet))) == (0, 3)
    assert dry.stdout.splitlines()[1].split()[:3] == ["ready", name, str(machine_id)]
    assert "dry run: nothing was changed" in dry.stderr

    done = {"provider_id": name, "machine_id": str(machine_id), "result": "done", "text": "forgotten"}
    assert shepherdctl.load("machine", "forget", name, *WHY, "--yes") == {"dry_run": False, "machines": [done]}
    assert (name in provided(fleet), str(machine_id) in shepherdctl.read("machine", "list")) == (False, False)
    shown = shepherdctl.load("machine", "show", str(machine_id))
    assert (shown["state"], shown["decommissioned_reason"]) == ("forgotten", "it is gone")
    assert f"was {name} at ec2, forgotten" in shepherdctl.read("machine", "show", str(machine_id)[:12])
    assert shepherdctl("history", str(machine_id)).exit_code == 0


def test_a_refused_machine_fails_the_command(fleet: Fleet, shepherdctl: CommandLine, ec2: Ec2Fleet) -> None:
    name = next(iter(ec2.machines))
    told = shepherdctl.read("machine", "forget", name, *WHY, "--yes", status=1)
    assert "the provider has it in use; release gives it back" in told
    shepherdctl.read("machine", "adopt", "i-nonsense", "--yes", status=1)
    assert provided(fleet).keys() == ec2.machines.keys()


def test_all_machines_of_a_class_are_adopted_by_one_command(
    fleet: Fleet, shepherdctl: CommandLine, ec2: Ec2Fleet
) -> None:
    """The way back after a restore from a backup: it shows what it will do, and asks for the number of machines."""
    names = {ec2.create(uuid4()) for _ in range(2)}
    ours = ec2.create(begin(fleet))
    arguments = ("machine", "adopt", "--all", "--class", "foreign")
    shepherdctl.environment["SHEPHERD_MAX_MACHINES"] = "5"  # of which one is begun
    limited = json.loads(shepherdctl.read(*arguments, "--dry-run", "-o", "json", status=1))["machines"]
    assert [one["result"] for one in limited] == ["ready", "refused"]
    shepherdctl.environment["SHEPHERD_MAX_MACHINES"] = "6"
    dry = shepherdctl.load(*arguments, "--dry-run")
    assert {(one["provider_id"], one["result"]) for one in dry["machines"]} == {(name, "ready") for name in names}
    shepherdctl.on_terminal(80, *arguments, typed="2 machines\n", status=0)
    assert (set(provided(fleet)), shepherdctl.load(*arguments, "--yes")["machines"]) == ({*ec2.machines, *names}, [])
    assert ours not in provided(fleet)


def test_a_release_always_needs_the_name_of_the_machine(fleet: Fleet, shepherdctl: CommandLine, ec2: Ec2Fleet) -> None:
    name, machine_id = next(iter(ec2.machines.items()))
    arguments = ("machine", "release", str(machine_id)[:12], *WHY)
    assert shepherdctl(*arguments, "--dry-run").exit_code == 0
    fleet.sql("INSERT INTO machine_agent_heartbeat VALUES (:id, clock_timestamp())", id=machine_id)
    assert "its agent reported" in shepherdctl.read(*arguments, "--yes", status=1)
    assert name in ec2.living
    for typed, status, left in (("yes", 1, True), (name, 0, False)):
        shepherdctl.on_terminal(80, *arguments, "--despite-heartbeat", typed=f"{typed}\n", status=status)
        assert (name in ec2.living, name in provided(fleet)) == (left, left)


def test_a_release_retires_a_machine_also_after_an_interruption(
    fleet: Fleet, shepherdctl: CommandLine, ec2: Ec2Fleet
) -> None:
    """A crash may come after the pause, or after the release was recorded and before the provider was asked."""
    paused, asked, _ = ec2.machines
    shepherdctl.read("pause", "--machine", paused, *WHY)
    fleet.plant("machine_release", machine_id=ec2.machines[asked], asked_by="ana", reason="?")
    done = shepherdctl("machine", "retire", *map(str, [ec2.machines[paused], ec2.machines[asked]]), *WHY, "--yes")
    assert (done.exit_code, done.stdout.count("released")) == (0, 2)
    assert (ec2.living, fleet.sql("SELECT * FROM pauses")) == (set(ec2.machines) - {paused, asked}, [])


def listed(folder: Path, *names: str) -> dict[str, str]:
    entries = [{"ID": name, "Addr": f"192.0.2.{number}"} for number, name in enumerate(names, 1)]
    (folder / "list.json").write_text(json.dumps(entries))
    return {"SHEPHERD_PROVIDER": "static", "SHEPHERD_PROVIDER_MACHINES": str(folder / "list.json")}


def test_a_machine_gets_its_new_id_when_that_is_typed(fleet: Fleet, tmp_path: Path) -> None:
    machine_id = fleet.provided_machine()
    fleet.sql("UPDATE machine_provided SET provider_ip_address = '192.0.2.1'")
    fleet.pass_time(HOUR)
    shepherdctl = CommandLine(fleet.settings, listed(tmp_path, "rack 2"))
    (told,) = shepherdctl.load("reconcile", status=3)["drift"]
    rebind = f"if it is the same machine: machine rebind {machine_id} 'rack 2'; else machine forget"
    assert told["operator_action"] == rebind
    arguments = ("machine", "rebind", str(machine_id), "rack 2")
    assert [one["result"] for one in shepherdctl.load(*arguments, "--dry-run")["machines"]] == ["ready"]
    shepherdctl.on_terminal(80, *arguments, typed="rack 2\n", status=0)
    assert (provided(fleet), shepherdctl("reconcile").exit_code) == ({"rack 2": machine_id}, 0)
    release = ("machine", "release", str(machine_id), *WHY, "--yes")
    assert "the provider static cannot release machines" in shepherdctl.told(*release, status=1)
    assert fleet.sql("SELECT * FROM machine_release") == []


def test_machines_are_retired_step_by_step(fleet: Fleet, tmp_path: Path) -> None:
    """Each run does what can be done and says what is next, so that an interruption loses nothing."""
    gone, there = fleet.provided_machine(), fleet.provided_machine()
    shepherdctl = CommandLine(fleet.settings, listed(tmp_path, "machine-1", "machine-2"))
    both = ("machine", "retire", str(gone), str(there), *WHY)
    fleet.pass_time(HOUR)

    def run(*more: str, status: int = 3) -> dict[str, tuple[str, str]]:
        machines = json.loads(shepherdctl.read(*both, "-o", "json", *more, status=status))["machines"]
        return {one["machine_id"]: (one["result"], one["text"]) for one in machines}

    next_step = ("begun", "take its entry out of machines, stop its agent, and run this again")
    assert run("--dry-run", status=0) == {str(gone): next_step, str(there): next_step}
    shepherdctl.on_terminal(80, "machine", "retire", "machine-1", *WHY, typed="yes\n", status=1)
    assert pauses.pauses_in_force(fleet.connection) == []
    shepherdctl.on_terminal(80, "machine", "retire", "machine-1", *WHY, typed="machine-1\n", status=3)
    assert run("--yes") == {str(gone): next_step, str(there): next_step}
    listed(tmp_path, "machine-2")
    fleet.sql("INSERT INTO machine_agent_heartbeat VALUES (:id, clock_timestamp())", id=gone)
    found = run("--yes")
    assert found[str(there)] == next_step
    assert re.match(r"its agent reported \d+ s ago: stop it, and run this again, in 2 h ", found[str(gone)][1])
    fleet.pass_time(3 * HOUR)
    assert run("--yes") == {str(gone): ("done", "forgotten"), str(there): next_step}
    in_force = [(pause.machine_id, pause.reason) for pause in pauses.pauses_in_force(fleet.connection)]
    assert in_force == [(there, "retire: it is gone")]
    again = shepherdctl("machine", "retire", str(gone), *WHY, "--yes")
    assert (again.exit_code, again.stderr) == (0, "")
    assert shepherdctl.told("machine", "retire", "--location", "rack7", *WHY, "--yes").startswith("no machine matches")


def test_rebooting_a_healthy_machine_needs_a_confirmation_that_says_so(
    fleet: Fleet, shepherdctl: CommandLine, ec2: Ec2Fleet
) -> None:
    name, machine_id = next(iter(ec2.machines.items()))
    fleet.change(
        f"INSERT INTO machine_agent_started VALUES ('{machine_id}', now(), decode(repeat('5e', 32), 'hex'))",
        f"INSERT INTO machine_agent_heartbeat VALUES ('{machine_id}', clock_timestamp())",
    )
    arguments = ("machine", "reboot", str(machine_id)[:12], "--reason", "new kernel", "--owner", "ana")
    assert "reboot: running, heartbeat" in shepherdctl.read(*arguments, "--dry-run")
    for typed, status, steps in ((name, 1, []), (f"healthy {name}", 0, ["reboot"])):
        shepherdctl.on_terminal(80, *arguments, typed=f"{typed}\n", status=status)
        history = shepherdctl.load("history", str(machine_id))
        assert [line["step"] for line in history if line["event"] == "Attempted"] == steps
        assert [line["cause"] for line in history if line["event"] == "Started"] == ["ana: new kernel"] * len(steps)


def test_matches_reboot_and_others_are_named(fleet: Fleet, shepherdctl: CommandLine, ec2: Ec2Fleet) -> None:
    first, *others = sorted(ec2.machines.values())
    work.start_work(fleet.open_session(), first, "?")
    found = shepherdctl.load("machine", "power-cycle", "--state", "needs_agent", *WHY, "--yes", status=1)["machines"]
    rows = {UUID(each["machine_id"]): each for each in found}
    assert "is being worked on" in rows[first]["text"]
    assert {one: each["result"] for one, each in rows.items()} == {first: "refused", **dict.fromkeys(others, "done")}


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
    found = shepherdctl.load("status", status=3)["conditions"]
    (told,) = [each for each in found if each["name"] == "recovery-limited"]
    _, _, command = told["cure"].strip("`").partition("if the machines are down: `shepherdctl ")
    done = json.loads(shepherdctl.read(*shlex.split(command), "--yes", "-o", "json"))["machines"]
    assert {UUID(each["machine_id"]): each["result"] for each in done} == dict.fromkeys(down, "done")
    assert all(fleet.events(machine_id) == ["Started", "Attempted", "Finished"] for machine_id in down)
