"""docs/cli.md is what the commands are, and print."""

import json
import os
import re
import shlex
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from shepherd_core.domain.pb.callback_pb2 import HeartbeatRequest
from typer.core import TyperArgument, TyperOption

from shepherdctl.options import PROVIDERS
from shepherdctl.output.json_fields import FIELDS
from shepherdctl.people import Person
from tests.support.bmdb.fleet import HOUR, Fleet
from tests.support.command_line import CommandLine, commands, without_styles

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "cli.md"
IDS = [f"{start}0000-0000-4000-8000-000000000000" for start in ("3f2a", "81fe", "a04c", "c7d1")]
RECORDED = (ROOT / "tests/data/wire/cloud.bmaas.server.api.HeartbeatRequest.bin").read_bytes()
HARDWARE = HeartbeatRequest.FromString(RECORDED).hardware_report.SerializeToString()
NAMES = ["rack1-1", "rack1-2", "rack1-3", "rack2-1"]
HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
OTHER_HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAHWFzVOjVxDXhUsHlhyv8H7DMqYBXmRq2zMCQUbGDTN"
SETTINGS = "version = 1\n\n[provisioner]\nmax_machines = 12\n"
WHY = '--reason "cable replaced"'
EXAMPLES = {
    "db status": "",
    "settings show": "settings.toml --changed",
    "settings check": "settings.toml",
    "machine list": "",
    "machine show": "rack1-2",
    "machine why": "rack1-2",
    "machine wait": "rack1-1 --for running",
    "machine retry": f"rack1-2 {WHY} --dry-run",
    "machine unquarantine": f"rack1-3 {WHY} --dry-run",
    "machine install": f"rack1-1 --os-image registry.example/os@sha256:{64 * '0'} --dry-run",
    "machine label": "rack1-1 role=db rack=r12 --owner ana --dry-run",
    "machine pin-host-key": f"rack1-2 {OTHER_HOST_KEY} --dry-run",
    "machine forget-host-key": "rack1-1 --dry-run",
    "machine rebind": "rack2-1 rack9-1 --dry-run",
    "machine forget": 'rack2-1 --reason "it was sold" --dry-run',
    "machine retire": 'rack1-3 --reason "its lease ends" --dry-run',
    "status": "",
    "causes": "",
    "reconcile": "",
    "inventory": "",
    "history": "rack1-2",
    "logs": "rack1-2",
    "pause": '--machine rack1-1 --reason "it moves" --for 2h --dry-run',
    "pauses": "",
    "resume": "5c00 --dry-run",
    "run": "updater --dry-run",
}
LEFT_TO_DO = {"status", "reconcile"}
"""Their exit status is 3."""


# --- the page ---

_WIDTH = 118
_SHARED = 3
"""An option of more commands than this is described once."""
_TIMES = re.compile(r"\d{4}-\d\d-\d\d([T ])\d\d:\d\d:\d\d(?:\.\d+)?(Z|\+00:00)?")
_HEAD = """# The command line

`make cli-page` writes this page from the code and from what the commands print; a test fails when it is out of date.
The words are those of the [glossary](glossary.md). The [how-to](how-to/README.md) pages begin with a symptom or a wish.

## For programs

With `-o json`, a command prints one document on standard output: an object that begins with its `version` and has each
list under the name of its things, such as `machines`. Within a version, fields are only added. A field means the same
in all documents: see [the fields](#the-fields). Here, documents are on few lines, with the first entry of each list.

For whom a command is: [people](how-to/people.md) says what makes you a reader, an operator or an administrator.

Exit status: 0 success, 1 failure, 2 wrong usage, 3 something is left to do or to look at (`status`, `reconcile`,
`machine retire`, `machine wait`).

On a terminal, a pager shows what has more lines than it: that of `PAGER`, else `less`; `PAGER=cat` prints all. In a
pipe or a file every record is one line, with whole ids.

## Options of several commands

"""


