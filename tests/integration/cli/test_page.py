"""docs/cli.md is what the commands are, and print."""

import json
import os
from pathlib import Path

import pytest

from shepherdctl.output.json_fields import FIELDS
from tests.support.bmdb.fleet import HOUR, Fleet
from tests.support.command_line import CommandLine
from tests.support.command_page import commands, page

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "cli.md"
IDS = [f"{start}0000-0000-4000-8000-000000000000" for start in ("3f2a", "81fe", "a04c", "c7d1")]
NAMES = ["rack1-1", "rack1-2", "rack1-3", "rack2-1"]
SETTINGS = "version = 1\n\n[provisioner]\nmax_machines = 12\n"
WHY = '--reason "cable replaced"'
EXAMPLES = {
    "db status": ("", 0),
    "settings show": ("settings.toml --changed", 0),
    "settings check": ("settings.toml", 0),
    "machine list": ("", 0),
    "machine show": ("rack1-2", 0),
    "machine why": ("rack1-2", 0),
    "machine wait": ("rack1-1 --for running", 0),
    "machine retry": (f"rack1-2 {WHY} --dry-run", 0),
    "machine unquarantine": (f"rack1-3 {WHY} --dry-run", 0),
    "machine install": ("rack1-1 --os-image registry.example/os@sha256:" + 64 * "0" + " --dry-run", 0),
    "machine label": ("rack1-1 role=db rack=r12 --owner ana --dry-run", 0),
    "machine pin-host-key": (
        "rack1-2 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAHWFzVOjVxDXhUsHlhyv8H7DMqYBXmRq2zMCQUbGDTN --dry-run",
        0,
    ),
    "machine forget-host-key": ("rack1-1 --dry-run", 0),
    "machine rebind": ("rack2-1 rack9-1 --dry-run", 0),
    "machine forget": ('rack2-1 --reason "it was sold" --dry-run', 0),
    "machine retire": ('rack1-3 --reason "its lease ends" --dry-run', 0),
    "status": ("", 3),
    "causes": ("", 0),
    "reconcile": ("", 3),
    "inventory": ("", 0),
    "history": ("rack1-2", 0),
    "logs": ("rack1-2", 0),
    "pause": ('--machine rack1-1 --reason "it moves" --for 2h --dry-run', 0),
    "pauses": ("", 0),
    "resume": ("5c00 --dry-run", 0),
    "run": ("updater --dry-run", 0),
}


