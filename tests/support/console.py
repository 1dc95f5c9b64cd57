import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from html import unescape
from typing import Any
from uuid import UUID

import requests
from shepherd_core.bmdb.machines import pauses
from shepherd_core.settings.functions.bmdb import BmdbSettings

from shepherdctl.console.guard import Access
from shepherdctl.console.server import background
from tests.support.bmdb.fleet import Fleet
from tests.support.bmdb.warm import server_processes
from tests.support.command_line import COMMAND

_SECONDS = 30


class Visitor:
    def __init__(self, access: Access, *, enters: bool = True) -> None:
        self.access = access
        self.session = requests.Session()
        self.session.trust_env = False  # no proxy of this computer
        if enters:
            assert self.session.get(access.address_with_token, timeout=_SECONDS).status_code == 200

    def get(self, path: str, **headers: str) -> requests.Response:
        """Return the response to a GET of *path* with these *headers*, whose names have _ for -."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.session.get(
            self.access.address + path.lstrip("/"), headers=named, timeout=_SECONDS, allow_redirects=False
        )

    def read(self, path: str) -> str:
        response = self.get(path)
        assert response.status_code == 200, response.text
        return response.text

    def text(self, path: str) -> str:
        return said(self.read(path))


def plant_hostile_text(fleet: Fleet, text: str) -> UUID:
    """Put *text* everywhere where machines, providers and operators may write, and return a machine that has it."""
    machine_id = fleet.unhealthy_machine()
    names = "provider_id = :t, provider_ip_address = :t, provider_location = :t"
    fleet.sql(f"UPDATE machine_provided SET {names} WHERE machine_id = :id", t=text, id=machine_id)
    for event, cause, minutes in (("Started", None, -60), ("Failed", text, -58)):
        at = {"event": event, "timestamp": timedelta(minutes=minutes), "failed_cause": cause}
        fleet.plant("work_history", machine_id=machine_id, process="ShepherdRecovery", **at)
    fleet.sql("INSERT INTO recovery_budgets VALUES ('static', :t, 1, 'share', :t, now())", t=text)
    penalty = "'static', :t, now() + interval '1 hour', :c, 'unexpected'"
    fleet.sql(f"INSERT INTO capacity_penalties VALUES ({penalty})", t=text, c=text)
    pauses.pause(fleet.connection, owner=text, reason=text, machine_id=machine_id)
    return machine_id


def said(page: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", page).replace("&#8239;", "").split())


def commands(page: str) -> list[str]:
    """Return the commands of a page; the one that sends it to a colleague is in its foot."""
    main = page.partition("<footer")[0]
    return [unescape(each) for each in re.findall(r'<code class="command">(.*?)</code>', main, re.DOTALL)]


def words(line: str) -> list[str]:
    """Return the words after ``shepherdctl`` that a shell reads in *line*: one command, and nothing but names."""
    script = f"shepherdctl() {{ printf '%s\\0' \"$@\"; }}\n{line}"
    shell = subprocess.run(["/bin/sh", "-uc", script], env={"PATH": ""}, capture_output=True, check=True, text=True)
    assert shell.stderr == ""
    return shell.stdout.split("\0")[:-1]


def parsed(line: str) -> tuple[str, dict[str, Any]]:
    """Return the name of the command in *line*, and its options as the real command line reads them."""
    command, arguments, names = COMMAND, words(line), []
    context = COMMAND.make_context("shepherdctl", [*arguments])
    while hasattr(command, "commands"):
        names.append(arguments.pop(0))
        command = command.commands[names[-1]]
        context = command.make_context(names[-1], [*arguments], parent=context)
    return " ".join(names), context.params


@contextmanager
def serving(settings: BmdbSettings) -> Iterator[Access]:
    with server_processes(), background(settings) as access:
        yield access