def page(usual: CommandLine, folder: Path, keep_ages: Callable[[], None]) -> str:
    """Return the page. Files are in *folder*; *keep_ages* is called before each example."""
    found = list(commands())
    options = [option for _, command in found for option in _options(command)]
    counts = Counter(option.opts[0] for option in options)
    shared = {option.opts[0]: option for option in options if counts[option.opts[0]] > _SHARED}
    parts = [_HEAD, *(_option(shared[name], "") for name in sorted(shared)), "\n"]
    for words, command in found:
        name = " ".join(words)
        about, _, _ = str(command.help).partition("Examples:")
        own = [_option(option, name) for option in _options(command) if option.opts[0] not in shared]
        keep_ages()
        shown = _shown(CommandLine(None) if words[0] == "settings" else usual, name, folder)
        synopsis = _synopsis(name, command)
        whose = f" For {command.person}{'' if command.person is Person.ANYBODY else 's'}."
        parts += [f"## {name}\n`{synopsis}`: {' '.join(about.split())}{whose}\n", *own, shown, "\n"]
    parts.append("## The fields\n\nA field without a value is `null`. Ids are texts, times ISO 8601 in UTC.\n\n")
    rows = (f"| `{name}` | {' | '.join(text.partition(': ')[::2])} |\n" for name, text in FIELDS.items())
    text = "".join([*parts, "| field | type | meaning |\n|---|---|---|\n", *rows])
    return text.replace(f"<{'|'.join(PROVIDERS)}>", "PROVIDER")


def _options(command: Any) -> list[Any]:
    return [one for one in command.params if isinstance(one, TyperOption) and one.opts[0] not in ("--help", "-h")]


def _option(option: Any, command: str) -> str:
    names = " / ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    value = "" if option.is_flag or not option.metavar else f" `{option.metavar}`"
    about = option.help if command != "" or option.opts[0] != "--output" else "A table, or one JSON document."
    return f"- {names}{value}: {about}\n"


def _synopsis(name: str, command: Any) -> str:
    arguments = [one for one in command.params if isinstance(one, TyperArgument)]
    named = [one.metavar if one.required else f"[{str(one.metavar).strip('[]')}]" for one in arguments]
    needed = [one for one in _options(command) if one.required]
    named += [one.opts[0] if one.is_flag else f"{one.opts[0]} {one.metavar or 'VALUE'}" for one in needed]
    optional = any(not one.required for one in _options(command))
    return " ".join(["shepherdctl", name, *map(str, named), *(["[OPTIONS]"] if optional else [])])


def _shown(command_line: CommandLine, name: str, folder: Path) -> str:
    if name not in EXAMPLES:
        return ""
    arguments, status = EXAMPLES[name], 3 * (name in LEFT_TO_DO)
    given = (str(folder / word) if word.endswith(".toml") else word for word in shlex.split(arguments))
    words = (*name.split(), *given)
    table = without_styles(command_line.on_terminal(_WIDTH, *words, status=status)).replace("\r", "")
    typed = f"shepherdctl {name} {arguments}".rstrip()
    lines = [f"$ {typed}", *(line.rstrip() for line in table.splitlines())]
    if any(one.opts[0] == "--output" for one in _options(dict(commands())[tuple(name.split())])):
        document = json.loads(command_line.read(*words, "-o", "json", status=status))
        lines += [f"$ {typed} -o json", *_packed(_first(document))]
    text = "\n".join(["```", *lines, "```", ""])
    return _TIMES.sub(lambda found: f"2026-01-01{found[1]}00:00:00" + "Z" * found[0].endswith("Z"), text)


def _packed(document: Mapping[str, Any]) -> list[str]:
    """Return *document* on few lines, which end between its fields."""
    lines = ["{"]
    for name, value in document.items():
        field = f"{json.dumps(name)}: {json.dumps(value)}, "
        if len(lines[-1]) > 1 and len(lines[-1]) + len(field) > _WIDTH:
            lines.append(" ")
        lines[-1] += field
    return [*(line.rstrip() for line in lines[:-1]), lines[-1].removesuffix(", ") + "}"]


def _first(value: Any) -> Any:
    """Return *value* with the first of each list."""
    if isinstance(value, list):
        return [_first(each) for each in value[:1]]
    return {name: _first(part) for name, part in value.items()} if isinstance(value, dict) else value


# --- what it shows ---


def ago(seconds: float = 0, **more: float) -> timedelta:
    return -timedelta(seconds=seconds, **more)


