"""The machine list of the Redfish provider: the fields about BMCs, besides those of every machine list."""

from __future__ import annotations

import re
from ipaddress import IPv6Address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from shepherd_core.providers.kit.machine_list import FIELDS, ListField, MachineList, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from shepherd_core.providers.kit.machine_list import Entry


def redfish_list(read: Callable[[], bytes]) -> MachineList:
    """Return the list that *read* returns; each entry has a Bmc and a Credential, maybe a System or a Fingerprint."""
    return MachineList(read, _FIELDS, _disagreements)


def hardware(entry: Entry) -> str:
    """Return what names the machine itself: its BMC and, if the list has it, its system there."""
    return f"{entry['Bmc']}{entry.get('System', '').rstrip('/')}"


def _bmc(value: object) -> str | None:
    """Return the normalized URL without a slash at the end, because URLs identify BMCs."""
    if not isinstance(value, str) or not value.isascii() or not value.isprintable() or " " in value:
        return None
    try:
        parts = urlsplit(value)
        port = parts.port
        host = parts.hostname or ""
        if ":" in host:
            host = f"[{IPv6Address(host)}]"
    except ValueError:
        return None
    if parts.scheme != "https" or not host or parts.path not in {"", "/"} or "@" in parts.netloc:
        return None
    if parts.query or parts.fragment:
        return None
    return f"https://{host}" if port in {None, 443} else f"https://{host}:{port}"


def _system(value: object) -> str | None:
    return _matching(r"/[!-~]+", value)


def _credential(value: object) -> str | None:
    return _matching(r"[A-Za-z0-9_.\-/]{1,1011}", value)


def _fingerprint(value: object) -> str | None:
    digits = _matching(r"([0-9a-fA-F]{2}:?){31}[0-9a-fA-F]{2}", value)
    return None if digits is None else digits.replace(":", "").lower()


def _matching(pattern: str, value: object) -> str | None:
    return value if isinstance(value, str) and re.fullmatch(pattern, value) else None


_FIELDS: Mapping[str, ListField] = {
    **FIELDS,
    "Bmc": ListField(_bmc, "the https URL of a BMC, without user, path or query"),
    "System": ListField(_system, "the path of the machine's ComputerSystem, as /redfish/v1/Systems/1", required=False),
    "Credential": ListField(_credential, "the name of the SSM parameter that holds user:password"),
    "Fingerprint": ListField(
        _fingerprint, "the SHA-256 fingerprint of the BMC's certificate, 64 hexadecimal digits", required=False
    ),
}


def _disagreements(entries: Mapping[str, Entry]) -> Iterator[str]:
    """Yield the contradictions by which two entries could mean one machine: equal, or possibly equal, systems."""
    known: dict[str, dict[str | None, str]] = {}
    for this, entry in entries.items():
        if "Bmc" in entry:
            # With and without a slash at the end it is the same system; BMCs differ in what they accept.
            system = None if "System" not in entry else entry["System"].rstrip("/")
            others = known.setdefault(entry["Bmc"], {})
            if others and (system is None or system in others or None in others):
                other = others.get(system, next(iter(others.values())))
                yield (
                    f"{this}: Bmc {shown(entry['Bmc'])} is that of {other} too; "
                    "each of them must have a System of its own"
                )
            others.setdefault(system, this)
