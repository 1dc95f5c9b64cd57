from collections.abc import Callable

import asyncssh
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat
from shepherd_core.adapters import ssh_keys
from shepherd_core.domain.errors import ConfigError

from agent.shepherd_agent.ed25519 import verify


def test_key_is_what_other_ssh_programs_understand() -> None:
    """Providers and operators put the public half into ``authorized_keys``."""
    private_key = ssh_keys.generate()
    theirs = asyncssh.import_private_key(private_key)
    assert theirs.get_algorithm() == "ssh-ed25519"
    assert theirs.export_public_key().decode().split() == ssh_keys.public_line(private_key).split()
    assert len(ssh_keys.public_line(private_key).split()) == 2
    assert ssh_keys.generate() != private_key


@pytest.mark.parametrize(
    "written",
    [
        lambda: "",
        lambda: "hunter2",
        lambda: ssh_keys.public_line(ssh_keys.generate()),
        lambda: asyncssh.generate_private_key("ecdsa-sha2-nistp256").export_private_key().decode(),
        lambda: (
            Ed25519PrivateKey.generate()
            .private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, BestAvailableEncryption(b"hunter2"))
            .decode()
        ),
    ],
    ids=["nothing", "rubbish", "public key", "key of another kind", "encrypted key"],
)
def test_anything_else_is_refused_without_showing_it(written: Callable[[], str]) -> None:
    """The parameter is written by people; what they wrote there is still a secret."""
    text = written()
    for read, name in ((ssh_keys.public_line, "SSH key"), (ssh_keys.signer, "installation key")):
        with pytest.raises(ConfigError, match=f"the {name} is not") as caught:
            read(text)
        assert "hunter2" not in str(caught.value)
        assert caught.value.__context__ is None


def test_keys_of_ssh_keygen_sign_and_verify() -> None:
    """So operators make the installation key, and put two public keys into one parameter to change it."""
    privates, lines = [], ""
    for number in range(2):
        key = asyncssh.generate_private_key("ssh-ed25519", comment=f"operator {number}@example.com")
        privates.append(key.export_private_key("openssh").decode())
        lines += key.export_public_key("openssh").decode() + "\n"
    for private, public in zip(privates, ssh_keys.public_keys(lines), strict=True):
        assert verify(public, ssh_keys.signer(private)(b"a message"), b"a message")
    assert ssh_keys.public_keys("\n") == ()


@pytest.mark.parametrize(
    "line",
    [
        "ssh-ed25519",
        "AAAAC3NzaC1lZDI1NTE5",
        "ssh-ed25519 AAAA",
        lambda: asyncssh.generate_private_key("ecdsa-sha2-nistp256").export_public_key().decode(),
        ssh_keys.generate,
    ],
    ids=["no key", "no type", "short key", "key of another kind", "private key"],
)
def test_a_public_key_that_is_none_is_refused(line: str | Callable[[], str]) -> None:
    text = line if isinstance(line, str) else line()
    with pytest.raises(ConfigError, match="the public installation key"):
        ssh_keys.public_keys(ssh_keys.public_line(ssh_keys.generate()) + "\n" + text)
