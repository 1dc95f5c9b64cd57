import csv
import io
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from shepherd_core.bmdb.connection import Connection
from shepherd_core.bmdb.session import Session
from shepherd_core.bmdb.work import work
from shepherd_core.bmdb.work.ticks import Tick, TickEnd, TickHead, last_ticks
from shepherd_core.domain.clock import SystemClock
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.domain.errors.machine import SshTimedOut
from shepherd_core.domain.machine import Process

from shepherdctl import fleet_status
from shepherdctl.descriptions.cures import CURES
from tests.conftest import ManualClock
from tests.support.bmdb.fleet import HOUR, PROVIDER, Fleet, claimed
from tests.support.bmdb.work_ends import ticked
from tests.support.command_line import CommandLine

NO_LOOPS = {"SHEPHERD_LOOP_MINUTES": "0,0,0,0"}
BUDGET = "INSERT INTO recovery_budgets (provider, location, per_hour, brake, reason, began_at) "


@pytest.fixture
def mixed(fleet: Fleet) -> CommandLine:
    for _ in range(2):
        fleet.provided_machine()
        fleet.started_machine(60)
        fleet.reporting_machine(60)
        fleet.unhealthy_machine(2 * HOUR)
        fleet.install(fleet.started_machine(HOUR))
    return CommandLine(fleet.settings, NO_LOOPS)


def test_status_counts_who_is_paused(mixed: CommandLine, fleet: Fleet) -> None:
    """A pause of everything that the counts left out looked like no pause at all."""
    fleet.sql("INSERT INTO machine_creation_intent VALUES (:id, 'equinix', NULL, now())", id=fleet.bare_machine())
    for words, paused in {
        "--all": 11,
        "--provider static": 10,
        "--loop recoverer": 6,
        "--loop initializer --provider static": 2,
        "--machine machine-1": 1,
        "--machine machine-1 --loop recoverer": 0,
    }.items():
        mixed.read("pause", *words.split(), "--reason", "maintenance")
        assert mixed("status").stderr == "1 pause in force: see shepherdctl pauses\n"
        listed = Counter(each["state"] for each in mixed.load("machine", "list") if each["paused"])
        counted = {each["state"]: each["paused"] for each in mixed.load("status")["machines"] if each["paused"]}
        assert (counted, listed.total()) == (listed, paused), words
        fleet.sql("DELETE FROM pauses")


