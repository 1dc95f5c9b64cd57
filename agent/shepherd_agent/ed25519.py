"""
Ed25519 key pairs (RFC 8032, section 5.1), since Python brings none.

The arithmetic takes a time that depends on the key. That is no leak here: the
only caller makes one fresh key in a process of its own.
"""

import hashlib

SEED_LENGTH = 32

_P = 2**255 - 19
_D = -121665 * pow(121666, -1, _P) % _P
_X = 15112221349535400772501151409588531511454012693041857206046113283949847762202
_Y = 46316835694926478169428394003475163141307993866256225615783033603165251855960

# Points are (X, Y, Z, T) with x = X/Z, y = Y/Z, x*y = T/Z: no division until the end.
_BASE = (_X, _Y, 1, _X * _Y % _P)
_NEUTRAL = (0, 1, 1, 0)


def public_key(seed: bytes) -> bytes:
    """Return the public key, 32 bytes, that belongs to the private key *seed*: 32 random bytes."""
    scalar = bytearray(hashlib.sha512(seed).digest()[:32])
    scalar[0] &= 0b1111_1000
    scalar[31] &= 0b0111_1111
    scalar[31] |= 0b0100_0000
    x, y, z, _ = _multiply(int.from_bytes(scalar, "little"), _BASE)
    inverse = pow(z, -1, _P)
    x, y = x * inverse % _P, y * inverse % _P
    return (y | (x & 1) << 255).to_bytes(32, "little")


def _multiply(scalar: int, point: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    result = _NEUTRAL
    while scalar:
        if scalar & 1:
            result = _add(result, point)
        point = _add(point, point)
        scalar >>= 1
    return result


def _add(p: tuple[int, int, int, int], q: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    a = (p[1] - p[0]) * (q[1] - q[0]) % _P
    b = (p[1] + p[0]) * (q[1] + q[0]) % _P
    c = 2 * p[3] * q[3] * _D % _P
    d = 2 * p[2] * q[2] % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P
