"""Incidents: from ``status`` to the cause and its cure it is at most one more command, which ``status`` prints."""

import os
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text
from shepherd_core.bmdb.machines import pauses
from shepherd_core.bmdb.session import Session
from shepherd_core.bmdb.work import work
from shepherd_core.bmdb.work.ticks import TickHead
from shepherd_core.domain.clock import SystemClock
from shepherd_core.domain.errors.machine import AgentExited
from shepherd_core.domain.errors.provider import ProviderUnavailable, ProviderUnusable
from shepherd_core.domain.machine import Process

from tests.support.bmdb.fleet import HOUR, PROVIDER, Fleet, claimed
from tests.support.bmdb.work_ends import ticked
from tests.support.command_line import CommandLine
from tests.support.shown import missing, steps

LOOP = "provisioner"
LOOPS = {"SHEPHERD_LOOP_MINUTES": "1,0,0,0"}
NO_LIST = {"SHEPHERD_PROVIDER": PROVIDER, "SHEPHERD_PROVIDER_MACHINES": "no-such-list.json"}
WIDTH = 126
HOW_TO = Path(__file__).parents[4] / "docs" / "how-to"


def limited(fleet: Fleet, location: str, per_hour: int, brake: str, reason: str) -> None:
    ticked(fleet, LOOP)
    fleet.sql(
        "INSERT INTO recovery_budgets (provider, location, per_hour, brake, reason, began_at) "
        f"VALUES ('{PROVIDER}', '{location}', {per_hour}, '{brake}', '{reason}', now())"
    )


def rack_without_power(fleet: Fleet) -> None:
    limited(fleet, "rack 7", 1, "share", "4 of 4 machines are dead")
    for _ in range(4):
        machine = fleet.locate(fleet.unhealthy_machine(), "rack 7")
        fleet.sql(
            "INSERT INTO work_history (machine_id, process, event, kind, failed_cause) "
            "VALUES (:id, 'ShepherdRecovery', 'Looked', 'ssh-timed-out', 'no answer in 5 s')",
            id=machine,
        )
        fleet.sql(
            "INSERT INTO work_backoff (machine_id, process, until, cause, kind) "
            "VALUES (:id, 'ShepherdRecovery', now() + interval '5 minutes', 'the budget is used up', 'held-back')",
            id=machine,
        )


def one_rack_of_a_hundred(fleet: Fleet) -> None:
    rack_without_power(fleet)
    healthy = fleet.machines(400, started_ago=3 * HOUR, reported_ago=60)
    fleet.sql(
        "UPDATE machine_provided p SET provider_location = 'rack ' || 100 + x.number % 99 "
        "FROM unnest(CAST(:ids AS uuid[])) WITH ORDINALITY AS x (id, number) WHERE p.machine_id = x.id",
        ids=healthy,
    )


def rack_of_a_paused_provider(fleet: Fleet) -> None:
    rack_without_power(fleet)
    pauses.pause(fleet.connection, owner="alice", reason="the provider moves", provider=PROVIDER)


def loop_never_ran(fleet: Fleet) -> None:
    fleet.machines(3, started_ago=3 * HOUR, reported_ago=60)


def no_report_arrives(fleet: Fleet) -> None:
    fleet.machines(4, started_ago=3 * HOUR, reported_ago=HOUR / 4)
    limited(fleet, "", 0, "silent", "no machine of the provider reports")


def loop_hangs(fleet: Fleet) -> None:
    Session.open(fleet.connection, SystemClock(), TickHead("provisioner", PROVIDER, "5e771465", "c0de"), "1", 60)
    fleet.pass_time(120)
    fleet.open_session().close()  # finds the tick that was killed


def provider_away(fleet: Fleet) -> None:
    ticked(fleet, LOOP, ProviderUnavailable("GET /server: status 503"))


def bad_agent(fleet: Fleet) -> None:
    ticked(fleet, LOOP)
    fleet.machines(3)
    session = fleet.open_session()
    error = AgentExited("status 7: cannot execute binary file")
    error.agent_sha256 = "ab12"
    work.fail(session, {each: work.Failure(error, 60) for each in claimed(session, Process.AGENT_START)})


def credential_refused(fleet: Fleet) -> None:
    ticked(fleet, LOOP, ProviderUnusable("GET /server: status 401: invalid token"))


def one_unhealthy(fleet: Fleet) -> None:
    fleet.machines(3, started_ago=3 * HOUR, reported_ago=60)
    ticked(fleet, LOOP)
    fleet.unhealthy_machine()


