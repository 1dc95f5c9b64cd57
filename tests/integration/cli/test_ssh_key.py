"""The commands on Shepherd's SSH key, against moto, and machines that have the key before it."""

import os
import pty
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from uuid import UUID

import boto3
import pytest
from shepherd_core.adapters import ssh_keys
from shepherd_core.domain.clock import Deadline, SystemClock
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.domain.errors.machine import SshAuthenticationFailed
from shepherd_core.settings.functions.loops import InitializerSettings
from shepherd_core.wiring import adapters

from shepherdctl.commands import ssh_key
from tests.support.agents.ssh_server import SshServer
from tests.support.bmdb.fleet import Fleet
from tests.support.command_line import CommandLine

NAME, PUBLIC, PREVIOUS = "/shepherd/ssh-key", "/shepherd/ssh-key.pub", "/shepherd/ssh-key.previous"
PREVIOUS_PUBLIC = f"{PREVIOUS}.pub"


@pytest.fixture
def shepherdctl(aws: None) -> Iterator[CommandLine]:
    adapters.secrets.cache_clear()
    yield CommandLine(None)
    adapters.secrets.cache_clear()


def put(name: str, value: str) -> None:
    kind = "String" if name.endswith(".pub") else "SecureString"
    boto3.client("ssm").put_parameter(Name=name, Value=value, Type=kind, Overwrite=True)


def stored() -> dict[str, tuple[str, str]]:
    ssm = boto3.client("ssm")
    names = [found["Name"] for found in ssm.describe_parameters()["Parameters"]]
    found = [ssm.get_parameter(Name=name, WithDecryption=True)["Parameter"] for name in names]
    return {each["Name"]: (each["Value"], each["Type"]) for each in found}


def public(name: str) -> str:
    return ssh_keys.public_line(stored()[name][0])


def dial(port: int, dialer: adapters.LazyDialer | None = None) -> adapters.LazyDialer:
    """Reach the machine as an Initializer does that begins a tick, and return what it keeps for the next one."""
    settings = InitializerSettings.model_construct(ssh_key_parameter=NAME, ssh_port=port)  # type: ignore[call-arg]
    dialer = dialer or adapters.LazyDialer(settings, 2)
    dialer.dialer()
    dialer.dial("127.0.0.1", None, Deadline(SystemClock(), 60)).close()
    return dialer


def test_a_key_is_created_once_with_its_public_half(shepherdctl: CommandLine) -> None:
    """Most functions may read the public half alone, and a second key would lock us out of all machines."""
    created = shepherdctl.load("ssh-key", "create")
    assert stored() == {NAME: (stored()[NAME][0], "SecureString"), PUBLIC: (public(NAME), "String")}
    assert created == {"parameter": NAME, "created": True, "public_key": public(NAME), "previous": None}
    assert shepherdctl.load("ssh-key", "create") == {**created, "created": False}
    # Of a key of one's own, and after an interruption in the middle.
    private = ssh_keys.generate()
    put(NAME, private)
    put(PUBLIC, "ssh-ed25519 of another")
    shepherdctl.read("ssh-key", "create")
    assert stored() == {NAME: (private, "SecureString"), PUBLIC: (ssh_keys.public_line(private), "String")}


@pytest.mark.parametrize("given", [(), ("--kms-key", "alias/ours")])
def test_no_private_key_is_shown_or_encrypted_otherwise(shepherdctl: CommandLine, given: tuple[str, ...]) -> None:
    """
    A key of root on every machine must not fall back to AWS's own because of an option that was left out.

    Whoever may see the public halves need not be trusted with it.
    """
    ssm = boto3.client("ssm")
    said = [
        shepherdctl("ssh-key", *words) for words in (("create", "--kms-key", "alias/ours"), ("rotate", "--yes", *given))
    ]
    assert {each["Name"]: each.get("KeyId") for each in ssm.describe_parameters()["Parameters"]} == {
        **dict.fromkeys((NAME, PREVIOUS), "alias/ours"),
        **dict.fromkeys((PUBLIC, PREVIOUS_PUBLIC)),
    }
    said.append(shepherdctl("ssh-key", "show", "-o", "json"))
    private = {name: stored()[name][0] for name in (NAME, PREVIOUS)}
    ssm.delete_parameters(Names=[NAME, PREVIOUS])
    assert shepherdctl("ssh-key", "show", "-o", "json").stdout == said[-1].stdout
    assert "null" not in said[-1].stdout
    for name, value in private.items():
        put(name, value)
    said.append(shepherdctl("ssh-key", "retire", "--yes"))
    assert [each.exit_code for each in said] == [0] * 4
    assert "PRIVATE" not in "".join(each.stdout + each.stderr for each in said)


