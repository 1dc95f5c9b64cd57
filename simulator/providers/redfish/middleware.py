"""
The BMC of each machine, in front of the emulator.

The emulator shows all systems to all clients. This adds what it lacks of a
BMC: one system for each BMC, users and sessions (few, as in real BMCs), the
lock-out after bad logins, boot overrides that end after one boot (the
emulator's never end), PowerCycle, ActionInfo, and the error messages of BMCs.
It also injects the faults Answer, Delay, Drop and Cut.
"""

import base64
import itertools
import json
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from simulator.providers.kit.fault_script import FaultScript
from simulator.providers.kit.http_server import HttpRequest, Reply
from simulator.providers.kit.middleware import Middleware

ROOT = "/redfish/v1"
SESSIONS = f"{ROOT}/SessionService/Sessions"
SESSION_SLOTS = 4
BAD_LOGINS = 3
"""After this number, the account is locked for good."""


class SimulatedBmc:
    """
    The BMC of one machine; tests may read and change its attributes.

    Safe to use from any thread.
    """

    def __init__(
        self,
        uuid: str,
        user: str,
        password: str,
        *,
        ask: Callable[[str, str, object], tuple[int, bytes]],
        shared_faults: FaultScript,
        closing: threading.Event,
    ) -> None:
        """*ask* sends a request to the emulator. *shared_faults* hold for all BMCs. *closing* ends all delays."""
        self.system = f"{ROOT}/Systems/{uuid}"
        """The path of its system."""
        self.user = user
        self.password = password
        self.faults = FaultScript()
        """The faults of this BMC; paths begin with ``/redfish/v1``."""
        self.calls: list[str] = []
        """The requests: method and path."""
        self.resets: list[str] = []
        """The types of the resets that it accepted."""
        self.reset_types: Sequence[str] | None = None
        """The reset types that it offers; None: those of the emulator."""
        self.plain = False
        """Whether the emulator itself answers, and none of this applies but the faults."""
        self.action_info = False
        """Whether it lists its reset types in an ActionInfo resource."""
        self.power: object = ...
        """The power state that it shows; ...: that of the emulator."""
        self.override = "Disabled"
        """``BootSourceOverrideEnabled`` of the emulator's boot override."""
        self.shown_override: str | None = None
        """The value that it shows instead, for a BMC that reports a wrong one; None: the real one."""
        self.pending: dict[str, str] | None = None
        """The boot override from the next reset on, for a BMC with a separate resource for it."""
        self.session_location: str | None = None
        """The location that it reports for a new session, for a BMC that reports a wrong one; None: the real one."""
        self.sessions: dict[str, str] = {}
        """The paths of the open sessions, by token."""
        self.bad_logins = 0
        self._ask = ask
        self._middleware = Middleware(self.faults, shared_faults, closing=closing)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def answer(self, call: HttpRequest) -> Reply | None:
        """Return the answer, None to close the connection without one."""
        with self._lock:
            self.calls.append(f"{call.method} {call.target}")
        reply = self._middleware.pass_on(call.method, call.target, call.path, lambda _: self._real(call))
        if reply is None:
            return None
        # BMCs close the connection after each answer.
        return replace(reply, headers={"Content-Type": "application/json", "Connection": "close", **reply.headers})

    def boots_from(self, device: str | None) -> str | None:
        """Return the device that the next boot uses instead of the disk; *device* is the emulator's boot device."""
        with self._lock:
            if (self.override == "Disabled" and not self.plain) or device not in {"Pxe", "Cd"}:
                return None
            if self.override == "Once":
                self.override = "Disabled"
            return device

    def _real(self, call: HttpRequest) -> Reply:
        path = call.path.rstrip("/")
        if self.plain:
            return self._forwarded(call.method, call.target, call.body)
        if path == SESSIONS and call.method == "POST":
            return self._log_in(call.body)
        if path not in {"/redfish", ROOT} and not self._known(call):
            return refusal(401, "NoValidSession", "There is no valid session established with the implementation.")
        reply = self._settings(call, path) or self._own(call, path)
        return reply or self._shown(path, self._forwarded(call.method, call.target, call.body))

    def _settings(self, call: HttpRequest, path: str) -> Reply | None:
        """Return the resource of the settings for the next reset, None if *path* is another or there is none."""
        if path != f"{self.system}/Settings" or self.pending is None:
            return None
        self.pending.update(call.body["Boot"] if call.method == "PATCH" else {})
        return Reply(status=200, body={"Id": "Settings", "Boot": {"HttpBootUri": None, **self.pending}})

    def _own(self, call: HttpRequest, path: str) -> Reply | None:
        """Return the answer, None if the emulator answers."""
        if call.method == "DELETE" and path in self.sessions.values():
            self.sessions = {token: other for token, other in self.sessions.items() if other != path}
            return Reply(status=204)
        if path == f"{self.system}/ResetActionInfo":
            return Reply(status=200, body={"Id": "Reset", "Parameters": [self._reset_parameter()]})
        if path.startswith(f"{ROOT}/Systems/") and not path.startswith(self.system):
            return refusal(404, "ResourceMissingAtURI", f"The resource at the URI {path} was not found.")
        if path == f"{self.system}/Actions/ComputerSystem.Reset":
            return self._reset(path, call.body)
        if path == self.system and call.method == "PATCH" and "Boot" in call.body:
            return self._set_boot(call.body["Boot"])
        return None

    def _known(self, call: HttpRequest) -> bool:
        """Return whether a request has a valid token or the credential; a wrong credential is a bad login."""
        token, basic = call.headers.get("X-Auth-Token"), call.headers.get("Authorization")
        if token is not None:
            return token in self.sessions
        return basic is not None and self._right(basic)

    def _right(self, basic: str) -> bool:
        wanted = "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        with self._lock:
            right = basic == wanted and self.bad_logins < BAD_LOGINS
            self.bad_logins += not right
        return right

    def _log_in(self, body: Any) -> Reply:
        basic = "Basic " + base64.b64encode(f"{body['UserName']}:{body['Password']}".encode()).decode()
        if not self._right(basic):
            # Unlike real BMCs, the message contains the password, so that tests find it if a client logs the answer.
            return refusal(401, "ResourceAtUriUnauthorized", f"The credential {body['Password']} was denied.")
        if len(self.sessions) >= SESSION_SLOTS:
            return refusal(503, "SessionLimitExceeded", "The session establishment failed: too many sessions are open.")
        token, path = secrets.token_hex(16), f"{SESSIONS}/{next(self._numbers)}"
        self.sessions = {**self.sessions, token: path}
        headers = {"X-Auth-Token": token, "Location": self.session_location or path}
        return Reply(status=201, body={"@odata.id": path}, headers=headers)

    def _reset(self, path: str, body: Any) -> Reply:
        kind = body["ResetType"]
        if self.reset_types is not None and kind not in self.reset_types:
            return refusal(
                400, "ActionParameterNotSupported", f"The parameter ResetType with the value {kind} is not supported."
            )
        if self.pending is not None and kind != "ForceOff" and self.pending["BootSourceOverrideEnabled"] != "Disabled":
            self._set_boot(dict(self.pending))
            self.pending["BootSourceOverrideEnabled"] = "Disabled"
        reply = self._forwarded("POST", path, {"ResetType": "ForceRestart" if kind == "PowerCycle" else kind})
        if reply.status < 300:  # noqa: PLR2004 - a success of any kind
            self.resets.append(kind)
        return reply

    def _set_boot(self, boot: dict[str, Any]) -> Reply:
        override = boot.pop("BootSourceOverrideEnabled", self.override)
        reply = self._forwarded("PATCH", self.system, {"Boot": boot}) if boot else Reply(status=204)
        if reply.status < 300:  # noqa: PLR2004 - a success of any kind
            self.override = override
        return reply

    def _forwarded(self, method: str, path: str, body: object) -> Reply:
        status, content = self._ask(method, path, body)
        return Reply(status=status, body=content)

    def _shown(self, path: str, reply: Reply) -> Reply:
        """Return the emulator's answer about a resource, changed to that of this BMC."""
        if reply.status != 200 or path not in {ROOT, f"{ROOT}/Systems", self.system}:  # noqa: PLR2004 - nothing to change
            return reply
        body = json.loads(reply.body)
        if path == ROOT:
            body["Links"] = {"Sessions": {"@odata.id": SESSIONS}}
        elif path == self.system:
            self._as_it_is(body)
        else:
            body["Members"] = [{"@odata.id": self.system}]
            body["Members@odata.count"] = 1
        return Reply(status=200, body=body)

    def _as_it_is(self, system: dict[str, Any]) -> None:
        boot, reset = system["Boot"], system["Actions"]["#ComputerSystem.Reset"]
        boot["BootSourceOverrideEnabled"] = shown = self.shown_override or self.override
        if shown == "Disabled":
            boot["BootSourceOverrideTarget"] = "None"
        if self.pending is not None:
            system["@Redfish.Settings"] = {"SettingsObject": {"@odata.id": f"{self.system}/Settings"}}
        if self.power is not ...:
            system["PowerState"] = self.power
        if self.reset_types is not None:
            reset["ResetType@Redfish.AllowableValues"] = list(self.reset_types)
        if self.action_info:
            del reset["ResetType@Redfish.AllowableValues"]
            reset["@Redfish.ActionInfo"] = f"{self.system}/ResetActionInfo"

    def _reset_parameter(self) -> dict[str, object]:
        return {"Name": "ResetType", "Required": True, "AllowableValues": list(self.reset_types or ())}


def refusal(status: int, message_id: str, message: str) -> Reply:
    """Return an error in the format of BMCs."""
    info = {"MessageId": f"Base.1.8.{message_id}", "Message": message, "Severity": "Critical"}
    error = {
        "code": "Base.1.8.GeneralError",
        "message": "A general error has occurred. See ExtendedInfo for more information.",
        "@Message.ExtendedInfo": [info],
    }
    return Reply(status=status, body={"error": error})