def loop_late(fleet: Fleet) -> None:
    fleet.machines(3, started_ago=3 * HOUR, reported_ago=60)
    ticked(fleet, LOOP)
    fleet.pass_time(1200)
    fleet.report([row[0] for row in fleet.sql("SELECT machine_id FROM machine_provided")])


def settings_refused(fleet: Fleet) -> None:
    ticked(fleet, LOOP, settings_refused=1)


@dataclass(frozen=True)
class Incident:
    arranged: Callable[[Fleet], None]
    condition: str
    told: list[str]
    """The cause, and the cure."""
    command: str = ""
    """The one that is typed next; none: ``status`` said all."""
    environment: dict[str, str] = field(default_factory=dict)


INCIDENTS = [
    Incident(
        one_rack_of_a_hundred,
        "recovery-limited",
        ["rack 7           static           4          4\n", "4  Recoverer  ssh-timed-out: no answer in 5 s"],
        "shepherdctl causes --provider static --location 'rack 7'",
    ),
    Incident(
        rack_of_a_paused_provider,
        "recovery-limited",
        ["4 machines paused", "1 pause in force", "alice", "the provider moves"],
        "shepherdctl pauses",
    ),
    Incident(
        loop_never_ran,
        "loop-late",
        ["the Provisioner of static has not run in the last two weeks", "'no-such-list.json' could not be read"],
        "shepherdctl run provisioner --dry-run",
        NO_LIST,
    ),
    Incident(
        no_report_arrives,
        "recovery-limited",
        ["static, the whole provider; no machine of the provider reports", "if the machines are down: `shepherdctl"],
    ),
    Incident(
        loop_hangs,
        "loop-fails",
        [
            "the Provisioner of static was cut off",
            "'no-such-list.json' could not be read",
            "it must be a readable file",
        ],
        "shepherdctl run provisioner --dry-run",
        NO_LIST,
    ),
    Incident(
        provider_away,
        "provider-away",
        ["static does not answer as it should", "provider-unavailable: GET /server: status 503", "Nothing, unless"],
    ),
]


@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda each: each.arranged.__name__)
def test_two_commands_find_the_cause_and_its_cure(fleet: Fleet, incident: Incident) -> None:
    incident.arranged(fleet)
    shepherdctl = CommandLine(fleet.settings, LOOPS | incident.environment)
    found = shepherdctl("status")
    assert found.exit_code == 3, found.output
    assert found.stdout.splitlines()[1].split()[0] == incident.condition
    output = found.output
    if incident.command:
        command = re.findall(f"^{incident.condition}: .*?`(shepherdctl [^`]+)`", found.stderr, re.MULTILINE)[0]
        assert command == incident.command
        output += shepherdctl(*shlex.split(command)[1:]).output
    for text in incident.told:
        assert text in output


PAGES = {
    "agent": bad_agent,
    "loop": loop_late,
    "provider": credential_refused,
    "rack": rack_without_power,
    "settings": settings_refused,
    "unhealthy": one_unhealthy,
}


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_print_what_it_shows(
    page: str, fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    PAGES[page](fleet)
    monkeypatch.chdir(tmp_path)
    Path("settings.toml").write_text("version = 1\n[provisioner]\nmax_machine = 12\n")
    shepherdctl = CommandLine(fleet.settings, LOOPS | NO_LIST)
    typed = steps(HOW_TO / f"{page}.md")
    assert typed
    for command, shown in typed:
        printed = shepherdctl(*shlex.split(command)[1:]).output
        assert missing(shown, printed) == [], printed
    if page == "rack" and "WRITE_PICTURE" in os.environ:
        picture = Console(record=True, file=StringIO(), width=WIDTH, force_terminal=True)
        for command, _ in typed:
            words = shlex.split(command)[1:]
            seen = shepherdctl.on_terminal(WIDTH, *words, status=3 * (words == ["status"]), everything=True)
            picture.print(Text(f"$ {command}", "bold"), Text.from_ansi(seen.replace("\r", "")), sep="\n")
        (HOW_TO.parent / "pictures" / "incident.svg").write_text(picture.export_svg(title="a rack is dead"))


def test_the_machines_of_a_cause_are_listed_though_they_wait(fleet: Fleet) -> None:
    rack_without_power(fleet)
    shepherdctl = CommandLine(fleet.settings)
    assert len(shepherdctl.load("machine", "list", "--cause", "ssh-timed-out")) == 4
    fleet.report([row[0] for row in fleet.sql("SELECT machine_id FROM machine_provided LIMIT 3")])
    (cause,) = shepherdctl.load("causes", "--location", "rack 7")["causes"]
    assert (cause["kind"], cause["count"]) == ("ssh-timed-out", 1)
    assert len(shepherdctl.load("machine", "list", "--cause", "ssh-timed-out")) == 1
