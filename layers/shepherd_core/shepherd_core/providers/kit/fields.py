"""Texts and addresses from outside that Shepherd keeps or connects to, checked once for all providers."""

from __future__ import annotations

import json
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING, Any

from shepherd_core.domain.machine import INVALID

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST_TEXT = 128
MOST_VALUES = 2_000_000
"""In one JSON document. A value takes about 70 bytes in Python: these fit into a function's 512 MB. The listing of
100,000 Hetzner servers has 1.3 million."""


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


def from_json(document: bytes, objects: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """
    Return the value of a JSON document; *objects* makes its objects, by default dictionaries.

    Raises:
        ValueError: it is not JSON, has more than ``MOST_VALUES`` values, or is nested deeper than Python can follow.
    """
    if sum(map(document.count, (b",", b"[", b"{"))) > MOST_VALUES:
        message = f"it has more than {MOST_VALUES} values"
        raise ValueError(message)
    try:
        return json.loads(document, object_pairs_hook=objects)
    except RecursionError as error:
        message = "it is nested too deeply"
        raise ValueError(message) from error
