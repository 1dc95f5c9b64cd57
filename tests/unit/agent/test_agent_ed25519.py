"""The agent's own Ed25519 against the standard and a library."""

import hashlib

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from agent.shepherd_agent.ed25519 import KEY_LENGTH, SEED_LENGTH, PrivateKey, verify

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
    assert verify(key.public, bytes.fromhex(signature), bytes.fromhex(message))


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


_ORDER = 2**252 + 27742317777372353535851937790883648493
_SMALL = [
    "0100000000000000000000000000000000000000000000000000000000000000",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
]
_NOT_CANONICAL = [
    "0100000000000000000000000000000000000000000000000000000000000080",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
]


def _library_verifies(key: bytes, signature: bytes, message: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


@given(_SEED, st.binary(max_size=500), st.integers(0, 1023), st.integers(0, 2))
def test_a_signature_is_accepted_as_by_the_library(seed: bytes, message: bytes, bit: int, what: int) -> None:
    """As it is, and with any bit of key, signature or message changed."""
    private = Ed25519PrivateKey.from_private_bytes(seed)
    parts = [private.public_key().public_bytes_raw(), private.sign(message), message]
    assert verify(*parts)
    if parts[what]:
        changed = bytearray(parts[what])
        changed[bit // 8 % len(changed)] ^= 1 << bit % 8
        parts[what] = bytes(changed)
        assert verify(*parts) == _library_verifies(*parts)


@given(_SEED, st.binary(max_size=500))
def test_a_signature_has_one_form(seed: bytes, message: bytes) -> None:
    """Another proof that is equal modulo the order would be a second signature of the same message."""
    private = Ed25519PrivateKey.from_private_bytes(seed)
    key, signature = private.public_key().public_bytes_raw(), private.sign(message)
    proof = int.from_bytes(signature[32:], "little")
    for other in range(proof + _ORDER, 1 << 256, _ORDER):
        assert not verify(key, signature[:32] + other.to_bytes(32, "little"), message)
    for length in (0, 63, 65):
        assert not verify(key, (signature + b"\0")[:length], message)
    for length in (0, 31, 33):
        assert not verify((key + b"\0")[:length], signature, message)


@pytest.mark.parametrize("key", [*_SMALL, *_NOT_CANONICAL])
def test_a_key_with_which_every_message_is_signed_is_refused(key: str) -> None:
    """With a point of small order, the signature of no secret fits every message, or one in eight."""
    for commitment in [*_SMALL, *_NOT_CANONICAL]:
        signature = bytes.fromhex(commitment) + bytes(32)
        assert not any(verify(bytes.fromhex(key), signature, bytes([number])) for number in range(3))


@pytest.mark.parametrize("commitment", [*_SMALL, *_NOT_CANONICAL])
def test_a_commitment_of_small_order_counts_in_canonical_form_alone(commitment: str) -> None:
    """Made with the private key, so that it is no forgery; libraries that decode it would accept both forms."""
    seed, message = b"s" * 32, b"a message"
    scalar = int.from_bytes(hashlib.sha512(seed).digest()[:32], "little") & ~7 & (1 << 254) - 1 | 1 << 254
    key, encoded = PrivateKey(seed).public, bytes.fromhex(commitment)
    challenge = int.from_bytes(hashlib.sha512(encoded + key + message).digest(), "little")
    signature = encoded + (challenge * scalar % _ORDER).to_bytes(32, "little")
    assert verify(key, signature, message) == (commitment == _SMALL[0])
    assert _library_verifies(key, signature, message) == (commitment == _SMALL[0])


@given(st.binary(min_size=KEY_LENGTH, max_size=KEY_LENGTH), st.binary(min_size=64, max_size=64))
def test_no_bytes_make_the_verification_fail(key: bytes, signature: bytes) -> None:
    """A half of all keys are no points; whatever comes, the answer is no."""
    assert not verify(key, signature, b"")
