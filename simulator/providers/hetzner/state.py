"""The servers, boot configurations and keys of the simulated Robot web service, and the operations on them."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from simulator.providers.equinix.records import fingerprint
from simulator.providers.hetzner.description import BOOTS, RESETS
from simulator.providers.kit.hardware import Hardware
from simulator.providers.kit.timers import Timers

Json = dict[str, Any]

DISTRIBUTIONS = ("Debian 12 base", "Rocky Linux 9 base", "Ubuntu 24.04 LTS base")
SYSTEMS = ("linux", "vkvm")
_CHOICE = {"rescue": "os", "linux": "dist"}
_OFFERED = {"rescue": SYSTEMS, "linux": DISTRIBUTIONS}
_PASSWORD = "password-that-no-error-may-hold"  # noqa: S105 - made up


class RobotRefused(Exception):
    """The answer is an error, and nothing has changed."""

    def __init__(self, code: str, **more: list[str] | int) -> None:
        self.code = code
        self.more = more
        super().__init__(code)


@dataclass(frozen=True, kw_only=True)
class Armed:
    """An active boot configuration: the next boot carries it out."""

    kind: str
    choice: str
    """The distribution, or the operating system of the rescue system."""
    keys: tuple[str, ...] = ()
    """Fingerprints of SSH keys."""


@dataclass(kw_only=True)
class RobotServer:
    """A rented server; fields that are not given are made up."""

    number: int = 0
    name: str
    ip: str | None = ""
    """Empty: the address of the hardware. None: IPv6 only."""
    ipv6_net: str | None = "2001:db8:42::"
    dc: str = "FSN1-DC1"
    status: str = "ready"
    cancelled: bool = False
    resets: Sequence[str] = ("sw", "hw", "man")
    """Empty: Robot cannot reset it."""
    boots: Sequence[str] = ("rescue", "linux", "vnc")
    """Empty: Robot cannot configure what it boots."""

    armed: Armed | None = None
    off: bool = False
    hung: bool = False
    """Its operating system ignores Ctrl+Alt+Del and the power button."""
    technician: bool = False
    """A technician is on the way to reset it."""
    resets_done: list[str] = field(default_factory=list)
    """The types of the resets that were accepted."""
    boots_done: list[str] = field(default_factory=list)
    """Each boot: ``disk``, or kind and choice of the active boot configuration."""


@dataclass(frozen=True, kw_only=True)
class RobotKey:
    """An SSH key of the key store."""

    name: str
    line: str

    @property
    def fingerprint(self) -> str:
        """Return its MD5 fingerprint, which identifies it."""
        return fingerprint(self.line) or ""


class RobotState:
    """Hold ``lock`` to read or change it. Resets take effect on the timers' thread, *action_seconds* later."""

    def __init__(
        self, hardware: Hardware, servers: Iterable[RobotServer], authorized_key: str, action_seconds: float
    ) -> None:
        self.lock = threading.RLock()
        self.timers = Timers()
        self.servers: dict[int, RobotServer] = {}
        self.keys: dict[str, RobotKey] = {}
        self._hardware = hardware
        self._action_seconds = action_seconds
        for server in servers:
            server.number = server.number or 1_000 + len(self.servers)
            address = hardware.rack(str(server.number), authorized_key, 0)
            server.ip = address if server.ip == "" else server.ip
            self.servers[server.number] = server

    def server(self, number: str) -> RobotServer:
        """
        Return a server.

        Raises:
            Refused: there is none with this number. The operations below raise it likewise.
        """
        if not number.isdecimal() or int(number) not in self.servers:
            raise RobotRefused("SERVER_NOT_FOUND")
        return self.servers[int(number)]

    def list_servers(self) -> list[Json]:
        """GET /server."""
        return [{"server": _listed(server)} for server in self.servers.values()]

    def get_server(self, number: str) -> Json:
        """GET /server/{number}."""
        server = self.server(number)
        flags = {kind: kind in server.boots for kind in BOOTS if kind != "linux"}
        more = {"reset": bool(server.resets), "wol": False, "hot_swap": False, "linked_storagebox": None}
        return {"server": {**_listed(server), **flags, **more}}

    def get_resets(self, number: str) -> Json:
        """GET /reset/{number}."""
        server = self._resettable(number)
        status = ("shut off" if server.off else "running") if "power" in server.resets else "not supported"
        return {"reset": {**_identity(server), "type": list(server.resets), "operating_status": status}}

    def reset(self, number: str, form: Mapping[str, str]) -> Json:
        """POST /reset/{number}."""
        server = self._resettable(number)
        kind = form["type"]
        if kind not in server.resets or kind not in RESETS:
            raise RobotRefused("INVALID_INPUT", invalid=["type"])
        if server.technician:
            raise RobotRefused("RESET_MANUAL_ACTIVE")
        server.resets_done.append(kind)
        self.timers.after(self._action_seconds, lambda: self._take_effect(server, kind))
        return {"reset": {**_identity(server), "type": kind}}

    def get_boots(self, number: str) -> Json:
        """GET /boot/{number}."""
        server = self._bootable(number)
        return {"boot": {kind: _boot(self, server, kind) if kind in server.boots else None for kind in BOOTS}}

    def arm(self, number: str, kind: str, form: Mapping[str, str]) -> Json:
        """POST /boot/{number}/{kind}."""
        server = self._bootable(number, kind)
        keys = tuple(filter(None, [form.get("authorized_key")]))
        invalid = [_CHOICE[kind]] if form[_CHOICE[kind]] not in _OFFERED[kind] else []
        invalid += ["lang"] if form.get("lang", "en") != "en" else []
        invalid += ["authorized_key"] if set(keys) - set(self.keys) else []
        if invalid:
            raise RobotRefused("INVALID_INPUT", invalid=invalid)
        if server.armed is not None:
            raise RobotRefused("BOOT_ALREADY_ENABLED")
        server.armed = Armed(kind=kind, choice=form[_CHOICE[kind]], keys=keys)
        return {kind: _boot(self, server, kind)}

    def disarm(self, number: str, kind: str) -> Json:
        """DELETE /boot/{number}/{kind}."""
        server = self._bootable(number, kind)
        if server.armed is not None and server.armed.kind == kind:
            server.armed = None
        return {kind: _boot(self, server, kind)}

    def list_keys(self) -> list[Json]:
        """GET /key."""
        if not self.keys:
            raise RobotRefused("NOT_FOUND")
        return [{"key": _key(key)} for key in self.keys.values()]

    def add_key(self, form: Mapping[str, str]) -> Json:
        """POST /key."""
        key = RobotKey(name=form["name"], line=" ".join(form["data"].split()[:2]))
        if not key.fingerprint or not key.name:
            raise RobotRefused("INVALID_INPUT", invalid=["name" if key.fingerprint else "data"])
        if key.fingerprint in self.keys:
            raise RobotRefused("KEY_ALREADY_EXISTS")
        self.keys[key.fingerprint] = key
        return {"key": _key(key)}

    def _resettable(self, number: str) -> RobotServer:
        server = self.server(number)
        if not server.resets:
            raise RobotRefused("RESET_NOT_AVAILABLE")
        return server

    def _bootable(self, number: str, kind: str | None = None) -> RobotServer:
        server = self.server(number)
        if not server.boots or (kind is not None and kind not in server.boots):
            raise RobotRefused("BOOT_NOT_AVAILABLE")
        return server

    def _take_effect(self, server: RobotServer, kind: str) -> None:
        """Reset the hardware; if it boots, carry out the boot configuration that is active by now."""
        with self.lock:
            running, off = not server.off and not server.hung, server.off
            boots = {"sw": running, "hw": not off, "power": off}.get(kind, False)
            halts = kind == "power_long" or (kind == "power" and running)
            server.technician = kind == "man"
            server.off = (off or halts) and not boots
            server.hung = server.hung and not boots and not halts
            armed, name = server.armed, str(server.number)
            if boots:
                server.armed = None
                server.boots_done.append("disk" if armed is None else f"{armed.kind} {armed.choice}")
        if boots and armed is not None:
            self._hardware.reinstall(name)
        elif boots:
            (self._hardware.power_on if off else self._hardware.reboot)(name)
        elif halts:
            self._hardware.power_off(name)


