import json
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from shepherd_core.bmdb.machines import lookup, pauses
from shepherd_core.bmdb.wire import server
from shepherd_core.bmdb.work import history, work
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.domain.errors.machine import SshTimedOut
from shepherd_core.domain.machine import Process
from shepherd_core.domain.pb.agent_pb2 import Node
from shepherd_core.domain.pb.callback_pb2 import AgentHardwareReport

from shepherdctl.descriptions.cures import CURES
from tests.support.bmdb.fleet import HOUR, Fleet, claimed
from tests.support.bmdb.work_ends import failed
from tests.support.command_line import CommandLine, without_styles

HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAHWFzVOjVxDXhUsHlhyv8H7DMqYBXmRq2zMCQUbGDTN"
# As `ssh-keygen -l` prints it for this key.
OTHER_HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
FINGERPRINT = "SHA256:WogFh3u2txlGBV34t39Vjh+f3dtjFtWtz9C3jLo75aM"


def worked_on(fleet: Fleet) -> UUID:
    machine_id = fleet.provided_machine()
    claimed(fleet.open_session(), Process.AGENT_START)
    return machine_id


@pytest.mark.parametrize(
    ("plant", "state", "words"),
    [
        (Fleet.intended_machine, "creating", "creating"),
        (Fleet.provided_machine, "needs_agent", "needs agent"),
        (Fleet.started_machine, "starting", r"starting, agent started \d s ago, no heartbeat yet"),
        (lambda fleet: fleet.started_machine(1000), "starting", "starting, agent started 17 min ago, no heartbeat yet"),
        (lambda fleet: fleet.started_machine(2000), "unhealthy", "unhealthy, no heartbeat for 33 min"),
        (
            lambda fleet: fleet.reporting_machine(50, started_ago=10),
            "starting",
            r"starting, agent started 1\d s ago, no heartbeat yet",
        ),
        (lambda fleet: fleet.install(fleet.started_machine(), 2), "installed", "installed"),
        (worked_on, "needs_agent", "needs agent, being worked on"),
    ],
)
def test_states_are_shown_in_words(fleet: Fleet, plant: Callable[[Fleet], UUID], state: str, words: str) -> None:
    machine_id = plant(fleet)
    shepherdctl = CommandLine(fleet.settings)
    assert re.search(rf"  {words}$", shepherdctl.read("machine", "list"), re.MULTILINE)
    assert re.search(rf"^state .*{words}$", shepherdctl.read("machine", "show", str(machine_id)), re.MULTILINE)
    assert [machine["state"] for machine in shepherdctl.load("machine", "list")] == [state]
    assert shepherdctl.load("machine", "show", str(machine_id))["state"] == state


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_terminal_shows_whole_provider_ids_in_its_width(fleet: Fleet, shepherdctl: CommandLine, width: int) -> None:
    """Less telling columns give way: an id in two lines cannot be copied."""
    machine_id, name = fleet.unhealthy_machine(), "b5b9cb59-6f2a-44b1-9e68"
    fleet.sql(
        "UPDATE machine_provided SET provider_id = :n, provider_ip_address = '2001:db8:1234:5678:9abc:def0:1234:5678', "
        "provider_location = 'Frankfurt am Main'",
        n=name,
    )
    shown = without_styles(shepherdctl.on_terminal(width, "machine", "list"))
    assert max(map(len, shown.splitlines())) <= width
    parts = (str(machine_id)[:8], str(machine_id), name, "2001:db8:1234:5678:9abc:def0:1234:5678")
    assert [part in shown for part in parts] == [True, False, True, width == 120]


def test_a_shortened_list_says_so_and_programs_get_every_machine(fleet: Fleet, shepherdctl: CommandLine) -> None:
    """Who counts in JSON what was cut counts wrongly; the worst of the whole fleet come first, whatever their ids."""
    fleet.sql("INSERT INTO machines SELECT gen_random_uuid(), now() FROM generate_series(1, 150)")
    fleet.sql("INSERT INTO machine_creation_intent SELECT machine_id, 'static', NULL, now() FROM machines")
    worst = fleet.locate(fleet.quarantine(fleet.unhealthy_machine()), "fra")
    fleet.machines(2, started_ago=HOUR, reported_ago=60)
    listed = shepherdctl.load("machine", "list")
    assert len(listed) == 153
    assert listed[0]["machine_id"] == str(worst) == shepherdctl.load("machine", "list", "--limit", "1")[0]["machine_id"]
    assert "not shown: 51 creating, 2 running" in shepherdctl("machine", "list").stderr
    some, everything = (shepherdctl("machine", "list", "--limit", limit) for limit in ("2", "153"))
    assert [line.rpartition("  ")[2].split()[0] for line in some.stdout.splitlines()[1:]] == ["quarantined", "creating"]
    assert some.stderr == "only 2 machines shown; not shown: 149 creating, 2 running: see --limit\n"
    assert (len(everything.stdout.splitlines()), everything.stderr) == (1 + 153, "")
    assert "not shown: more" in shepherdctl("machine", "list", "--limit", "2", "--not-paused").stderr
    columns = shepherdctl.read("machine", "list", "--columns", "location, provider-id", "--limit", "1")
    assert [line.split() for line in columns.splitlines()] == [["LOCATION", "PROVIDER", "ID"], ["fra", "machine-1"]]


