"""Our SSH key: what other programs make of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncssh
import pytest
from shepherd_core.adapters import ssh_keys
from shepherd_core.domain.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable


def test_key_is_what_other_ssh_programs_understand() -> None:
    """Providers and operators put the public half into ``authorized_keys``."""
    private_key = ssh_keys.generate()
    theirs = asyncssh.import_private_key(private_key)
    assert theirs.get_algorithm() == "ssh-ed25519"
    assert theirs.export_public_key().decode().split() == ssh_keys.public_line(private_key).split()
    assert len(ssh_keys.public_line(private_key).split()) == 2


def test_each_key_is_new() -> None:
    """Otherwise two deployments, or two functions in a race for the first key, could share one."""
    assert ssh_keys.generate() != ssh_keys.generate()


@pytest.mark.parametrize(
    "written",  # called by the test alone: every process imports this module, and to encrypt takes a second
    [
        lambda: "",
        lambda: "hunter2",
        lambda: ssh_keys.public_line(ssh_keys.generate()),
        lambda: asyncssh.generate_private_key("ecdsa-sha2-nistp256").export_private_key().decode(),
        lambda: asyncssh.generate_private_key("ssh-ed25519").export_private_key(passphrase="hunter2").decode(),
    ],
    ids=["nothing", "rubbish", "public key", "key of another kind", "encrypted key"],
)
def test_anything_else_is_refused_without_showing_it(written: Callable[[], str]) -> None:
    """The parameter is written by people; what they wrote there is still a secret."""
    text = written()
    with pytest.raises(ConfigError, match="the SSH key is not") as caught:
        ssh_keys.public_line(text)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__context__ is None