def _identity(server: RobotServer) -> Json:
    return {"server_ip": server.ip, "server_ipv6_net": server.ipv6_net, "server_number": server.number}


def _listed(server: RobotServer) -> Json:
    return {
        **_identity(server),
        "server_name": server.name,
        "product": "AX41-NVMe",
        "dc": server.dc,
        "traffic": "unlimited",
        "status": server.status,
        "cancelled": server.cancelled,
        "paid_until": "2027-01-31",
        "ip": None if server.ip is None else [server.ip],
        "subnet": None if server.ipv6_net is None else [{"ip": server.ipv6_net, "mask": "64"}],
    }


def _key(key: RobotKey) -> Json:
    return {**_key_name(key), "data": key.line, "created_at": "2026-01-31 23:59:59"}


def _key_name(key: RobotKey) -> Json:
    return {"name": key.name, "fingerprint": key.fingerprint, "type": "ED25519", "size": 256}


def _boot(state: RobotState, server: RobotServer, kind: str) -> Json:
    """Return a boot configuration: the values in force if it is active, else the choices."""
    armed = server.armed if server.armed is not None and server.armed.kind == kind else None
    body: Json = {**_identity(server), "active": armed is not None, "password": None if armed is None else _PASSWORD}
    if kind not in _CHOICE:
        return {**body, "dist": None, "lang": None}
    body[_CHOICE[kind]] = list(_OFFERED[kind]) if armed is None else armed.choice
    if kind == "linux":
        body["lang"] = ["en"] if armed is None else "en"
    keys = [state.keys[name] for name in (armed.keys if armed else ()) if name in state.keys]
    return {**body, "authorized_key": [{"key": _key_name(key)} for key in keys], "host_key": []}
