"""The servers, boot configurations and keys of the simulated Robot web service, and their objects in its answers."""

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.providers.kit.machines import FakeMachine, RequestRefused

Json = dict[str, Any]

BOOTS = ("rescue", "linux", "vnc", "windows", "plesk", "cpanel")
OFFERED = {"rescue": ("linux", "vkvm"), "linux": ("Debian 12 base", "Rocky Linux 9 base", "Ubuntu 24.04 LTS base")}
"""The choices of each boot configuration."""
CHOICE = {"rescue": "os", "linux": "dist"}
"""The field with the choice, by boot configuration."""
_PASSWORD = "password-that-no-error-may-hold"  # noqa: S105 - made up
_STATUS = {
    "INVALID_INPUT": 400,
    "KEY_ALREADY_EXISTS": 409,
    "BOOT_ALREADY_ENABLED": 409,
}
"""By code, where it is not 404."""


class RobotRefused(RequestRefused):
    """The answer is an error with this code, and nothing has changed."""

    def __init__(self, code: str, **more: list[str] | int) -> None:
        self.code = code
        self.more = more
        super().__init__(_STATUS.get(code, 404), code)


@dataclass(frozen=True, kw_only=True)
class Armed:
    """An active boot configuration: the next boot carries it out."""

    kind: str
    choice: str
    """The distribution, or the operating system of the rescue system."""
    keys: tuple[str, ...] = ()
    """Fingerprints of SSH keys."""


@dataclass(kw_only=True)
class RobotServer(FakeMachine):
    """A rented server, by its number; fields that are not given are made up."""

    ipv4: bool = True
    ipv6_net: str | None = "2001:db8:42::"
    dc: str = "FSN1-DC1"
    cancelled: bool = False
    resets: Sequence[str] = ("sw", "hw", "man")
    """Empty: Robot cannot reset it."""
    boots: Sequence[str] = ("rescue", "linux", "vnc")
    """Empty: Robot cannot configure what it boots."""

    armed: Armed | None = None
    off: bool = False

    def take_effect(self, kind: str) -> str | None:
        """Apply a reset, and return the name of the method of ``Hardware`` to call; None: nothing happens to it."""
        boots = {"sw": not self.off, "hw": not self.off, "power": self.off}.get(kind, False)
        if not boots:
            halts = kind in ("power", "power_long")
            self.off = self.off or halts
            return "power_off" if halts else None
        armed, self.armed, off, self.off = self.armed, None, self.off, False
        return "reinstall" if armed is not None else "power_on" if off else "reboot"


@dataclass(frozen=True, kw_only=True)
class RobotKey:
    """An SSH key of the key store."""

    name: str
    line: str

    @property
    def fingerprint(self) -> str:
        """Return its MD5 fingerprint, which identifies it."""
        return fingerprint(self.line) or ""


def identity(server: RobotServer) -> Json:
    """Return the fields that identify a server in each of its objects."""
    ip = server.address if server.ipv4 else None
    return {"server_ip": ip, "server_ipv6_net": server.ipv6_net, "server_number": int(server.id)}


def listed(server: RobotServer) -> Json:
    """Return a server as a listing shows it."""
    return {
        **identity(server),
        "server_name": server.name,
        "product": "AX41-NVMe",
        "dc": server.dc,
        "traffic": "unlimited",
        "status": server.state,
        "cancelled": server.cancelled,
        "paid_until": "2027-01-31",
        "ip": [server.address] if server.ipv4 else None,
        "subnet": None if server.ipv6_net is None else [{"ip": server.ipv6_net, "mask": "64"}],
    }


def key_json(key: RobotKey) -> Json:
    """Return a key of the key store."""
    return {**_key_name(key), "data": key.line, "created_at": "2026-01-31 23:59:59"}


def _key_name(key: RobotKey) -> Json:
    return {"name": key.name, "fingerprint": key.fingerprint, "type": "ED25519", "size": 256}


def boot(server: RobotServer, kind: str, keys: Mapping[str, RobotKey]) -> Json:
    """Return a boot configuration: the values in force if it is active, else the choices."""
    armed = server.armed if server.armed is not None and server.armed.kind == kind else None
    body: Json = {**identity(server), "active": armed is not None, "password": None if armed is None else _PASSWORD}
    if kind not in CHOICE:
        return {**body, "dist": None, "lang": None}
    body[CHOICE[kind]] = list(OFFERED[kind]) if armed is None else armed.choice
    if kind == "linux":
        body["lang"] = ["en"] if armed is None else "en"
    authorized = [keys[name] for name in (armed.keys if armed else ()) if name in keys]
    return {**body, "authorized_key": [{"key": _key_name(key)} for key in authorized], "host_key": []}


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
