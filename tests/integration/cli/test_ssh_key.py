"""The commands on Shepherd's SSH key, against moto, and machines that have the key before it."""

import os
import pty
from collections.abc import Iterator

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
