"""Running a loop from the command line, in a process of its own."""

import json
from pathlib import Path

import pytest
from shepherd_core.bmdb.schema.migrate import migrations

from tests.support.bmdb.fleet import Fleet
from tests.support.command_line import CommandLine

RACK = [
    {"ID": "rack1-1", "Addr": "192.0.2.11", "Location": "Amsterdam"},
    {"ID": "rack1-2", "Addr": "192.0.2.12"},
]
STATIC = {"SHEPHERD_PROVIDER": "static", "SHEPHERD_CREATION_SECONDS": "0", "SHEPHERD_DRIFT_LIMIT": "0"}
EQUINIX = {
    "SHEPHERD_PROVIDER": "equinix",
    "SHEPHERD_PROVIDER_PROJECT": "0b9d4a3e",
    "SHEPHERD_PROVIDER_CREDENTIAL_PARAMETER": "/nobody/reads/it",
    "SHEPHERD_PROVIDER_FLEET": "ours-",
    "SHEPHERD_PROVIDER_KEY_NAME": "ours",
}


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    path = tmp_path / "machines.json"
    path.write_text(json.dumps(RACK), encoding="utf-8")
    return path


@pytest.fixture
def shepherdctl(fleet: Fleet, listed: Path) -> CommandLine:
    return CommandLine(fleet.settings, {**STATIC, "SHEPHERD_PROVIDER_MACHINES": str(listed)})


def run(shepherdctl: CommandLine, *words: str, status: int = 0) -> tuple[list[str], str]:
    """Return the lines of data that it prints, and its messages."""
    ended = shepherdctl.process("run", *words)
    assert ended.returncode == status, ended.stderr
    return ended.stdout.splitlines(), ended.stderr


def test_a_loop_is_run_dry_then_run_then_seen(shepherdctl: CommandLine) -> None:
    (titles, *steps), _ = run(shepherdctl, "provisioner", "--dry-run")
    assert titles.split("  ")[0] == "STEP"
    assert [step.split() for step in steps] == [
        ["create", "rack1-1", "192.0.2.11", "Amsterdam"],
        ["create", "rack1-2", "192.0.2.12"],
    ]
    printed, _ = run(shepherdctl, "provisioner", "--dry-run", "-o", "json")
    document = json.loads("".join(printed))
    assert (document["dry_run"], document["plan"]["set_aside"], document["plan"]["managed"]) == (True, [], 0)
    assert [step["capacity"]["provider_id"] for step in document["plan"]["create"]] == ["rack1-1", "rack1-2"]
    assert shepherdctl.load("machine", "list") == []

    shepherdctl.read("pause", "--all", "--reason", "network maintenance")
    nothing, paused = run(shepherdctl, "provisioner")
    assert (nothing, "network maintenance" in paused, "nothing was done" in paused) == ([], True, True)
    shepherdctl.read("resume", "--all")

    printed, log = run(shepherdctl, "provisioner", "-o", "json")
    document = json.loads("".join(printed))  # logs and metrics do not mix with data
    assert (document["loop"], document["provider"], document["dry_run"]) == ("provisioner", "static", False)
    assert (document["counts"]["created"], document["counts"]["drifted"]) == (2, 0)
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    made = [line["provider_id"] for line in lines if line.get("message") == "machine provided"]
    assert made == ["rack1-1", "rack1-2"]
    assert any(line.get("message") == "counts" for line in lines)
    machines = shepherdctl.load("machine", "list")
    assert {machine["provider_id"]: machine["state"] for machine in machines} == dict.fromkeys(made, "needs_agent")
    nothing, said = run(shepherdctl, "provisioner", "--dry-run")
    assert (nothing, "there is nothing to do" in said) == ([], True)


def test_a_dry_run_of_recovery_names_limits_and_who_waits(fleet: Fleet) -> None:
    """An operator looks here before rebooting machines; that nothing is due would be the wrong answer."""
    machines = [fleet.unhealthy_machine() for _ in range(10)]
    fleet.sql("UPDATE machine_provided SET provider = 'equinix'")
    shepherdctl = CommandLine(fleet.settings, EQUINIX)
    (_, *rows), said = run(shepherdctl, "recoverer", "--dry-run")
    assert {row.split()[0] for row in rows} == {str(machine_id) for machine_id in machines}
    assert all("Recoverer" in row and "reboot, attempt 1 of 3" in row for row in rows)
    assert "recovery is limited: the whole provider: no machine reports, and 10 are dead" in said
    printed, _ = run(shepherdctl, "recoverer", "--dry-run", "-o", "json")
    document = json.loads("".join(printed))
    assert {work["machine_id"] for work in document["plan"]} == {str(machine_id) for machine_id in machines}
    assert document["plan"][0]["due_at"].endswith("Z")
    assert len(document["recovery_limited"]) == 1
    assert fleet.events(machines[0]) == []
    fleet.pass_time(-7200)
    nothing, said = run(shepherdctl, "recoverer", "--dry-run")
    assert (nothing, "no machine is due" in said) == ([], True)


def test_a_dry_run_of_the_provisioner_shows_drift(shepherdctl: CommandLine, listed: Path, fleet: Fleet) -> None:
    printed, log = run(shepherdctl, "provisioner")
    assert printed[0].split() == ["created", "2"]
    assert "{" not in "".join([*printed, log]), "people get a log in plain text"
    assert "machine provided (loop provisioner, provider static, " in log
    fleet.pass_time(3600)
    listed.write_text(json.dumps(RACK[:1]))
    shepherdctl.environment["SHEPHERD_DRIFT_LIMIT"] = "3"
    (_, step), said = run(shepherdctl, "provisioner", "--dry-run")
    assert (step.startswith("set aside  rack1-2"), "drift: rack1-2" in said) == (True, True)
    run(shepherdctl, "provisioner")
    listed.write_text(json.dumps(RACK))
    (_, step), _ = run(shepherdctl, "provisioner", "--dry-run")
    assert step.startswith("take back  rack1-2")


@pytest.mark.parametrize(
    ("environment", "words", "told"),
    [
        (EQUINIX, "recoverer --seconds 60", {"work on one machine may take 125 s"}),
        (STATIC | {"SHEPHERD_BMDB_PORT": "0"}, "updater", {"SHEPHERD_BMDB_PORT", "SHEPHERD_PROVIDER_MACHINES"}),
    ],
    ids=["too short for a machine", "all faults at once"],
)
def test_a_run_with_wrong_settings_is_refused(
    fleet: Fleet, environment: dict[str, str], words: str, told: set[str]
) -> None:
    nothing, said = run(CommandLine(fleet.settings, environment), *words.split(), status=1)
    assert (nothing, {each for each in told if each not in said}) == ([], set())


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ("DELETE FROM schema_migrations WHERE version = {0}", "run `shepherdctl db migrate`"),
        ("INSERT INTO schema_migrations VALUES ({0} + 1, '', '', {0} + 1)", "deploy the code that belongs to it"),
    ],
)
def test_a_loop_does_not_run_against_another_schema(own_fleet: Fleet, listed: Path, change: str, remedy: str) -> None:
    """A plan opens no session, which would notice; and what it reads may mean something else there."""
    newest = migrations()[-1].version
    own_fleet.sql(change.format(newest))
    shepherdctl = CommandLine(own_fleet.settings, {**STATIC, "SHEPHERD_PROVIDER_MACHINES": str(listed)})
    for options in ((), ("--dry-run",)):
        _, said = run(shepherdctl, "provisioner", *options, status=1)
        assert f"this code needs version {newest}: {remedy}" in said.replace("\n", " ")
