"""
A stateful local server of Hetzner's Robot web service, for tests and simulated environments.

It answers the operations on servers, resets, boot configurations and SSH keys as
published at https://robot.hetzner.com/doc/webservice/en.html, but for the limits
of requests. Where the description is silent, it does what makes a careless client
fail: an active boot configuration cannot be activated again, and a reset cannot
be taken back.
"""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

from simulator.providers.hetzner.objects import (
    BOOTS,
    CHOICE,
    OFFERED,
    Armed,
    Json,
    RobotKey,
    RobotRefused,
    RobotServer,
    boot,
    identity,
    key_json,
    listed,
)
from simulator.providers.kit.credentials import basic
from simulator.providers.kit.hardware import Hardware
from simulator.providers.kit.http_server import HttpRequest, Reply
from simulator.providers.kit.machines import RequestRefused, States
from simulator.providers.kit.rest import Call, RestApi, route


class HetznerRobot(RestApi):
    """
    The web service on its own port; a context manager.

    All methods are safe to use from any thread while it runs. The records it
    returns are copies.
    """

    states = States(active="ready")

    def __init__(
        self, hardware: Hardware, *, servers: Sequence[RobotServer], authorized_key: str = "", **more: Any
    ) -> None:
        """Create the account with its *servers*, which accept *authorized_key*; its secret is ``USER:PASSWORD``."""
        super().__init__(hardware, **more)
        self.keys: dict[str, RobotKey] = {}
        for server in servers:
            server.authorized_key = authorized_key
            self.machines.add_active(server)

    def error(self, refused: RequestRefused) -> Any:
        """See ``RestApi``."""
        code, more = "UNAUTHORIZED" if refused.status == HTTPStatus.UNAUTHORIZED else "NOT_FOUND", {}
        if isinstance(refused, RobotRefused):
            code, more = refused.code, refused.more
        return {"error": {"status": refused.status, "code": code, "message": code.lower(), **more}}

    # Servers and resets

    @route("GET", "/server")
    def list_servers(self, _: Call) -> Any:
        """List the servers."""
        return [{"server": listed(server)} for server in self.machines.all.values()]

    @route("GET", "/server/{number}")
    def get_server(self, _: Call, number: str) -> Any:
        """Return a server."""
        server = self._rented(number)
        flags = {kind: kind in server.boots for kind in BOOTS if kind != "linux"}
        more = {"reset": bool(server.resets), "wol": False, "hot_swap": False, "linked_storagebox": None}
        return {"server": {**listed(server), **flags, **more}}

    @route("GET", "/reset/{number}")
    def get_resets(self, _: Call, number: str) -> Any:
        """Return the ways in which a server can be reset."""
        server = self._resettable(number)
        status = ("shut off" if server.off else "running") if "power" in server.resets else "not supported"
        return {"reset": {**identity(server), "type": list(server.resets), "operating_status": status}}

    @route("POST", "/reset/{number}")
    def reset(self, call: Call, number: str) -> Any:
        """Begin to reset a server."""
        kind = _form(call, "type")["type"]
        server = self._resettable(number)
        if kind not in server.resets:
            raise RobotRefused("INVALID_INPUT", invalid=["type"])
        self.machines.timers.after(self.options.action_seconds, lambda: self._take_effect(server, kind))
        return {"reset": {**identity(server), "type": kind}}

    # Boot configurations

    @route("GET", "/boot/{number}")
    def get_boots(self, _: Call, number: str) -> Any:
        """Return the boot configurations of a server."""
        server = self._bootable(number)
        return {"boot": {kind: boot(server, kind, self.keys) if kind in server.boots else None for kind in BOOTS}}

    @route("POST", "/boot/{number}/rescue")
    @route("POST", "/boot/{number}/linux")
    def activate(self, call: Call, number: str) -> Any:
        """Activate a boot configuration."""
        kind = call.path.rpartition("/")[2]
        form = _form(call, CHOICE[kind])
        server, keys = self._bootable(number, kind), tuple(filter(None, [form.get("authorized_key")]))
        invalid = [CHOICE[kind]] if form[CHOICE[kind]] not in OFFERED[kind] else []
        invalid += ["lang"] if form.get("lang", "en") != "en" else []
        invalid += ["authorized_key"] if set(keys) - set(self.keys) else []
        if invalid:
            raise RobotRefused("INVALID_INPUT", invalid=invalid)
        if server.armed is not None:
            raise RobotRefused("BOOT_ALREADY_ENABLED")
        server.armed = Armed(kind=kind, choice=form[CHOICE[kind]], keys=keys)
        return {kind: boot(server, kind, self.keys)}

    @route("DELETE", "/boot/{number}/rescue")
    @route("DELETE", "/boot/{number}/linux")
    def deactivate(self, call: Call, number: str) -> Any:
        """Deactivate a boot configuration."""
        kind = call.path.rpartition("/")[2]
        server = self._bootable(number, kind)
        if server.armed is not None and server.armed.kind == kind:
            server.armed = None
        return {kind: boot(server, kind, self.keys)}

    # SSH keys

    @route("GET", "/key")
    def list_keys(self, _: Call) -> Any:
        """List the keys."""
        if not self.keys:
            raise RobotRefused("NOT_FOUND")
        return [{"key": key_json(key)} for key in self.keys.values()]

    @route("POST", "/key")
    def post_key(self, call: Call) -> Reply:
        """Add a key."""
        form = _form(call, "name", "data")
        key = RobotKey(name=form["name"], line=" ".join(form["data"].split()[:2]))
        if not key.fingerprint or not key.name:
            raise RobotRefused("INVALID_INPUT", invalid=["name" if key.fingerprint else "data"])
        if key.fingerprint in self.keys:
            raise RobotRefused("KEY_ALREADY_EXISTS")
        self.keys[key.fingerprint] = key
        return Reply(status=201, body={"key": key_json(key)})

    def logged_in(self, http: HttpRequest) -> bool:
        """See ``RestApi``."""
        return basic(http, self.secret)

    def _rented(self, number: str) -> RobotServer:
        if number not in self.machines.all:
            raise RobotRefused("SERVER_NOT_FOUND")
        found: RobotServer = self.machines.all[number]
        return found

    def _resettable(self, number: str) -> RobotServer:
        server = self._rented(number)
        if not server.resets:
            raise RobotRefused("RESET_NOT_AVAILABLE")
        return server

    def _bootable(self, number: str, kind: str | None = None) -> RobotServer:
        server = self._rented(number)
        if not server.boots or (kind is not None and kind not in server.boots):
            raise RobotRefused("BOOT_NOT_AVAILABLE")
        return server

    def _take_effect(self, server: RobotServer, kind: str) -> None:
        """Reset the hardware; if it boots, carry out the boot configuration that is active by now."""
        with self.machines.lock:
            happens = server.take_effect(kind)
        if happens is not None:
            getattr(self.machines.hardware, happens)(server.id)


def _form(call: Call, *required: str) -> Json:
    """
    Return the fields of a form.

    Raises:
        RobotRefused: one of the *required* is missing.
    """
    form = dict(parse_qsl(call.http.content.decode(), keep_blank_values=True))
    if missing := [name for name in required if name not in form]:
        raise RobotRefused("INVALID_INPUT", missing=missing)
    return form
