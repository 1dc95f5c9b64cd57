"""Shepherd's SSH key: Ed25519, in OpenSSH's file format."""

from __future__ import annotations

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
)

from shepherd_core.domain.errors import ConfigError


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
    try:
        key = load_ssh_private_key(private_key.encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        # Raised outside of the handler: the parser's message may hold a part of the secret.
        raise ConfigError(["the SSH key is not an Ed25519 private key in OpenSSH form without a passphrase"])
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode("ascii")