def test_machines_with_either_key_are_reached_during_a_rotation(
    shepherdctl: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    """The steps of docs/how-to/keys.md: both keys, until the new one is on every machine; a warm function follows."""
    shepherdctl.read("ssh-key", "create")
    old = public(NAME)
    with SshServer(old) as server:
        dialer = dial(server.port)
        new = shepherdctl.load("ssh-key", "rotate", "--yes")["public_key"]
        assert (public(PREVIOUS), public(NAME), stored()[PUBLIC][0]) == (old, new, new)
        assert shepherdctl.load("ssh-key", "show") == {"parameter": NAME, "public_key": new, "previous": old}
        assert f"previous    {old}\n" in shepherdctl.read("ssh-key", "show")
        adapters.secrets().invalidate(NAME)  # as five minutes do
        capsys.readouterr()
        dial(server.port, dialer)
        assert "machine has the previous SSH key" in capsys.readouterr().out
        shepherdctl.read("ssh-key", "retire", "--dry-run")
        dial(server.port, dialer)
        with SshServer(new) as changed:
            dial(changed.port)
        assert old in shepherdctl.read("ssh-key", "retire", "--yes")
        adapters.secrets().invalidate(PREVIOUS)
        with pytest.raises(SshAuthenticationFailed):
            dial(server.port, dialer)
    assert stored().keys() == {NAME, PUBLIC}


@pytest.mark.parametrize("writes", [1, 2, 3])
def test_an_interrupted_rotation_is_completed(shepherdctl: CommandLine, writes: int) -> None:
    """Between any two of its writes; no key is lost that machines have, and none is shown for another."""
    shepherdctl.read("ssh-key", "create")
    old = stored()[NAME][0]
    line = ssh_keys.public_line(old)
    for name, value in [(PREVIOUS, old), (PREVIOUS_PUBLIC, line), (NAME, ssh_keys.generate())][:writes]:
        put(name, value)
    if writes == 1:
        assert shepherdctl.load("ssh-key", "show")["public_key"] == line
    else:
        assert "its rotation was interrupted; run ssh-key create" in shepherdctl.told("ssh-key", "show", status=1)
        shepherdctl.read("ssh-key", "create")
    if writes < 3:
        assert shepherdctl.load("ssh-key", "show") == {"parameter": NAME, "public_key": line, "previous": None}
        shepherdctl.read("ssh-key", "rotate", "--yes")
    assert stored()[PREVIOUS][0] == old
    shown = shepherdctl.load("ssh-key", "show")
    assert (shown["previous"], shown["public_key"]) == (line, public(NAME))
    assert public(NAME) != line


def test_a_rotation_has_to_be_ended_and_confirmed(shepherdctl: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert f"{PUBLIC} does not exist; run ssh-key create" in shepherdctl.told("ssh-key", "show", status=1)
    missing = f"'{NAME}': there is no such SSM parameter"
    assert missing in shepherdctl.told("ssh-key", "rotate", "--yes", status=1)
    assert "no rotation is under way" in shepherdctl.told("ssh-key", "retire", "--yes")
    shepherdctl.read("ssh-key", "create")
    before = stored()
    assert public(NAME) in shepherdctl.told("ssh-key", "rotate", "--dry-run")
    assert stored() == before
    shepherdctl.read("ssh-key", "rotate", "--yes")
    before = stored()
    assert "end it with ssh-key retire" in shepherdctl.told("ssh-key", "rotate", "--yes", status=1)
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "wb", 0) as keyboard, os.fdopen(theirs, encoding="utf-8") as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        keyboard.write(f"{NAME}\n".encode())
        with pytest.raises(ShepherdError, match="stopped; nothing was changed"):
            ssh_key.retire()
        assert stored() == before
        keyboard.write(f"{PREVIOUS}\n".encode())
        ssh_key.retire()
    assert stored().keys() == {NAME, PUBLIC}


def test_a_stale_public_half_stops_a_rotation(shepherdctl: CommandLine) -> None:
    """After a rotation that was killed before its last write, operators would put the old key on the machines."""
    shepherdctl.read("ssh-key", "create")
    old = stored()[PUBLIC][0]
    shepherdctl.read("ssh-key", "rotate", "--yes")
    put(PUBLIC, old)
    for _ in ("stale", "missing"):
        before = stored()
        for words in ("rotate --yes", "retire --yes", "retire --dry-run"):
            told = shepherdctl.told("ssh-key", *words.split(), status=1)
            assert f"{PUBLIC} is not the public half of {NAME}: run ssh-key create" in told
        assert stored() == before
        boto3.client("ssm").delete_parameters(Names=[PUBLIC])
    shepherdctl.read("ssh-key", "create")
    assert shepherdctl.load("ssh-key", "show")["public_key"] == public(NAME)


# The shell commands by which docs/how-to/keys.md leads through a rotation, run on machines.

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

    def keys(self) -> list[list[str]]:
        """Return what the reachable machines admit."""
        texts = [self.admitted(name).read_text() for name in ("first", "second", "third")]
        return [[line for line in text.splitlines() if line] for text in texts]


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
    assert machines.keys() == [[old, new], [other, f"{old} old", new], [other]]
    machines.admitted("third").write_text(f"{other}\n{old}\n")  # it was repaired; the others are only tried again
    assert machines.run(add) == {"off", "unknown"}
    assert machines.keys() == [[old, new], [other, f"{old} old", new], [other, old, new]]
    assert machines.run(add, remove) == {"off", "unknown"}
    assert machines.keys() == [[new], [other, new], [other, new]]
    assert machines.run(add, remove) == {"off", "unknown"}, "it may be run again"


def test_without_the_old_key_the_documented_commands_remove_no_line(machines: Machines) -> None:
    """An empty expression may match all keys, and would lock everybody out."""
    _, new, _ = LINES
    machines.admitted("first").write_text(f"{new}\n")
    (machines.folder / "parameter.ssh-key.previous").write_text("")
    assert machines.run(*blocks()) == set(machines.ids)
    assert machines.keys()[0] == [new]
