"""Texts and addresses from outside that Shepherd keeps or connects to, checked once for all providers."""

from __future__ import annotations

import base64
import json
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING, Any
from uuid import UUID

from shepherd_core.adapters.http.bounded_answer import AnswerTooLong, check_values
from shepherd_core.domain.machine import INVALID, LONGEST_TEXT

if TYPE_CHECKING:
    from collections.abc import Callable

_LONGEST_KEY = 4096  # an RSA key of 16384 bits has 2,800
_HOST_KEY_KINDS = {"ssh-ed25519", "ssh-rsa", *(f"ecdsa-sha2-nistp{bits}" for bits in (256, 384, 521))}


def text(value: object) -> str | None:
    """Return *value* if the BMDB can hold it: PostgreSQL has no NUL, and UTF-8 no lone surrogates."""
    return value if isinstance(value, str) and len(value) <= LONGEST_TEXT and value.isprintable() else None


def identifier(value: object) -> str | None:
    """Return *value* if it can name a machine or its capacity."""
    return None if value in ("", INVALID) else text(value)


def address(value: object) -> IPv4Address | IPv6Address | None:
    """Return *value*, a text, as an address that one machine can have."""
    try:
        found = ip_address(value) if isinstance(value, str) else None
    except ValueError:
        return None
    if found is None or found.is_unspecified or found.is_multicast or getattr(found, "scope_id", None):
        return None
    return found


def token(value: object, prefix: str = "") -> UUID | None:
    """Return the token (the machine id) in *value*, a text that begins with *prefix*."""
    try:
        return UUID(value.removeprefix(prefix)) if isinstance(value, str) and value.startswith(prefix) else None
    except ValueError:
        return None


def host_key(value: object) -> str | None:
    """Return *value*, an SSH host key as a ``.pub`` file has it (``ssh-ed25519 AAAA... name``), without its comment."""
    words = value.split() if isinstance(value, str) and len(value) <= _LONGEST_KEY else []
    if len(words) < 2 or words[0] not in _HOST_KEY_KINDS:  # noqa: PLR2004 - kind and key
        return None
    try:
        content = base64.b64decode(words[1], validate=True)
    except ValueError:
        return None
    named = len(words[0]).to_bytes(4, "big") + words[0].encode()
    return f"{words[0]} {words[1]}" if content.startswith(named) and len(content) > len(named) else None


def from_json(document: bytes, objects: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """
    Return the value of a JSON document; *objects* makes its objects, by default dictionaries.

    Raises:
        ValueError: it is not JSON, has too many values, or is nested deeper than Python can follow.
    """
    try:
        check_values(document)
        return json.loads(document, object_pairs_hook=objects)
    except AnswerTooLong as error:
        raise ValueError(str(error)) from error
    except RecursionError as error:
        message = "it is nested too deeply"
        raise ValueError(message) from error
