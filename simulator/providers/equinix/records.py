"""The records of the simulated Equinix API: reservations, devices and SSH keys."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import hashlib
import re
from dataclasses import dataclass, field

from simulator.providers.kit.machines import FakeMachine

PENDING = ("queued", "provisioning", "reinstalling")
"""The states in which a device is being made; it cannot be deleted meanwhile."""


def _now() -> str:
    """Return the time of day in the format of the API."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(kw_only=True)
class ReservationRecord:
    """A server that the project has reserved: capacity."""

    id: str = ""
    """Filled in when left empty."""
    plan: str = "c3.small.x86"
    facility: str = "da11"
    provisionable: bool = True
    """Set by the vendor; the API shows false also for a spare, and while a device occupies it."""
    spare: bool = False

    @property
    def metro(self) -> str:
        """Return the code of its metro."""
        return metro_of(self.facility)


@dataclass(kw_only=True)
class DeviceRecord(FakeMachine):
    """A deployed server."""

    hostname: str
    plan: str
    facility: str
    operating_system: str
    reservation_id: str | None
    state: str = "queued"
    tags: list[str] = field(default_factory=list)
    ssh_keys: list[KeyRecord] = field(default_factory=list)
    """The keys that were put on the machine."""
    private_address: str | None = None


@dataclass(kw_only=True)
class KeyRecord:
    """An SSH public key of the project."""

    id: str
    label: str
    key: str
    created_at: str = field(default_factory=_now)


def metro_of(facility: str) -> str:
    """Return the metro of a facility: ``da`` for ``da11``."""
    return facility.rstrip("0123456789")


def fingerprint(key: str) -> str | None:
    """Return the MD5 fingerprint of a public key in OpenSSH's format, None if *key* is not one."""
    parts = key.split()
    if len(parts) < 2 or not re.fullmatch(r"(ssh|ecdsa|sk)-[a-z0-9@.-]+", parts[0]):  # noqa: PLR2004 - type, key
        return None
    try:
        blob = base64.b64decode(parts[1], validate=True)
    except binascii.Error:
        return None
    if blob[4 : 4 + len(parts[0])] != parts[0].encode():
        return None
    digest = hashlib.md5(blob, usedforsecurity=False).hexdigest()
    return ":".join(digest[at : at + 2] for at in range(0, len(digest), 2))
