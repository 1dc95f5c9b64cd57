"""The agent's own Ed25519 against the standard and a library."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from agent.shepherd_agent.ed25519 import SEED_LENGTH, public_key


@pytest.mark.parametrize(
    ("seed", "public"),
    [
        (
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        ),
        (
            "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        ),
        (
            "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
            "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        ),
    ],
)
def test_public_keys_are_those_of_the_standard(seed: str, public: str) -> None:
    """RFC 8032, section 7.1."""
    assert public_key(bytes.fromhex(seed)).hex() == public


@given(st.binary(min_size=SEED_LENGTH, max_size=SEED_LENGTH))
def test_public_keys_are_those_of_the_library(seed: bytes) -> None:
    """The server will check signatures with a library of its own."""
    assert public_key(seed) == Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
