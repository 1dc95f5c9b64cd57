"""
What stands in front of the emulator for each machine: its BMC, as the network sees it.

The emulator shows all systems to everybody. What it lacks of a BMC is made
here: one system for each BMC, users and sessions (few, as BMCs have), the
locking of an account after bad logins, boot overrides that end after one boot
(the emulator's never do), PowerCycle, ActionInfo, and the words of a BMC about
errors. And here things go wrong, by the rules of ``faults``: Answer, Delay,
Drop and Cut.
"""

from __future__ import annotations

import base64
import itertools
import json
import secrets
import threading
from typing import TYPE_CHECKING, Any

from simulator import faults
from simulator.redfish_https import Call, Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = "/redfish/v1"
SESSIONS = f"{ROOT}/SessionService/Sessions"
SESSION_SLOTS = 4
BAD_LOGINS = 3
"""After so many the account is locked, for good."""


class Bmc:
    """
    The BMC of one machine; its attributes are there to be looked at and interfered with.

    Safe to use from any thread.
    """

    def __init__(
        self,
        uuid: str,
        user: str,
        password: str,
        *,
        ask: Callable[[str, str, object], tuple[int, bytes]],
        shared_faults: faults.FaultScript,
        closing: threading.Event,
    ) -> None:
        """*ask* sends a request to the emulator. *shared_faults* are those of all BMCs. *closing* ends all delays."""
        self.system = f"{ROOT}/Systems/{uuid}"
        """The path of its system."""
        self.user = user
        self.password = password
        self.faults = faults.FaultScript()
        """What goes wrong at this one; paths begin with ``/redfish/v1``."""
        self.calls: list[str] = []
        """What it was asked: method and path."""
        self.resets: list[str] = []
        """The types of the resets that it accepted."""
        self.reset_types: Sequence[str] | None = None
        """What it offers instead of what the emulator does."""
        self.action_info = False
        """Whether it says elsewhere what it offers."""
        self.power: object = ...
        """What it says of the power instead of what the emulator does, if anything."""
        self.override = "Disabled"
        """How long the boot override of the emulator holds."""
        self.pending: dict[str, str] | None = None
        """The boot override that holds from the next reset on, where a BMC has a resource of its own for that."""
        self.sessions: dict[str, str] = {}
        """The paths of the sessions that are open, by token."""
        self.bad_logins = 0
        self._ask = ask
        self._shared_faults = shared_faults
        self._closing = closing
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def answer(self, call: Call) -> Reply | None:
        """Return the answer, None to close the connection without one."""
        with self._lock:
            self.calls.append(f"{call.method} {call.path}")
        delays, rules = [], []
        for script in (self.faults, self._shared_faults):
            waits, rule = script.hits(call.method, call.path)
            delays += waits
            rules += [] if rule is None else [rule]
        if self._waited(delays, "before"):
            return None
        reply = self._spoiled(call, rules[0] if rules else None)
        return None if self._waited(delays, "after") else reply

    def boots_from(self, device: str | None) -> str | None:
        """Return what the machine, of which the emulator says *device*, boots from instead of its disk, this once."""
        with self._lock:
            if self.override == "Disabled" or device not in {"Pxe", "Cd"}:
                return None
            if self.override == "Once":
                self.override = "Disabled"
            return device

    def _waited(self, delays: list[faults.Delay], when: faults.When) -> bool:
        return self._closing.wait(sum(delay.seconds for delay in delays if delay.when == when))

    def _spoiled(self, call: Call, fault: faults.Rule | None) -> Reply | None:
        match fault:
            case faults.Drop(when="before"):
                return None
            case faults.Answer(when="before"):
                return _scripted(fault)
        reply = self._real(call)
        match fault:
            case faults.Drop():
                return None
            case faults.Answer():
                return _scripted(fault)
            case faults.Cut():
                reply.cut = True
        return reply

    def _real(self, call: Call) -> Reply:
        path = call.path.partition("?")[0].rstrip("/")
        if path == SESSIONS and call.method == "POST":
            return self._log_in(call.body)
        if path not in {"/redfish", ROOT} and not self._known(call):
            return refusal(401, "NoValidSession", "There is no valid session established with the implementation.")
        reply = self._settings(call, path) or self._own(call, path)
        return reply or self._shown(path, self._forwarded(call.method, call.path, call.body))

    def _settings(self, call: Call, path: str) -> Reply | None:
        """Return the resource of what holds from the next reset on, None if it is not meant or there is none."""
        if path != f"{self.system}/Settings" or self.pending is None:
            return None
        self.pending.update(call.body["Boot"] if call.method == "PATCH" else {})
        return Reply(status=200, body={"Id": "Settings", "Boot": {"HttpBootUri": None, **self.pending}})

    def _own(self, call: Call, path: str) -> Reply | None:
        """Return the answer, None if it is the emulator's to give."""
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

    def _known(self, call: Call) -> bool:
        """Tell whether a request carries a token or the credential; a wrong one of these is a bad login."""
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
            # As real BMCs do not: whoever logs what we say must not log this.
            return refusal(401, "ResourceAtUriUnauthorized", f"The credential {body['Password']} was denied.")
        if len(self.sessions) >= SESSION_SLOTS:
            return refusal(503, "SessionLimitExceeded", "The session establishment failed: too many sessions are open.")
        token, path = secrets.token_hex(16), f"{SESSIONS}/{next(self._numbers)}"
        self.sessions = {**self.sessions, token: path}
        return Reply(status=201, body={"@odata.id": path}, headers={"X-Auth-Token": token, "Location": path})

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
        """Return what the emulator says of a resource, as this BMC says it."""
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
        boot["BootSourceOverrideEnabled"] = self.override
        if self.override == "Disabled":
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
    """Return an error as BMCs put it."""
    info = {"MessageId": f"Base.1.8.{message_id}", "Message": message, "Severity": "Critical"}
    error = {
        "code": "Base.1.8.GeneralError",
        "message": "A general error has occurred. See ExtendedInfo for more information.",
        "@Message.ExtendedInfo": [info],
    }
    return Reply(status=status, body={"error": error})


def _scripted(fault: faults.Answer) -> Reply:
    headers = {} if fault.retry_after is None else {"Retry-After": f"{fault.retry_after:g}"}
    return Reply(status=fault.status, body=fault.body, headers=headers)
