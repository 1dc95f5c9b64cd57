"""The agent's own Ed25519 against the standard and a library."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from agent.shepherd_agent.ed25519 import SEED_LENGTH, PrivateKey

_SEED = st.binary(min_size=SEED_LENGTH, max_size=SEED_LENGTH)


@pytest.mark.parametrize(
    ("seed", "public", "message", "signature"),
    [
        (
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "",
            (
                "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555"
                "fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
            ),
        ),
        (
            "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
            "72",
            (
                "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
                "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
            ),
        ),
        (
            "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
            "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
            "af82",
            (
                "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
                "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"
            ),
        ),
    ],
)
def test_keys_and_signatures_are_those_of_the_standard(seed: str, public: str, message: str, signature: str) -> None:
    """RFC 8032, section 7.1."""
    key = PrivateKey(bytes.fromhex(seed))
    assert key.public.hex() == public
    assert key.sign(bytes.fromhex(message)).hex() == signature


@given(_SEED, st.binary(max_size=5000))
def test_keys_and_signatures_are_those_of_the_library(seed: bytes, message: bytes) -> None:
    """The server checks signatures with a library; both are deterministic, so they must be equal."""
    key, other = PrivateKey(seed), Ed25519PrivateKey.from_private_bytes(seed)
    assert key.public == other.public_key().public_bytes_raw()
    assert key.sign(message) == other.sign(message)


@given(_SEED)
def test_a_private_key_does_not_show_itself(seed: bytes) -> None:
    """Whatever prints it by mistake must not print the key."""
    key = PrivateKey(seed)
    assert "object at" in repr(key) == str(key)
