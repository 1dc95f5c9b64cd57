"""The shell commands by which docs/how-to/keys.md leads through a rotation of the SSH key, run on machines."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from uuid import UUID

import pytest
from shepherd_core.adapters import ssh_keys

from tests.support.agents.ssh_server import SshServer
from tests.support.bmdb.fleet import Fleet
from tests.support.command_line import CommandLine

PAGE = Path(__file__).parents[3] / "docs/how-to/keys.md"
OLD, NEW = ssh_keys.generate(), ssh_keys.generate()
LINES = [ssh_keys.public_line(each) for each in (OLD, NEW, ssh_keys.generate())]


def blocks() -> list[str]:
    """Return the commands of the steps that change machines: add the new key, remove the old one."""
    text = PAGE.read_text(encoding="utf-8").partition("## The SSH key")[2]
    found = re.findall(r"^ {7}.*\n(?:(?: {7}.*)?\n)*", text, re.MULTILINE)
    return [dedent(each) for each in found if "authorized_keys" in each]


@dataclass
class Machines:
    """Three machines, of which one admits another key alone, and two that cannot be reached."""

    folder: Path
    port: int
    ids: dict[str, UUID]
    shell: str

    def run(self, *commands: str) -> set[str]:
        """Run the commands as an operator does in one shell; return the machines that the last one could not change."""
        script = "\n".join(commands).replace("PORT=22", f"PORT={self.port}")
        environment = {**os.environ, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}
        subprocess.run([self.shell, "-c", script], cwd=self.folder, env=environment, check=True)
        known = {str(machine_id): name for name, machine_id in self.ids.items()}
        return {known[line.split()[0]] for line in (self.folder / "failed").read_text().splitlines()}

    def admitted(self, name: str) -> Path:
        return self.folder / name / ".ssh/authorized_keys"

    def keys(self, name: str) -> list[str]:
        return [line for line in self.admitted(name).read_text().splitlines() if line]


@pytest.fixture(params=["bash", "dash"])
def machines(request: pytest.FixtureRequest, fleet: Fleet, tmp_path: Path) -> Iterator[Machines]:
    if shutil.which("ssh") is None or shutil.which(request.param) is None:
        pytest.skip(f"ssh or {request.param} is missing here")
    addresses = {"first": "127.0.0.1", "second": "127.0.0.2", "third": "127.0.0.3", "off": "127.0.0.4", "unknown": None}
    old, _, other = LINES
    admitted = {"first": old, "second": f"{other}\n{old} old\n", "third": f"{other}\n"}  # the first without an end
    with ExitStack() as servers:
        ids = dict(zip(addresses, fleet.machines(len(addresses)), strict=True))
        for name, address in addresses.items():
            fleet.update("machine_provided", ids[name], provider_ip_address=address)
        machines = Machines(tmp_path, 0, ids, request.param)
        for name, text in admitted.items():
            machines.admitted(name).parent.mkdir(parents=True)
            machines.admitted(name).write_text(text)
            server = SshServer(other, address=str(addresses[name]), port=machines.port)
            server.home = tmp_path / name
            machines.port = servers.enter_context(server).port
        listed = CommandLine(fleet.settings).read("machine", "list", "--limit", "1000000", "-o", "json")
        (tmp_path / "listed").write_text(listed)
        (tmp_path / "parameter.ssh-key").write_text(NEW)
        (tmp_path / "parameter.ssh-key.previous").write_text(OLD)
        for name, command in {
            "aws": f'cat "{tmp_path}/parameter.${{5#/shepherd/}}"',
            "shepherdctl": f'[ "$*" = "machine list --limit 1000000 -o json" ] && cat "{tmp_path}/listed"',
            "ssh": f'exec {shutil.which("ssh")} -F none -o "UserKnownHostsFile {tmp_path}/known" "$@"',
        }.items():
            program = tmp_path / "bin" / name
            program.parent.mkdir(exist_ok=True)
            program.write_text(f"#!/bin/sh\n{command}\n")
            program.chmod(0o755)
        yield machines


def test_the_documented_commands_rotate_the_ssh_key(machines: Machines) -> None:
    add, remove = blocks()
    old, new, other = LINES
    assert machines.run(add) == {"third", "off", "unknown"}
    assert machines.keys("first") == [old, new]
    assert machines.keys("second") == [other, f"{old} old", new]
    assert machines.keys("third") == [other]
    machines.admitted("third").write_text(f"{other}\n{old}\n")
    assert machines.run(add) == {"off", "unknown"}, "a machine that was repaired gets the key"
    assert machines.keys("third") == [other, old, new]
    assert machines.keys("first") == [old, new], "a machine that is done is only tried again"
    assert machines.run(add, remove) == {"off", "unknown"}
    assert [machines.keys(name) for name in ("first", "second", "third")] == [[new], [other, new], [other, new]]
    assert machines.run(add, remove) == {"off", "unknown"}, "it may be run again"


def test_without_the_old_key_the_documented_commands_remove_no_line(machines: Machines) -> None:
    """An empty expression may match all keys, and would lock everybody out."""
    _, new, _ = LINES
    machines.admitted("first").write_text(f"{new}\n")
    (machines.folder / "parameter.ssh-key.previous").write_text("")
    assert machines.run(*blocks()) == set(machines.ids)
    assert machines.keys("first") == [new]
