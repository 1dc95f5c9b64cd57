"""The relays that the agents of a provider or location report through."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_WANTED = "must be PROVIDER=HOST:PORT or PROVIDER/LOCATION=HOST:PORT, separated by commas"
_LONGEST_PORT = 65_535


@dataclass(frozen=True, slots=True)
class Relays:
    """The relays by provider, and by provider and location."""

    by_place: Mapping[str, str] = field(default_factory=dict)
    """``HOST:PORT`` by ``PROVIDER`` or ``PROVIDER/LOCATION``."""

    def of(self, provider: str | None, location: str | None) -> str:
        """Return the relay of a machine, as ``HOST:PORT``: that of its location, else that of its provider; or none."""
        return self.by_place.get(f"{provider}/{location}") or self.by_place.get(f"{provider}") or ""


def parse_relays(text: str) -> Relays:
    """
    Return the relays in *text*, such as ``hetzner/fsn1=10.0.0.5:7070, redfish=10.1.0.5:7070``.

    Raises:
        ValueError: *text* is not of that form, or names a place twice.
    """
    by_place: dict[str, str] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        place, _, relay = part.partition("=")
        host, _, port = relay.strip().rpartition(":")
        number = port.isascii() and port.isdigit() and 0 < int(port) <= _LONGEST_PORT
        if not place.strip() or not host or not number or not relay.isascii() or " " in relay.strip():
            message = f"{part} is not a relay: {_WANTED}"
            raise ValueError(message)
        if place.strip() in by_place:
            message = f"{place.strip()} has two relays; it may have one"
            raise ValueError(message)
        by_place[place.strip()] = relay.strip()
    return Relays(by_place)