def test_no_tick_ends_after_the_status_was_read(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop may end while it is read: ``status`` showed a last tick ``in 0 s``."""

    def read_late(connection: Connection) -> list[Tick]:
        head = TickHead("updater", PROVIDER, "5e771465", "c0de")
        Session.open(connection, SystemClock(), head, "1", 60).close(end=TickEnd({}))
        return last_ticks(connection)

    monkeypatch.setattr("shepherdctl.fleet_status.ticks.last_ticks", read_late)
    status = fleet_status.read(fleet.connection)
    assert [tick.ended_at <= status.now for tick in status.ticks] == [True]


def test_what_needs_attention_comes_first_in_every_form(fleet: Fleet) -> None:
    """A script need not understand tables: the exit status says whether somebody must look."""
    shepherdctl = CommandLine(fleet.settings, {"SHEPHERD_LOOP_MINUTES": "0,10,1,1"})
    assert "no loop has run in the last two weeks" in shepherdctl.read("status", status=3)
    fleet.quarantine(fleet.locate(fleet.unhealthy_machine(), "ams"))
    fleet.sql(f"{BUDGET} VALUES ('static', 'ams', 1, 'share', 'half are dead', now())")
    ticked(fleet, "updater", ShepherdError("no luck"))
    names = ["recovery-limited", "loop-late", "loop-fails", "quarantined"]
    for command in ("status", "causes"):
        status = 3 if command == "status" else 0
        told = shepherdctl.load(command, status=status)["conditions"]
        assert [one["name"] for one in told] == names
        assert next((one["provider"], one["location"], one["severity"]) for one in told) == ("static", "ams", "urgent")
        result = shepherdctl(command)
        assert result.exit_code == status
        first, *lines = [" ".join(line.split()) for line in result.stdout.splitlines()[:5]]
        assert (first, [line.split()[0] for line in lines]) == ("CONDITION SINCE WHAT IS WRONG", names)
        assert f"recovery-limited: {told[0]['cure']}" in result.stderr
    metrics = shepherdctl.read("status", "-o", "prometheus", status=3).splitlines()
    sample = '{name="quarantined",provider="static",location="",loop="",severity="warning"} 1'
    assert f"shepherd_condition{sample}" in metrics
    assert metrics[-1] == "shepherd_attention 4"
    fleet.locate(fleet.provided_machine(), "fra")
    assert [one["name"] for one in shepherdctl.load("causes", "--location", "fra")["conditions"]] == names[1:]


@pytest.mark.parametrize(
    ("command", "shown", "then"),
    [
        (
            "status",
            ["recovery-limited", "quarantined ", "and 70 more of recovery-limited", " more lines; "],
            "2 machines of static in quarantine",
        ),
        ("machine list", ["quarantined for ", " unhealthy: see --limit"], "machine-77"),
    ],
)
def test_what_is_watched_fits_the_terminal_with_the_worst_first(
    fleet: Fleet, command: str, shown: list[str], then: str
) -> None:
    """The terminal has 50 lines and scrolls away the first of more; it is shown again until it is interrupted."""
    for number in range(75):
        fleet.locate(fleet.unhealthy_machine(), f"rack-{number}")
    fleet.sql(BUDGET + "SELECT 'static', 'rack-' || n, 1, 'share', 'dead', now() FROM generate_series(0, 74) AS n")
    fleet.quarantine(fleet.unhealthy_machine())
    shepherdctl = CommandLine(fleet.settings, NO_LOOPS)
    end = "updated every 1 s"

    def watched() -> Iterator[tuple[str, str]]:
        yield end, ""
        fleet.quarantine(fleet.unhealthy_machine())
        yield then, "\x03"

    words = (*command.split(), "--watch", "1s")
    screens = shepherdctl.on_terminal(100, *words, typed=watched(), status=130, everything=True)
    screen = screens.partition(end)[0].rpartition("\x1b[2J")[2]
    assert screen.count("\n") < 50
    assert [each for each in shown if each not in screen] == []


@pytest.mark.parametrize("seconds", [2 * HOUR, -2 * HOUR])
def test_a_clock_that_jumped_is_told(fleet: Fleet, clock: ManualClock, seconds: float) -> None:
    """The last checkpoint of a server whose clock did not lies in the past."""
    fleet.sql("CHECKPOINT")
    assert -HOUR < fleet_status.read(fleet.connection).checkpoint_ahead_seconds <= 0
    fleet.move_clock(seconds)
    assert fleet_status.read(fleet.connection).clock_ahead_seconds == pytest.approx(seconds, abs=60)


def test_a_read_only_database_is_told_first(own_fleet: Fleet) -> None:
    database = own_fleet.settings.bmdb_name
    own_fleet.sql(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    told = CommandLine(own_fleet.settings)("status")
    own_fleet.sql(f"ALTER DATABASE {database} RESET default_transaction_read_only")
    assert told.stdout.splitlines()[1].startswith("database-read-only  the database takes no writes")


def test_a_disk_without_room_is_found_when_no_loop_reports(fleet: Fleet) -> None:
    """A loop that finds it cannot record a tick that says so."""
    fleet.machines(1, started_ago=HOUR, reported_ago=60)
    ticked(fleet, "initializer")
    shepherdctl = CommandLine(fleet.settings, {"SHEPHERD_LOOP_MINUTES": "0,1,0,0"})
    shepherdctl.read("status")
    with full_disk(fleet):
        shepherdctl.read("status")
        fleet.pass_time(121)
        told = shepherdctl("status")
    assert "the database takes no writes: its disk is full" in told.stdout
    shepherdctl.read("status")


@contextmanager
def full_disk(fleet: Fleet) -> Iterator[None]:
    """Within the block, let no server process of the database write a temporary file: all lead to /dev/full."""
    files = Path(fleet.sql("SHOW data_directory")[0][0]) / "base" / "pgsql_tmp"
    processes = fleet.sql("SELECT pid FROM pg_stat_activity WHERE datname = current_database()")
    names = [files / f"pgsql_tmp{pid}.{number}" for (pid,) in processes for number in range(50)]
    if not files.exists():
        files.mkdir()
        shutil.chown(files, files.parent.stat().st_uid, files.parent.stat().st_gid)
    for name in names:
        name.symlink_to("/dev/full")
    try:
        yield
    finally:
        for name in names:
            name.unlink(missing_ok=True)


def test_the_status_is_told_to_prometheus(mixed: CommandLine, fleet: Fleet) -> None:
    """In its text format; what a provider names cannot break a line."""
    ticked(fleet, "updater", ShepherdError("no luck"))
    fleet.pass_time(60)
    fleet.sql(f"{BUDGET} VALUES ('ec2', :location, 1, 'share', 'why', now())", location='a\\"\n\x1b')
    fleet.plant("provisioner_lock", provider="ec2", waiting=7, max_machines=5, waiting_seen_at=timedelta(0))
    place = 'provider="ec2",location="a\\\\\\"\\n\\\\x1b"'
    fleet.provided_machine("equinix")
    shown = " ".join(mixed("status").output.split())
    for row in ("equinix 1 1", "static 10 2 2 2 2 2", "7 ec2 the limit of 5 machines is reached"):
        assert f" {row} " in shown
    assert [words for words in ("WORST LOCATIONS", "there are no machines") if words in shown] == []
    lines = mixed.read("status", "-o", "prometheus", status=3).splitlines()
    samples = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    names = list(dict.fromkeys(name.partition("{")[0] for name in samples))
    assert [line.split()[2:] for line in lines if line.startswith("# TYPE")] == [[name, "gauge"] for name in names]
    assert {line.split()[2] for line in lines if line.startswith("# HELP")} == set(names)
    assert float(samples.pop('shepherd_tick_age_seconds{loop="updater",provider="static"}')) >= 60
    assert {name: value for name, value in samples.items() if value != "0"} == {
        **{
            f'shepherd_machines{{provider="static",state="{state}"}}': "2"
            for state in ("needs_agent", "starting", "running", "unhealthy", "installed")
        },
        'shepherd_machines{provider="equinix",state="needs_agent"}': "1",
        f'shepherd_recovery_steps_per_hour{{{place},brake="share"}}': "1",
        f'shepherd_condition{{name="recovery-limited",{place},loop="recoverer",severity="urgent"}}': "1",
        'shepherd_waiting_for_limit{provider="ec2"}': "7",
        "shepherd_attention": "1",
    }


def test_causes_are_counted_for_what_fails_now(fleet: Fleet) -> None:
    starting = [fleet.locate(fleet.provided_machine(), "ams") for _ in range(4)]
    healed = fleet.unhealthy_machine()
    session = fleet.open_session()
    works = [*claimed(session, Process.AGENT_START), *claimed(session, Process.RECOVERY)]
    work.fail(session, {each: work.Failure(SshTimedOut(f"no answer from {each.machine_id}"), 600) for each in works})
    fleet.sql("UPDATE machine_agent_heartbeat SET agent_heartbeat_at = clock_timestamp()")
    waiting, quarantined = fleet.provided_machine(), fleet.provided_machine("redfish")
    fleet.sql("INSERT INTO work_backoff VALUES (:id, 'ShepherdAgentStart', now(), 'a boot wait')", id=waiting)
    fleet.quarantine(quarantined, "still unhealthy after reboot")
    fleet.quarantine(fleet.reporting_machine())
    fleet.sql("UPDATE machine_agent_heartbeat SET agent_heartbeat_at = clock_timestamp()")
    fleet.recover(fleet.reporting_machine(), 5)
    often = fleet.recover(fleet.reporting_machine(), 6)
    lost = fleet.fail(fleet.provided_machine(), "deploy failed: no disk")
    fleet.sql(
        "INSERT INTO capacity_penalties VALUES ('static', 'r1', now() + interval '1 h', 'too late', 'capacity-taken')"
    )
    shepherdctl = CommandLine(fleet.settings, NO_LOOPS)
    found = shepherdctl.load("causes")["causes"]
    assert [(one["loop"], one["kind"], one["count"], one["cure"]) for one in found] == [
        ("initializer", "ssh-timed-out", 4, CURES["ssh-timed-out"]),
        ("recoverer", "recovered-often", 1, CURES["recovered-often"]),
        ("provider", "provisioning-failed", 1, CURES["provisioning-failed"]),
        ("provisioner", "capacity-taken", 1, CURES["capacity-taken"]),
        ("quarantine", "reports-again", 1, CURES["reports-again"]),
        ("quarantine", "steps-used-up", 1, CURES["steps-used-up"]),
    ]
    assert len(found[0]["examples"]) == 3
    assert {*found[0]["examples"]} < {str(each) for each in starting} - {str(healed)}
    assert (found[1]["examples"], found[1]["cause"]) == ([str(often)], "6 times in the last day")
    assert [one["kind"] for one in shepherdctl.load("causes", "--location", "ams")["causes"]] == ["ssh-timed-out"]
    assert [one["loop"] for one in shepherdctl.load("causes", "--provider", "redfish")["causes"]] == ["quarantine"]
    shown = shepherdctl("causes")
    assert "    4  Initializer  ssh-timed-out: no answer from " in shown.stdout
    assert "provisioning-failed: deploy failed: no disk" in shown.stdout
    assert "ProvisioningFailedPermanent: deploy failed: no disk" in shepherdctl.read("machine", "show", str(lost))
    for filters in ("--cause", "provisioning-failed"), ("--state", "failed"):
        assert [one["machine_id"] for one in shepherdctl.load("machine", "list", *filters)] == [str(lost)]
    assert shown.stderr.splitlines()[5] == f"ssh-timed-out: {CURES['ssh-timed-out']} (docs/failures#ssh-timed-out)"
    assert shepherdctl("causes", "--provider", "equinix").stderr == "nothing fails\n"
    # Nothing fails where no machine is, but somebody meant another location; nor of what no loop touches.
    told = shepherdctl.told("causes", "--location", "amz", status=1)
    assert told == "error: no machine is at 'amz': did you mean 'ams'?"
    shepherdctl.load("pause", "--all", "--reason", "x")
    assert "1 pause in force: see shepherdctl pauses\n" in shepherdctl("causes").stderr


# The inventory.

TIB = 1 << 40
NAMES = ["provider", "location", "machines", "unreported", "hardware_threads", "memory_bytes", "disks", "disk_bytes"]


def reported(fleet: Fleet, location: str | None, provider: str, *sums: int) -> None:
    """Plant a machine whose report adds up to threads, bytes of memory, disks, and bytes on them."""
    machine_id = fleet.locate(fleet.provided_machine(provider), location)
    summed = dict(zip(NAMES[4:], sums, strict=True))
    fleet.plant("machine_hardware_report", machine_id=machine_id, hardware_report_raw=b"", **summed)


def rows_of(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline=""), strict=True))


def test_people_get_rounded_sums_and_programs_exact_ones(fleet: Fleet, shepherdctl: CommandLine) -> None:
    """A fleet of a hundred thousand machines has more bytes than 64 bits with a sign count."""
    assert shepherdctl.load("inventory") == {"locations": [], "total": dict.fromkeys(NAMES[2:], 0)}
    assert rows_of(shepherdctl.read("inventory", "-o", "csv")) == [NAMES]
    reported(fleet, "Amsterdam", "equinix", 64, TIB, 2, 7 * TIB // 2)
    reported(fleet, "Amsterdam", "equinix", 32, TIB // 2, 1, 960197124096)
    for location in ("Amsterdam", "Paris"):
        fleet.locate(fleet.provided_machine("equinix"), location)
    for _ in range(3):
        reported(fleet, None, "static", 8, 1, 0, 2**63 - 1)
    fleet.bare_machine()
    exact: list[list[str | int | None]] = [
        ["equinix", "Amsterdam", 3, 1, 96, 3 * TIB // 2, 3, 7 * TIB // 2 + 960197124096],
        ["equinix", "Paris", 1, 1, 0, 0, 0, 0],
        ["static", None, 3, 0, 24, 3, 0, 3 * (2**63 - 1)],
    ]
    total = [7, 2, 120, 3 * TIB // 2 + 3, 3, 7 * TIB // 2 + 960197124096 + 3 * (2**63 - 1)]
    result = shepherdctl("inventory")
    assert "equinix   Amsterdam         3          1       96  1.5 TiB      3   4.4 TiB" in result.stdout.splitlines()
    assert "24 EiB" in result.stdout
    assert result.stderr == "2 machines sent no hardware report: their hardware is not counted\n"
    assert shepherdctl.load("inventory") == {
        "locations": [dict(zip(NAMES, row, strict=True)) for row in exact],
        "total": dict(zip(NAMES[2:], total, strict=True)),
    }
    listed = shepherdctl("inventory", "-o", "csv")
    rows = [[str("" if value is None else value) for value in row] for row in exact]
    assert (rows_of(listed.stdout_bytes.decode()), listed.stderr) == ([NAMES, *rows], "")
    for words, machines in {
        "--provider equinix": 4,
        "--location Amsterdam": 3,
        "--provider equinix --location Paris": 1,
        "--provider static --location Paris": 0,
        "--location amsterdam": 0,
    }.items():
        assert shepherdctl.load("inventory", *words.split())["total"]["machines"] == machines, words
    assert len(shepherdctl.read("inventory", "--location", "Amsterdam").splitlines()) == 1 + 1, "one row has no total"


READ = {'Paris, "4"': 'Paris, "4"', "=1+1": "'=1+1", "+1": "'+1", "-1": "'-1", "@sum": "'@sum", " =1+2": "'=1+2"}
READ |= {"\t=1+3": "\\t=1+3", "two\r\nlines": "two\\r lines", "\x1b[2J": "\\x1b[2J", "Zürich": "Zürich", "a=b": "a=b"}


def test_csv_is_read_as_meant_whatever_places_are_called(fleet: Fleet, shepherdctl: CommandLine) -> None:
    for location in READ:
        fleet.locate(fleet.provided_machine(), location)
    output = shepherdctl("inventory", "-o", "csv").stdout_bytes.decode()
    assert output.count("\r\n") == output.count("\n") == output.count("\r") == 1 + len(READ)
    assert output.endswith("\r\n")
    rows = [["static", read, "1", "1", "0", "0", "0", "0"] for read in READ.values()]
    assert sorted(rows_of(output)[1:]) == sorted(rows)
