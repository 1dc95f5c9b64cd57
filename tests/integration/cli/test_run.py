"""Running a loop from the command line, in a process of its own."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shepherd_core.settings.functions import LOOPS

from tests.support.bmdb.fleet import Fleet
from tests.support.command_line import CommandLine

Listing = list[dict[str, str]]

RACK: Listing = [
    {"ID": "rack1-1", "Addr": "192.0.2.11", "Location": "Amsterdam"},
    {"ID": "rack1-2", "Addr": "192.0.2.12"},
]
EQUINIX = {
    "SHEPHERD_PROVIDER": "equinix",
    "SHEPHERD_PROVIDER_PROJECT": "0b9d4a3e",
    "SHEPHERD_PROVIDER_CREDENTIAL_PARAMETER": "/nobody/reads/it",
    "SHEPHERD_PROVIDER_FLEET": "ours-",
    "SHEPHERD_PROVIDER_KEY_NAME": "ours",
}


@pytest.fixture
def shepherdctl(fleet: Fleet, tmp_path: Path) -> Callable[[Listing], CommandLine]:
    def make(listing: Listing) -> CommandLine:
        path = tmp_path / "machines.json"
        path.write_text(json.dumps(listing), encoding="utf-8")
        environment = {
            "SHEPHERD_PROVIDER": "static",
            "SHEPHERD_PROVIDER_MACHINES": str(path),
            "SHEPHERD_CREATION_SECONDS": "0",
            "SHEPHERD_DRIFT_LIMIT": "0",
        }
        return CommandLine(fleet.settings, environment)

    return make


def logged(lines: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.splitlines() if line.startswith("{")]


def test_a_loop_is_run_dry_then_run_then_seen(shepherdctl: Callable[[Listing], CommandLine]) -> None:
    command_line = shepherdctl(RACK)
    dry = command_line.process("run", "provisioner", "--dry-run")
    assert dry.returncode == 0
    titles, *steps = dry.stdout.splitlines()
    assert titles.split("  ")[0] == "STEP"
    assert [step.split() for step in steps] == [
        ["create", "rack1-1", "192.0.2.11", "Amsterdam"],
        ["create", "rack1-2", "192.0.2.12"],
    ]
    assert command_line.load("machine", "list") == []

    ran = command_line.process("run", "provisioner")
    assert ran.returncode == 0
    assert ran.stdout.splitlines()[0].split() == ["created", "2"]
    machines = command_line.load("machine", "list")
    assert sorted(machine["provider_id"] for machine in machines) == ["rack1-1", "rack1-2"]
    assert {machine["state"] for machine in machines} == {"needs_agent"}

    again = command_line.process("run", "provisioner", "--dry-run")
    assert (again.returncode, again.stdout) == (0, "")
    assert "there is nothing to do" in again.stderr


def test_logs_and_metrics_do_not_mix_with_data(shepherdctl: Callable[[Listing], CommandLine]) -> None:
    ran = shepherdctl(RACK).process("run", "provisioner", "-o", "json")
    document = json.loads(ran.stdout)
    assert (document["loop"], document["provider"], document["dry_run"]) == ("provisioner", "static", False)
    assert (document["counts"]["created"], document["counts"]["drifted"]) == (2, 0)
    lines = logged(ran.stderr)
    assert [line["provider_id"] for line in lines if line.get("message") == "machine provided"] == [
        "rack1-1",
        "rack1-2",
    ]
    assert any(line.get("message") == "counts" for line in lines)


def test_people_get_a_summary_and_a_log_in_plain_text(shepherdctl: Callable[[Listing], CommandLine]) -> None:
    ran = shepherdctl(RACK).process("run", "provisioner")
    assert "{" not in ran.stdout + ran.stderr
    assert "machine provided (loop provisioner, provider static, " in ran.stderr


def test_a_provisioners_plan_as_json_names_steps_and_limits(shepherdctl: Callable[[Listing], CommandLine]) -> None:
    document = json.loads(shepherdctl(RACK).process("run", "provisioner", "--dry-run", "-o", "json").stdout)
    assert document["dry_run"] is True
    assert [step["capacity"]["provider_id"] for step in document["plan"]["create"]] == ["rack1-1", "rack1-2"]
    assert (document["plan"]["set_aside"], document["plan"]["managed"]) == ([], 0)


def test_a_dry_run_of_recovery_names_machines_and_touches_none(fleet: Fleet) -> None:
    machine_id = fleet.unhealthy_machine()
    fleet.sql("UPDATE machine_provided SET provider = 'equinix'")
    command_line = CommandLine(fleet.settings, EQUINIX)
    dry = command_line.process("run", "recoverer", "--dry-run")
    assert dry.returncode == 0
    assert str(machine_id) in dry.stdout
    assert "Recoverer" in dry.stdout
    document = json.loads(command_line.process("run", "recoverer", "--dry-run", "-o", "json").stdout)
    assert [work["machine_id"] for work in document["plan"]] == [str(machine_id)]
    assert document["plan"][0]["due_at"].endswith("Z")
    assert fleet.events(machine_id) == []
    fleet.pass_time(-7200)
    nothing = command_line.process("run", "recoverer", "--dry-run")
    assert (nothing.returncode, nothing.stdout) == (0, "")
    assert "no machine is due" in nothing.stderr


def test_a_dry_run_of_recovery_names_limits_and_who_waits(fleet: Fleet) -> None:
    """An operator looks here before rebooting machines; that nothing is due would be the wrong answer."""
    machines = [fleet.unhealthy_machine() for _ in range(10)]
    fleet.sql("UPDATE machine_provided SET provider = 'equinix'")
    command_line = CommandLine(fleet.settings, EQUINIX)
    dry = command_line.process("run", "recoverer", "--dry-run")
    _, *rows = dry.stdout.splitlines()
    assert {row.split()[0] for row in rows} == {str(machine_id) for machine_id in machines}
    assert all("reboot, attempt 1 of 3" in row for row in rows)
    assert "recovery is limited: the whole provider: no machine reports, and 10 are dead" in dry.stderr
    document = json.loads(command_line.process("run", "recoverer", "--dry-run", "-o", "json").stdout)
    assert (len(document["plan"]), len(document["recovery_limited"])) == (10, 1)


def test_a_discrepancy_fails_naming_every_machine(shepherdctl: Callable[[Listing], CommandLine], fleet: Fleet) -> None:
    shepherdctl(RACK).process("run", "provisioner")
    fleet.pass_time(3600)
    ran = shepherdctl([]).process("run", "provisioner")
    assert (ran.returncode, ran.stdout) == (1, "")
    message = ran.stderr.partition("error: ")[2]
    assert "rack1-1" in message
    assert "rack1-2" in message
    assert "Traceback" not in message


def test_a_dry_run_of_the_provisioner_shows_drift(shepherdctl: Callable[[Listing], CommandLine], fleet: Fleet) -> None:
    shepherdctl(RACK).process("run", "provisioner")
    fleet.pass_time(3600)
    command_line = shepherdctl(RACK[:1])
    command_line.environment["SHEPHERD_DRIFT_LIMIT"] = "3"
    dry = command_line.process("run", "provisioner", "--dry-run")
    assert dry.stdout.splitlines()[1].startswith("set aside  rack1-2")
    assert "drift: rack1-2" in dry.stderr
    ran = command_line.process("run", "provisioner")
    assert ran.returncode == 0
    shepherdctl(RACK)
    assert "take back  rack1-2" in command_line.process("run", "provisioner", "--dry-run").stdout


def test_a_dry_updater_shows_each_changed_fact(shepherdctl: Callable[[Listing], CommandLine]) -> None:
    shepherdctl(RACK).process("run", "provisioner")
    command_line = shepherdctl([{**RACK[0], "Addr": "192.0.2.99", "Location": "Berlin"}, RACK[1]])
    dry = command_line.process("run", "updater", "--dry-run")
    titles, *facts = dry.stdout.splitlines()
    assert titles.split("  ")[0] == "MACHINE"
    assert [row.split()[1:] for row in facts] == [
        ["rack1-1", "address", "192.0.2.11", "192.0.2.99"],
        ["rack1-1", "location", "Amsterdam", "Berlin"],
    ]
    document = json.loads(command_line.process("run", "updater", "--dry-run", "-o", "json").stdout)
    assert document["plan"]["changes"][0]["changed"]["location"] == ["Amsterdam", "Berlin"]
    ran = command_line.process("run", "updater")
    assert ran.stdout.splitlines()[0].split() == ["updated", "1"]
    again = command_line.process("run", "updater", "--dry-run")
    assert (again.stdout, "there is nothing to do" in again.stderr) == ("", True)


def test_a_loop_that_is_paused_says_that_nothing_was_done(shepherdctl: Callable[[Listing], CommandLine]) -> None:
    command_line = shepherdctl(RACK)
    command_line.read("pause", "--all", "--reason", "network maintenance")
    ran = command_line.process("run", "provisioner")
    assert (ran.returncode, ran.stdout) == (0, "")
    assert "network maintenance" in ran.stderr
    assert "nothing was done" in ran.stderr


def test_a_run_too_short_for_a_machine_is_refused(fleet: Fleet) -> None:
    ran = CommandLine(fleet.settings, EQUINIX).process("run", "recoverer", "--seconds", "60")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "work on one machine may take 125 s" in ran.stderr


@pytest.mark.parametrize("loop", LOOPS)
def test_all_faults_of_a_loop_are_reported_at_once(loop: str) -> None:
    ran = CommandLine(None, {"SHEPHERD_PROVIDER": "static", "SHEPHERD_BMDB_PORT": "0"}).process("run", loop)
    assert (ran.returncode, ran.stdout) == (1, "")
    for variable in ("SHEPHERD_BMDB_HOST", "SHEPHERD_BMDB_PORT", "SHEPHERD_PROVIDER_MACHINES"):
        assert variable in ran.stderr


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_a_loop_asks_for_the_migration_that_is_missing(own_fleet: Fleet, tmp_path: Path, options: list[str]) -> None:
    """Also where no session is opened that would notice."""
    own_fleet.sql("DELETE FROM schema_migrations WHERE version = (SELECT max(version) FROM schema_migrations)")
    own_fleet.sql("ALTER TABLE machine_creation_intent RENAME TO later")
    path = tmp_path / "machines.json"
    path.write_text("[]")
    environment = {"SHEPHERD_PROVIDER": "static", "SHEPHERD_PROVIDER_MACHINES": str(path)}
    ran = CommandLine(own_fleet.settings, environment).process("run", "provisioner", *options)
    own_fleet.sql("ALTER TABLE later RENAME TO machine_creation_intent")
    assert ran.returncode == 1
    assert "shepherdctl db migrate" in ran.stderr