def test_waiting_ends_with_the_state_or_with_the_time(fleet: Fleet, shepherdctl: CommandLine) -> None:
    machine_id = fleet.reporting_machine(60)
    there = shepherdctl("machine", "wait", "machine-1", "--for", "running")
    assert (there.exit_code, there.stdout) == (0, "")
    assert there.stderr.startswith(f"machine-1 ({machine_id}): running, ")
    late = shepherdctl("machine", "wait", "machine-1", "--for", "installed", "--timeout", "1s")
    assert (late.exit_code, late.stderr.splitlines()[-1]) == (3, "it was not installed within 1 s")


@pytest.mark.parametrize("command", ["machine list", "status", "inventory"])
def test_an_empty_fleet_is_reported_as_empty(fleet: Fleet, command: str) -> None:
    shepherdctl = CommandLine(fleet.settings, {"SHEPHERD_LOOP_MINUTES": "0,0,0,0"})
    result = shepherdctl(*command.split())
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "there are no machines\n")
    assert shepherdctl.load("machine", "list") == []


def test_a_machines_page_tells_what_happened_and_what_to_do(fleet: Fleet, tmp_path: Path) -> None:
    """Who is woken by a machine asks one command; without its log, the page says why."""
    machine_id = failed(fleet, SshTimedOut("no answer"), 600)
    pauses.pause(fleet.connection, owner="alice", reason="mainboard", machine_id=machine_id)
    fleet.plant("machine_host_key", machine_id=machine_id, host_key=HOST_KEY, pinned_at=timedelta(0))
    session = fleet.open_session()
    work.start_work(session, machine_id, "?")
    log = tmp_path / "functions.log"
    shepherdctl = CommandLine(fleet.settings, {"SHEPHERD_LOGS": str(log)})
    assert f"without its log: the log {log} cannot be read" in shepherdctl("machine", "show", "machine-1").stderr
    line = {"timestamp": server.now(fleet.connection).isoformat(), "machine_id": str(machine_id), "loop": "initializer"}
    both = [{**line, "level": level, "message": f"takeover {level}"} for level in ("INFO", "ERROR")]
    log.write_text("".join(json.dumps(each) + "\n" for each in both))
    found = shepherdctl("machine", "describe", "machine-1")
    for expected in (
        "Initializer, ends in 10 min: ssh-timed-out: no answer",
        "Recoverer, by test (a test), whose session expires in 60 min",
        "by alice: mainboard",
        f"ssh-ed25519 {FINGERPRINT}, trusted at first contact",
        "Initializer  no",
        "error: takeover ERROR",
        f"shepherdctl machine retry {machine_id} --reason '…'",
    ):
        assert expected in found.stdout
    assert "takeover INFO" not in found.stdout
    assert found.output.count(f"ssh-timed-out: {CURES['ssh-timed-out']}") == 1
    assert re.findall(r"Initializer  (Started|Failed) ", found.stdout) == ["Started", "Failed"]
    told, why = (shepherdctl.load("machine", command, "machine-1")["loops"] for command in ("show", "why"))
    assert told == why
    fleet.sql("UPDATE machine_host_key SET host_key = 'x AAAAA'")
    fleet.expire(session)
    shown = shepherdctl.read("machine", "show", "machine-1")
    assert "whose session has expired" in shown
    assert "x AAAAA" in shown, "one that is damaged is shown as it is"


