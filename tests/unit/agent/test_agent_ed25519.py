import hashlib

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from agent.shepherd_agent.ed25519 import SEED_LENGTH, PrivateKey, verify

_SEED = st.binary(min_size=SEED_LENGTH, max_size=SEED_LENGTH)


@given(_SEED, st.binary(max_size=5000))
def test_keys_and_signatures_are_those_of_the_library(seed: bytes, message: bytes) -> None:
    """The server checks signatures with a library; both are deterministic, so they must be equal."""
    key, other = PrivateKey(seed), Ed25519PrivateKey.from_private_bytes(seed)
    assert (key.public, key.sign(message)) == (other.public_key().public_bytes_raw(), other.sign(message))
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
    for other in range(int.from_bytes(signature[32:], "little") + _ORDER, 1 << 256, _ORDER):
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
