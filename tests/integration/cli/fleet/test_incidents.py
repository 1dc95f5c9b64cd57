"""From ``status`` to the cause and its cure it is at most one more command, which ``status`` prints."""

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from datetime import timedelta
from io import StringIO
from pathlib import Path
from uuid import uuid4

import pytest
from rich.console import Console
from rich.text import Text
from shepherd_core.bmdb.work import work
from shepherd_core.domain.clock import SystemClock
from shepherd_core.domain.errors.machine import AgentExited
from shepherd_core.domain.errors.provider import ProviderUnusable
from shepherd_core.domain.machine import Process

from simulator.environment.postgres import TEMPLATE, Postgres
from tests.integration.cli.conftest import Ec2Fleet
from tests.support.bmdb.capacity import provided
from tests.support.bmdb.fleet import HOUR, PROVIDER, Fleet, claimed
from tests.support.bmdb.work_ends import ticked
from tests.support.command_line import CommandLine
from tests.support.providers.ec2_api import ec2_api
from tests.support.shown import missing, steps

LOOP = "provisioner"
NO_LIST = {"SHEPHERD_PROVIDER": PROVIDER, "SHEPHERD_PROVIDER_MACHINES": "no-such-list.json"}
WIDTH = 126
HOW_TO = Path(__file__).parents[4] / "docs" / "how-to"


def rack_without_power(fleet: Fleet) -> None:
    ticked(fleet, LOOP)
    fleet.sql("INSERT INTO recovery_budgets VALUES ('static', 'rack 7', 1, 'share', '4 of 4 machines are dead')")
    recovery = {"process": "ShepherdRecovery"}
    for _ in range(4):
        machine = fleet.locate(fleet.unhealthy_machine(), "rack 7")
        looked = {"event": "Looked", "kind": "ssh-timed-out", "failed_cause": "no answer in 5 s"}
        fleet.plant("work_history", machine_id=machine, **recovery, **looked)
        held = {"until": timedelta(minutes=5), "cause": "the budget is used up", "kind": "held-back"}
        fleet.plant("work_backoff", machine_id=machine, **recovery, **held)


def bad_agent(fleet: Fleet) -> None:
    ticked(fleet, LOOP)
    fleet.machines(3)
    session = fleet.open_session()
    error = AgentExited("status 7: cannot execute binary file")
    error.agent_sha256 = "ab12"
    work.fail(session, {each: work.Failure(error, 60) for each in claimed(session, Process.AGENT_START)})


def one_unhealthy(fleet: Fleet) -> None:
    fleet.machines(3, started_ago=3 * HOUR, reported_ago=60)
    fleet.unhealthy_machine()
    ticked(fleet, LOOP)


def loop_late(fleet: Fleet) -> None:
    fleet.machines(3, started_ago=3 * HOUR, reported_ago=60)
    ticked(fleet, LOOP)
    fleet.pass_time(1200)
    fleet.report([row[0] for row in fleet.sql("SELECT machine_id FROM machine_provided")])


PAGES: dict[str, Callable[[Fleet], object]] = {
    "agent": bad_agent,
    "loop": loop_late,
    "provider": lambda fleet: ticked(fleet, LOOP, ProviderUnusable("GET /server: status 401: invalid token")),
    "rack": rack_without_power,
    "settings": lambda fleet: ticked(fleet, LOOP, settings_refused=1),
    "unhealthy": one_unhealthy,
}


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_print_what_it_shows(
    page: str, fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    PAGES[page](fleet)
    monkeypatch.chdir(tmp_path)
    Path("settings.toml").write_text("version = 1\n[provisioner]\nmax_machine = 12\n")
    shepherdctl = CommandLine(fleet.settings, {"SHEPHERD_LOOP_MINUTES": "1,0,0,0", **NO_LIST})
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


def typed(line: str, postgres: Postgres, shepherdctl: CommandLine, folder: Path) -> None:
    words = shlex.split(line)
    given = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
    program, *arguments = words[len(given) :]
    if program == "shepherdctl":
        command = CommandLine(None, {**shepherdctl.environment, **given})
        asked = ["--yes" for word in arguments if word in {"resume", "adopt"}]
        result = command.process(*arguments, *asked)  # whose connection ends with it
        assert result.returncode in {0, 3}, (line, result.stderr)
        return
    environment = os.environ | {"PGHOST": postgres.host, "PGUSER": "postgres"}
    command_line = [str(postgres.programs / program), *arguments]
    done = subprocess.run(command_line, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (line, done.stderr)


@pytest.fixture
def server(postgres: Postgres) -> Iterator[Postgres]:
    postgres.run(f"CREATE DATABASE shepherd TEMPLATE {TEMPLATE}")
    yield postgres
    for name in ("shepherd", "shepherd_restored", "shepherd_lost"):
        postgres.drop(postgres.settings(name))


def test_the_commands_of_the_page_restore_a_lost_database(
    server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = server.settings("shepherd")
    backup, *lines = re.findall(r"^    (\S.*)$", (HOW_TO / "restore.md").read_text(), re.MULTILINE)
    with ec2_api() as api:
        monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", api.server.url)
        fleet = Fleet(settings, SystemClock())
        ec2 = Ec2Fleet(fleet, api)
        shepherdctl = CommandLine(settings, ec2.environment)
        typed(backup, server, shepherdctl, tmp_path)
        since = {ec2.create(uuid4()) for _ in range(2)}
        fleet.close()
        for line in lines:
            if "resume" in line:
                (pause,) = shepherdctl.load("pauses")
                typed(line.replace("3f0a", pause["pause_id"]), server, shepherdctl, tmp_path)
            else:
                typed(line, server, shepherdctl, tmp_path)
        restored = Fleet(settings, SystemClock())
        assert provided(restored).keys() == ec2.machines.keys() | since
        assert restored.sql("SELECT * FROM pauses") == []
        restored.close()
