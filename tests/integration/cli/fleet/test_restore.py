"""The page about restores: its commands are typed, on a database that is lost after its backup."""

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from shepherd_core.domain.clock import SystemClock

from simulator.environment.postgres import TEMPLATE, Postgres
from tests.integration.cli.ec2_fleet import Ec2Fleet
from tests.support.bmdb.capacity import provided
from tests.support.bmdb.fleet import Fleet
from tests.support.command_line import CommandLine
from tests.support.providers.ec2_api import ec2_api

PAGE = (Path(__file__).parents[4] / "docs" / "how-to" / "restore.md").read_text()
ANSWERS = {"resume": ("--yes",), "adopt": ("--yes",)}


def typed(line: str, postgres: Postgres, shepherdctl: CommandLine, folder: Path) -> None:
    words = shlex.split(line)
    given = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
    program, *arguments = words[len(given) :]
    if program == "shepherdctl":
        command = CommandLine(None, {**shepherdctl.environment, **given})
        asked = [answer for word in arguments for answer in ANSWERS.get(word, ())]
        result = command.process(*arguments, *asked)  # whose connection ends with it
        assert result.returncode in {0, 3}, (line, result.stderr)
        return
    environment = os.environ | {"PGHOST": postgres.host, "PGUSER": "postgres"}
    command_line = [str(postgres.programs / program), *arguments]
    done = subprocess.run(command_line, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (line, done.stderr)


@pytest.fixture
def server(postgres: Postgres) -> Iterator[Postgres]:
    """Return the server of all tests, with the database and the owner of the page."""
    postgres.run("CREATE ROLE shepherd")
    postgres.run(f"CREATE DATABASE shepherd TEMPLATE {TEMPLATE}")
    yield postgres
    for name in ("shepherd", "shepherd_restored", "shepherd_lost"):
        postgres.drop(postgres.settings(name))
    postgres.run("DROP ROLE shepherd")


def test_the_commands_of_the_page_restore_a_lost_database(
    server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = server.settings("shepherd")
    backup, *lines = re.findall(r"^    (\S.*)$", PAGE, re.MULTILINE)
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
