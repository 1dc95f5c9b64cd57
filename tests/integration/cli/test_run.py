"""Running a loop from the command line, in a process of its own."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from shepherd_core.bmdb.schema.migrate import migrations

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
    document = json.loads(command_line.process("run", "provisioner", "--dry-run", "-o", "json").stdout)
    assert (document["dry_run"], document["plan"]["set_aside"], document["plan"]["managed"]) == (True, [], 0)
    assert [step["capacity"]["provider_id"] for step in document["plan"]["create"]] == ["rack1-1", "rack1-2"]
    assert command_line.load("machine", "list") == []

    command_line.read("pause", "--all", "--reason", "network maintenance")
    paused = command_line.process("run", "provisioner")
    assert (paused.returncode, paused.stdout) == (0, "")
    assert "network maintenance" in paused.stderr
    assert "nothing was done" in paused.stderr
    command_line.read("resume", "--all")

    ran = command_line.process("run", "provisioner", "-o", "json")
    assert ran.returncode == 0
    document = json.loads(ran.stdout)  # logs and metrics do not mix with data
    assert (document["loop"], document["provider"], document["dry_run"]) == ("provisioner", "static", False)
    assert (document["counts"]["created"], document["counts"]["drifted"]) == (2, 0)
    lines = [json.loads(line) for line in ran.stderr.splitlines() if line.startswith("{")]
    assert [line["provider_id"] for line in lines if line.get("message") == "machine provided"] == [
        "rack1-1",
        "rack1-2",
    ]
    assert any(line.get("message") == "counts" for line in lines)
    machines = command_line.load("machine", "list")
    assert sorted(machine["provider_id"] for machine in machines) == ["rack1-1", "rack1-2"]
    assert {machine["state"] for machine in machines} == {"needs_agent"}

    again = command_line.process("run", "provisioner", "--dry-run")
    assert (again.returncode, again.stdout) == (0, "")
    assert "there is nothing to do" in again.stderr


def test_a_dry_run_of_recovery_names_limits_and_who_waits(fleet: Fleet) -> None:
    """An operator looks here before rebooting machines; that nothing is due would be the wrong answer."""
    machines = [fleet.unhealthy_machine() for _ in range(10)]
    fleet.sql("UPDATE machine_provided SET provider = 'equinix'")
    command_line = CommandLine(fleet.settings, EQUINIX)
    dry = command_line.process("run", "recoverer", "--dry-run")
    _, *rows = dry.stdout.splitlines()
    assert dry.returncode == 0
    assert {row.split()[0] for row in rows} == {str(machine_id) for machine_id in machines}
    assert all("Recoverer" in row and "reboot, attempt 1 of 3" in row for row in rows)
    assert "recovery is limited: the whole provider: no machine reports, and 10 are dead" in dry.stderr
    document = json.loads(command_line.process("run", "recoverer", "--dry-run", "-o", "json").stdout)
    assert {work["machine_id"] for work in document["plan"]} == {str(machine_id) for machine_id in machines}
    assert document["plan"][0]["due_at"].endswith("Z")
    assert len(document["recovery_limited"]) == 1
    assert fleet.events(machines[0]) == []
    fleet.pass_time(-7200)
    nothing = command_line.process("run", "recoverer", "--dry-run")
    assert (nothing.returncode, nothing.stdout) == (0, "")
    assert "no machine is due" in nothing.stderr


def test_a_dry_run_of_the_provisioner_shows_drift(shepherdctl: Callable[[Listing], CommandLine], fleet: Fleet) -> None:
    ran = shepherdctl(RACK).process("run", "provisioner")
    assert ran.stdout.splitlines()[0].split() == ["created", "2"]
    assert "{" not in ran.stdout + ran.stderr, "people get a log in plain text"
    assert "machine provided (loop provisioner, provider static, " in ran.stderr
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


@pytest.mark.parametrize(
    ("environment", "words", "told"),
    [
        (EQUINIX, "recoverer --seconds 60", ["work on one machine may take 125 s"]),
        (
            {"SHEPHERD_PROVIDER": "static", "SHEPHERD_BMDB_PORT": "0"},
            "updater",
            ["SHEPHERD_BMDB_PORT", "SHEPHERD_PROVIDER_MACHINES"],
        ),
    ],
    ids=["too short for a machine", "all faults at once"],
)
def test_a_run_with_wrong_settings_is_refused(
    fleet: Fleet, environment: dict[str, str], words: str, told: list[str]
) -> None:
    ran = CommandLine(fleet.settings, environment).process("run", *words.split())
    assert (ran.returncode, ran.stdout) == (1, "")
    assert [each for each in told if each not in ran.stderr] == []


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ("DELETE FROM schema_migrations WHERE version = {0}", "run `shepherdctl db migrate`"),
        (
            "INSERT INTO schema_migrations VALUES ({0} + 1, 'later', '', {0} + 1)",
            "deploy the code that belongs to it",
        ),
    ],
)
def test_a_loop_does_not_run_against_another_schema(
    own_fleet: Fleet, tmp_path: Path, options: list[str], change: str, remedy: str
) -> None:
    """A plan opens no session, which would notice; and what it reads may mean something else there."""
    newest = migrations()[-1].version
    own_fleet.sql(change.format(newest))
    path = tmp_path / "machines.json"
    path.write_text("[]")
    environment = {"SHEPHERD_PROVIDER": "static", "SHEPHERD_PROVIDER_MACHINES": str(path)}
    ran = CommandLine(own_fleet.settings, environment).process("run", "provisioner", *options)
    assert ran.returncode == 1
    assert f"this code needs version {newest}: {remedy}" in ran.stderr.replace("\n", " ")