@pytest.fixture
def shepherdctl(fleet: Fleet, tmp_path: Path) -> CommandLine:
    """Ages are nearly whole minutes, so that they stay the same while a command runs."""
    fleet.watch("static")
    for number, (machine_id, name) in enumerate(zip(IDS, NAMES, strict=True), 1):
        fleet.plant("machines", machine_id=machine_id, machine_created_at=ago(days=9))
        listed = {"provider_ip_address": f"192.0.2.{number}", "provider_location": name[:5]}
        fleet.plant("machine_provided", machine_id=machine_id, provider="static", provider_id=name, **listed)
    for machine_id, started, reported in ((IDS[0], 3 * HOUR, 275), (IDS[3], 5 * HOUR, 3 * HOUR - 600)):
        key = {"agent_started_at": ago(started), "agent_public_key": bytes([0x5E] * 32)}
        fleet.plant("machine_agent_started", machine_id=machine_id, **key)
        fleet.plant("machine_agent_heartbeat", machine_id=machine_id, agent_heartbeat_at=ago(reported))
    given_up = {"cause": "still unhealthy after reboot 3 times", "kind": "steps-used-up"}
    fleet.plant("machine_quarantine", machine_id=IDS[2], quarantined_at=ago(minutes=230), **given_up)
    summed = {"hardware_threads": 65, "memory_bytes": 1 << 40, "disks": 1, "disk_bytes": 12000138625024}
    report = {"hardware_report_raw": HARDWARE, "reported_at": ago(1535), **summed}
    fleet.plant("machine_hardware_report", machine_id=IDS[1], **report)
    start = {"machine_id": IDS[1], "process": "ShepherdAgentStart"}
    fault = {"kind": "ssh-timed-out", "fault": "unreached"}
    waits = {"until": ago(-1225), "cause": "no answer", "last_interval_seconds": 1800}
    fleet.plant("work_backoff", **start, **fault, **waits)
    fleet.plant("work_history", **start, event="Started", timestamp=ago(635))
    fleet.plant("work_history", **start, **fault, event="Failed", failed_cause="no answer", timestamp=ago(575))
    fleet.plant("provisioner_lock", provider="static", waiting=20, max_machines=50, waiting_seen_at=ago(215))
    limited = {"per_hour": 1, "brake": "share", "reason": "2 of 4 machines are dead"}
    fleet.plant("recovery_budgets", provider="static", location="", began_at=ago(5675), **limited)
    by = {"provider": "static", "runtime_info": "", "settings_hash": "5e771465", "code_version": "c0de"}
    for loop, seconds, outcome, told in (
        ("initializer", 275, "Succeeded", {"counts": '{"claimed": 3, "finished": 2, "oldest_due_age_seconds": 700.5}'}),
        ("recoverer", 335, "Failed", {"counts": "{}", "kind": "provider-unavailable", "cause": "it rains"}),
        ("updater", 395, "Expired", {"counts": "{}"}),
    ):
        times = {"began_at": ago(20 + seconds), "ended_at": ago(seconds)}
        fleet.plant("ticks", session_id=uuid4(), loop=loop, outcome=outcome, **times, **by, **told)
    fleet.plant("machine_host_key", machine_id=IDS[0], host_key=HOST_KEY, pinned_at=ago(days=9))
    paused = {"owner": "ana", "reason": "mainboard is being replaced", "created_at": ago(6875)}
    fleet.plant("pauses", pause_id="5c000000-0000-4000-8000-000000000000", machine_id=IDS[3], **paused)
    at = fleet.sql("SELECT now() - interval '10 min'")[0][0].isoformat()
    line = {"level": "WARNING", "message": "takeover failed", "timestamp": at, "machine_id": IDS[1]}
    (tmp_path / "functions.log").write_text(json.dumps({**line, "loop": "initializer"}) + "\n")
    numbers = {"rack1-1": 1, "rack1-2": 2, "rack1-3": 3, "rack9-1": 91}
    entries = [{"ID": name, "Addr": f"192.0.2.{number}"} for name, number in numbers.items()]
    (tmp_path / "list.json").write_text(json.dumps(entries))
    (tmp_path / "settings.toml").write_text(SETTINGS)
    environment = {
        "LOGNAME": "ana",
        "SHEPHERD_LOGS": str(tmp_path / "functions.log"),
        "SHEPHERD_LOOP_MINUTES": "0,0,0,0",
        "SHEPHERD_PROVIDER": "static",
        "SHEPHERD_PROVIDER_MACHINES": str(tmp_path / "list.json"),
    }
    return CommandLine(fleet.settings, environment)


def test_the_page_of_commands_is_that_of_the_code(fleet: Fleet, shepherdctl: CommandLine, tmp_path: Path) -> None:
    """It is generated: `make cli-page` writes it again."""
    planted, kept = time.monotonic(), 0.0

    def keep_ages() -> None:
        nonlocal kept
        passed = time.monotonic() - planted
        fleet.pass_time(kept - passed)
        kept = passed

    written = page(shepherdctl, tmp_path, keep_ages)
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
    folders = ("shepherdctl", "layers/shepherd_core", "simulator")
    sources = (file for folder in folders for file in (ROOT / folder).rglob("*.py") if file.name != "json_fields.py")
    text = "\n".join(file.read_text() for file in sources)
    words = set(re.findall(r"\w+", text))
    assert {name for name in FIELDS if name not in words} <= {"heartbeat_at", "watched_by"}
