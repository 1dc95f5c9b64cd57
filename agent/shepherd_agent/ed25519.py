"""Ed25519 key pairs and signatures (RFC 8032, section 5.1), which Python's standard library lacks."""

from __future__ import annotations

import hashlib

SEED_LENGTH = 32
KEY_LENGTH = 32
SIGNATURE_LENGTH = 64

_P = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, -1, _P) % _P
_ROOT_OF_MINUS_ONE = pow(2, (_P - 1) // 4, _P)
_X = 15112221349535400772501151409588531511454012693041857206046113283949847762202
_Y = 46316835694926478169428394003475163141307993866256225615783033603165251855960

# Points are (X, Y, Z, T) with x = X/Z, y = Y/Z, x*y = T/Z: no division until the end.
_BASE = (_X, _Y, 1, _X * _Y % _P)
_NEUTRAL = (0, 1, 1, 0)


class PrivateKey:
    """A private key; it cannot be read from outside."""

    def __init__(self, seed: bytes) -> None:
        """Derive the key from *seed*: 32 random bytes."""
        digest = hashlib.sha512(seed).digest()
        scalar = bytearray(digest[:32])
        scalar[0] &= 0b1111_1000
        scalar[31] &= 0b0111_1111
        scalar[31] |= 0b0100_0000
        self._scalar = int.from_bytes(scalar, "little")
        self._prefix = digest[32:]
        self.public = _compress(_multiply(self._scalar, _BASE))
        """The public key, 32 bytes."""

    def sign(self, message: bytes) -> bytes:
        """Return the signature of *message*, 64 bytes; takes a few milliseconds."""
        nonce = _hash(self._prefix, message)
        commitment = _compress(_multiply(nonce, _BASE))
        proof = (nonce + _hash(commitment, self.public, message) * self._scalar) % _ORDER
        return commitment + proof.to_bytes(32, "little")


def verify(key: bytes, signature: bytes, message: bytes) -> bool:
    """
    Return whether *signature* is that of *message* by the holder of the public *key*; takes some tens of ms.

    Strict: the key and both halves of the signature must be in their only canonical form, and the key must not be one
    of the few points of small order, with which one signature fits many messages. The equation is checked without the
    factor 8, as libraries do.
    """
    if len(signature) != SIGNATURE_LENGTH:
        return False
    point, commitment, proof = _decompress(key), signature[:32], int.from_bytes(signature[32:], "little")
    if point is None or proof >= _ORDER or _is_small(point):
        return False
    x, y, z, t = _multiply(_hash(commitment, key, message), point)
    return _compress(_add(_multiply(proof, _BASE), (-x % _P, y, z, -t % _P))) == commitment


def _hash(*parts: bytes) -> int:
    return int.from_bytes(hashlib.sha512(b"".join(parts)).digest(), "little") % _ORDER


def _multiply(scalar: int, point: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    result = _NEUTRAL
    # The same steps for every scalar, so that the run time reveals little of it.
    for bit in range(255):
        results = (result, _add(result, point))
        result = results[scalar >> bit & 1]
        point = _add(point, point)
    return result


def _compress(point: tuple[int, int, int, int]) -> bytes:
    x, y, z, _ = point
    inverse = pow(z, -1, _P)
    x, y = x * inverse % _P, y * inverse % _P
    return (y | (x & 1) << 255).to_bytes(32, "little")


def _decompress(encoded: bytes) -> tuple[int, int, int, int] | None:
    """Return the point that *encoded* stands for (RFC 8032, section 5.1.3); None: none, or not in canonical form."""
    if len(encoded) != KEY_LENGTH:
        return None
    number = int.from_bytes(encoded, "little")
    sign, y = number >> 255, number & (1 << 255) - 1
    if y >= _P:
        return None
    square = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    x = pow(square, (_P + 3) // 8, _P)
    if x * x % _P != square:
        x = x * _ROOT_OF_MINUS_ONE % _P
    if x * x % _P != square or (x == 0 and sign):
        return None
    if x & 1 != sign:
        x = _P - x
    return x, y, 1, x * y % _P


def _is_small(point: tuple[int, int, int, int]) -> bool:
    """Return whether eight times *point* is the neutral element."""
    for _ in range(3):
        point = _add(point, point)
    x, y, z, _ = point
    return x == 0 and y == z


def _add(p: tuple[int, int, int, int], q: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    a = (p[1] - p[0]) * (q[1] - q[0]) % _P
    b = (p[1] + p[0]) * (q[1] + q[0]) % _P
    c = 2 * p[3] * q[3] * _D % _P
    d = 2 * p[2] * q[2] % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P
