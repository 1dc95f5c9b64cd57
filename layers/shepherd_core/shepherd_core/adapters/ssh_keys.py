"""
Shepherd's keys: Ed25519, in OpenSSH's file formats. One is for SSH, the other signs installations.

The SSH key is in SSM, under the name that the settings have. Beside it are its
public half, which is all that most functions and people may read, and, during a
rotation, the key before it with its own public half. Operators make and replace it (``shepherdctl ssh-key``), functions
only read.
"""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from shepherd_core.domain.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable


def public_parameter(name: str) -> str:
    """Return the name of the parameter with the public half of the key *name*."""
    return f"{name}.pub"


def previous_parameter(name: str) -> str:
    """Return the name of the parameter with the key before the key *name*, which exists during a rotation."""
    return f"{name}.previous"


def generate() -> str:
    """Return a new private key as the text of an OpenSSH key file, not encrypted. It is a secret."""
    key = Ed25519PrivateKey.generate()
    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode("ascii")


def public_line(private_key: str) -> str:
    """
    Return the public half of *private_key*, ``ssh-ed25519 AAAA...`` without a comment, for ``authorized_keys``.

    Raises:
        ConfigError: *private_key* is not an Ed25519 key as ``generate`` returns it.
    """
    key = _loaded(private_key, "SSH key").public_key()
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode("ascii")


def fingerprint(host_key: str) -> str:
    """Return the kind of an SSH host key and its fingerprint, as ``ssh-keygen -l`` prints it; else the key itself."""
    try:
        kind, encoded = host_key.split()[:2]
        digest = hashlib.sha256(base64.b64decode(encoded)).digest()
    except ValueError:  # only a hand in the database can have written it
        return host_key
    return f"{kind} SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def signer(private_key: str) -> Callable[[bytes], bytes]:
    """
    Return the function that signs a message (Ed25519) with *private_key*, the installation key.

    Raises:
        ConfigError: as ``public_line``.
    """
    return _loaded(private_key, "installation key").sign


def public_keys(lines: str) -> tuple[bytes, ...]:
    """
    Return the public installation keys in *lines*, ``ssh-ed25519 AAAA... COMMENT`` or empty: 32 bytes each.

    Raises:
        ConfigError: a line is something else.
    """
    found = []
    for line in filter(str.strip, lines.splitlines()):
        try:
            key = load_ssh_public_key(line.encode())
        except (ValueError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, Ed25519PublicKey):
            message = (
                f"the public installation key {line!r} is not an Ed25519 key as ssh-keygen writes it: ssh-ed25519 …"
            )
            raise ConfigError([message])
        found.append(key.public_bytes_raw())
    return tuple(found)


def _loaded(private_key: str, name: str) -> Ed25519PrivateKey:
    try:
        key = load_ssh_private_key(private_key.encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        # Raised outside the handler, because the parser's message may hold a part of the secret.
        raise ConfigError([f"the {name} is not an Ed25519 private key in OpenSSH form without a passphrase"])
    return key