def test_an_operator_pins_a_host_key_and_has_it_forgotten(fleet: Fleet, shepherdctl: CommandLine) -> None:
    """Who read it on the console need not trust the first contact; one pinned before is believed more than a paste."""
    machine_id = fleet.provided_machine()
    command = ("machine", "pin-host-key", str(machine_id), *HOST_KEY.split(), "root@machine", "--owner", "alice")
    assert "dry run: nothing was changed" in shepherdctl(*command, "--dry-run").stderr
    assert "host_key" not in fleet.facts(machine_id)
    assert f"ssh-ed25519 {FINGERPRINT}\n" in shepherdctl.read(*command, "--reason", "seen on its console")
    assert f"ssh-ed25519 {FINGERPRINT}, pinned by an operator" in shepherdctl.read("machine", "show", str(machine_id))
    (line,) = history.read_history(fleet.connection, machine_id)
    assert (line.process, line.event) == ("operator", "HostKeyPinned")
    assert line.failed_cause == f"alice: ssh-ed25519 {FINGERPRINT}: seen on its console"
    document = shepherdctl.load(*command)  # again: it is so already
    assert (document["dry_run"], document["host_key"], document["before"]) == (False, HOST_KEY, HOST_KEY)
    other = ("machine", "pin-host-key", str(machine_id), OTHER_HOST_KEY)
    for more in ((), ("--dry-run",)):
        refused = shepherdctl.told(*other, *more, status=1)
        assert f"has the pinned host key ssh-ed25519 {FINGERPRINT}: use --replace" in refused
    shepherdctl.read(*other, "--replace", "--dry-run")
    assert lookup.show_machine(fleet.connection, machine_id).host_key == HOST_KEY
    assert f"ssh-ed25519 {FINGERPRINT}" in shepherdctl.read(*other, "--replace", "--yes")
    shown = lookup.show_machine(fleet.connection, machine_id)
    assert (shown.host_key, shown.host_key_origin) == (OTHER_HOST_KEY, "Operator")
    forget = ("machine", "forget-host-key", str(machine_id), "--yes")
    assert "ssh-ed25519 SHA256:" in shepherdctl.read(*forget)
    assert "host_key" not in fleet.facts(machine_id)
    assert f"no host key was pinned for machine machine-1 ({machine_id})" in shepherdctl.told(*forget)
    document = shepherdctl.load(*forget)
    assert (document["provider_id"], document["forgotten"], document["host_key"]) == ("machine-1", False, None)


def test_failures_with_the_same_cause_are_folded_into_the_last(fleet: Fleet, shepherdctl: CommandLine) -> None:
    """Sixteen times the same cause hides the line that differs; what to do about it stands in the documentation."""
    machine_id = fleet.provided_machine()
    causes = [("ssh-refused", "nothing listens")] * 3 + [("ssh-timed-out", "no answer")]
    start = {"machine_id": machine_id, "process": "ShepherdAgentStart"}
    for hour, (kind, cause) in enumerate(causes):
        fleet.plant("work_history", **start, event="Started", timestamp=f"2026-01-01T0{hour}:00:00Z")
        failed_at = f"2026-01-01T0{hour}:01:00Z"
        fleet.plant("work_history", **start, event="Failed", timestamp=failed_at, kind=kind, failed_cause=cause)
    result = shepherdctl("history", str(machine_id))
    assert [line.split()[6] for line in result.stdout.splitlines()[1:]] == ["Started", "Failed"] * 2
    assert "2026-01-01 02:01:00+0000  Initializer  Failed" in result.stdout
    assert "ssh-refused: nothing listens (3 times since 2026-01-01 00:01:00+0000)" in result.stdout
    assert result.stderr.splitlines() == [
        f"machine machine-1 ({machine_id})",
        f"ssh-refused: {CURES['ssh-refused']} (docs/failures#ssh-refused)",
        f"ssh-timed-out: {CURES['ssh-timed-out']} (docs/failures#ssh-timed-out)",
    ]
    events = shepherdctl.load("history", str(machine_id))
    assert [(event["kind"], event["cause"]) for event in events if event["event"] == "Failed"] == causes
    newest = shepherdctl("history", str(machine_id), "--limit", "1")
    assert (newest.stdout.count("Failed"), newest.stdout.count("Started")) == (1, 0)
    assert "only the last 1 event shown" in newest.stderr
    gone = uuid4()
    fleet.plant("work_history", machine_id=gone, process="ShepherdRecovery", event="Expired")
    assert [event["event"] for event in shepherdctl.load("history", str(gone))] == ["Expired"]
    assert "nothing has been done" in shepherdctl.told("history", str(fleet.provided_machine()))


def test_text_of_machines_cannot_control_the_terminal(fleet: Fleet, shepherdctl: CommandLine) -> None:
    """A cause holds what an agent or an SSH server sent: it could rewrite the screen, or the title, or worse."""
    evil = "said \x1b]0;owned\x07 and\r\n[red]more[/red]\x9b31m"
    machine_id = failed(fleet, ShepherdError(evil))
    report = AgentHardwareReport(report=Node(product=evil), warning=[evil]).SerializeToString()
    fleet.plant("machine_hardware_report", machine_id=machine_id, hardware_report_raw=report)
    for command in ("history", "machine show"):
        piped = shepherdctl.read(*command.split(), str(machine_id))
        assert "said \\x1b]0;owned\\x07 and\\r [red]more[/red]\\x9b31m" in piped
        shown = without_styles(shepherdctl.on_terminal(80, *command.split(), str(machine_id))).replace("\r\n", "")
        assert not re.search("[\x07\r\x1b\x9b]", piped + shown)
        assert "[red]more[/red]" in shown