@pytest.fixture
def shepherdctl(fleet: Fleet, tmp_path: Path) -> CommandLine:
    """Ages are nearly whole minutes, so that they stay the same for a while."""
    fleet.machines(1, started_ago=3 * HOUR, reported_ago=275, location="rack1")
    fleet.machines(1, location="rack1")
    fleet.machines(1, location="rack1")
    fleet.machines(1, started_ago=5 * HOUR, reported_ago=3 * HOUR - 600, location="rack2")
    tables = fleet.sql(
        "SELECT table_name FROM information_schema.columns WHERE column_name = 'machine_id' AND "
        "table_name IN (SELECT tablename FROM pg_tables WHERE schemaname = 'public')"
    )
    for number, (machine_id, name) in enumerate(zip(IDS, NAMES, strict=True), 1):
        fleet.sql(
            f"UPDATE machine_provided SET provider_id = '{name}', provider_ip_address = '192.0.2.{number}' "
            f"WHERE provider_id = 'machine-{number}'"
        )
        old = fleet.sql(f"SELECT machine_id FROM machine_provided WHERE provider_id = '{name}'")[0][0]
        fleet.sql("SET session_replication_role = replica")
        for (table,) in tables:
            fleet.sql(f"UPDATE {table} SET machine_id = '{machine_id}' WHERE machine_id = '{old}'")
        fleet.sql("SET session_replication_role = DEFAULT")
    fleet.sql("UPDATE machines SET machine_created_at = now() - interval '9 days'")
    fleet.sql(
        f"INSERT INTO machine_quarantine VALUES ('{IDS[2]}', now() - interval '3 h 50 min', "
        "'still unhealthy after reboot 3 times', 'steps-used-up')"
    )
    fleet.sql(
        "INSERT INTO work_backoff (machine_id, process, until, kind, cause, last_interval_seconds, fault) "
        f"VALUES ('{IDS[1]}', 'ShepherdAgentStart', now() + interval '1225 s', 'ssh-timed-out', 'no answer', "
        "1800, 'unreached')"
    )
    for event, seconds in (("Started", 635), ("Failed", 575)):
        fleet.sql(
            "INSERT INTO work_history (machine_id, process, event, kind, fault, failed_cause, timestamp) VALUES "
            f"('{IDS[1]}', 'ShepherdAgentStart', '{event}', nullif('ssh-timed-out', :no), "
            f"nullif('unreached', :fault), nullif('no answer', :cause), now() - interval '{seconds} s')",
            no="ssh-timed-out" if event == "Started" else "",
            fault="unreached" if event == "Started" else "",
            cause="no answer" if event == "Started" else "",
        )
    fleet.sql(
        f"INSERT INTO machine_host_key (machine_id, host_key, pinned_at) VALUES ('{IDS[0]}', 'ssh-ed25519 "
        "AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl', now() - interval '9 days')"
    )
    fleet.sql(
        "INSERT INTO pauses (pause_id, machine_id, owner, reason, created_at) VALUES "
        f"('5c000000-0000-4000-8000-000000000000', '{IDS[3]}', 'ana', 'mainboard is being replaced', "
        "now() - interval '6875 s')"
    )
    at = fleet.sql("SELECT now() - interval '10 min'")[0][0].isoformat()
    line = {"level": "WARNING", "message": "takeover failed", "timestamp": at, "machine_id": IDS[1]}
    Path(tmp_path / "functions.log").write_text(json.dumps({**line, "loop": "initializer"}) + "\n")
    listed = [{"ID": name, "Addr": f"192.0.2.{n}"} for n, name in ((1, "rack1-1"), (2, "rack1-2"), (3, "rack1-3"))]
    (tmp_path / "list.json").write_text(json.dumps([*listed, {"ID": "rack9-1", "Addr": "192.0.2.91"}]))
    (tmp_path / "settings.toml").write_text(SETTINGS)
    environment = {
        "LOGNAME": "ana",
        "SHEPHERD_LOGS": str(tmp_path / "functions.log"),
        "SHEPHERD_LOOP_MINUTES": "0,0,0,0",
        "SHEPHERD_PROVIDER": "static",
        "SHEPHERD_PROVIDER_MACHINES": str(tmp_path / "list.json"),
    }
    return CommandLine(fleet.settings, environment)


def test_the_page_of_commands_is_that_of_the_code(shepherdctl: CommandLine, tmp_path: Path) -> None:
    """It is generated: `make cli-page` writes it again."""
    written = page({"settings": CommandLine(None)}, shepherdctl, EXAMPLES, tmp_path)
    if os.environ.get("WRITE_PAGE"):
        PAGE.write_text(written)
    assert PAGE.read_text() == written


def test_every_command_that_prints_data_has_an_example() -> None:
    """But for those whose outcomes are those of another, and those that need AWS or a simulated fleet."""
    printing = {" ".join(words) for words, one in commands() if any("--output" in each.opts for each in one.params)}
    others = {"machine adopt", "machine reboot", "machine power-cycle", "machine release", "db migrate", "simulate"}
    assert printing - set(EXAMPLES) == others | {"ssh-key create", "ssh-key show", "ssh-key rotate", "ssh-key retire"}


def test_no_field_is_documented_that_no_code_has() -> None:
    assert list(FIELDS) == sorted(FIELDS)
    sources = [
        *ROOT.glob("shepherdctl/**/*.py"),
        *ROOT.glob("layers/shepherd_core/**/*.py"),
        *ROOT.glob("simulator/**/*.py"),
    ]
    text = "\n".join(file.read_text() for file in sources if file.name != "json_fields.py")
    words = set(__import__("re").findall(r"\w+", text))
    assert {name for name in FIELDS if name not in words} <= {"heartbeat_at", "watched_by"}
