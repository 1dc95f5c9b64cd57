"""The simulated API of phoenixNAP's Bare Metal Cloud, as in its public description."""

import json
import re
from base64 import b64decode
from typing import Any, ClassVar

from simulator.providers.kit.hosting import HostingApi, Json
from simulator.providers.kit.http_server import Reply
from simulator.providers.kit.machines import FakeMachine, RequestRefused, States
from simulator.providers.kit.oauth2 import OAuth2Api
from simulator.providers.kit.rest import Call, route

_REQUIRED = ("hostname", "os", "type", "location")
_HOSTNAME = re.compile(r"(?=.*[a-zA-Z])[a-zA-Z0-9().-]{1,100}")
_CLOUD_INIT = "#cloud-config\n"


class PhoenixnapApi(OAuth2Api, HostingApi):
    """Servers that are made at once and listed in one answer."""

    base: ClassVar[str] = "/bmc/v1"
    made = 200
    states = States(
        queued="creating",
        provisioning="creating",
        active="powered-on",
        stopping="powered-on",
        stopped="powered-off",
        starting="powered-off",
        reinstalling="resetting",
        deprovisioning="deleting",
        failed="error",
    )

    def error(self, refused: RequestRefused) -> Any:
        """See ``RestApi``."""
        return {"message": refused.messages[0], "validationErrors": list(refused.messages[1:])}

    def machine(self, machine_id: str) -> FakeMachine:
        """See ``RestApi``: an id that is not there is answered like one of another account."""
        if machine_id not in self.machines.all:
            raise RequestRefused(403, "this resource cannot be accessed by the provided credentials")
        return super().machine(machine_id)

    def listing(self, call: Call, name: str, items: list[Json]) -> Any:  # noqa: ARG002 - one answer
        """See ``HostingApi``."""
        return items

    def shown(self, machine: FakeMachine) -> Json:
        """See ``HostingApi``."""
        return {
            "id": machine.id,
            "status": machine.state,
            "hostname": machine.name,
            "location": machine.fields.get("location", "PHX"),
            "pricingModel": machine.fields.get("pricingModel", "HOURLY"),
            "tags": machine.fields.get("tags", []),
            "publicIpAddresses": [machine.address] if machine.address else [],
        }

    def ordered(self, call: Call) -> FakeMachine:
        """See ``HostingApi``."""
        given = _object(call.body)
        if missing := [name for name in _REQUIRED if not isinstance(given.get(name), str)]:
            raise RequestRefused(400, "the request is not valid", *(f"{name} is missing" for name in missing))
        if not _HOSTNAME.fullmatch(given["hostname"]):
            raise RequestRefused(400, "the request is not valid", "hostname does not match the pattern")
        billing = given.get("pricingModel", "HOURLY")
        return self.create(given["hostname"], _root_key(given), location=given["location"], pricingModel=billing)

    @route("POST", "/servers/{id}/actions/reboot")
    @route("POST", "/servers/{id}/actions/power-on")
    def switch(self, call: Call, machine_id: str) -> Any:
        """Begin to reboot a server, or to switch it on."""
        self.machines.act(self.machine(machine_id), "reboot" if call.path.endswith("reboot") else "power_on")
        return {"result": "It has begun."}

    @route("POST", "/servers/{id}/actions/reset")
    def reset(self, call: Call, machine_id: str) -> Any:
        """Begin to reinstall a server."""
        machine = self.machine(machine_id)
        self.machines.act(machine, "reinstall")
        machine.authorized_key = "\n".join(_object(call.body).get("sshKeys", []))
        return {"result": "Resetting server."}

    @route("POST", "/servers/{id}/actions/deprovision")
    def deprovision(self, call: Call, machine_id: str) -> Reply:
        """Begin to give a server back; one with a reservation stays in the account."""
        machine = self.machine(machine_id)
        machine.fields["deleteIpBlocks"] = _object(call.body).get("deleteIpBlocks", False)
        if machine.fields.get("pricingModel", "HOURLY") == "HOURLY":
            self.machines.delete(machine)
        else:
            self.machines.change(machine, "reserved")
        return Reply(status=202, body="The server has been deprovisioned.")


def _object(body: Any) -> Json:
    if not isinstance(body, dict):
        raise RequestRefused(400, "the body must be an object")
    return body


def _root_key(given: Json) -> str:
    """Return the lines that root accepts: those of cloud-init alone, if it admits root."""
    data = b64decode(given.get("osConfiguration", {}).get("cloudInit", {}).get("userData", "")).decode()
    config = json.loads(data.removeprefix(_CLOUD_INIT)) if data.startswith(_CLOUD_INIT) else {}
    return "\n".join(config.get("ssh_authorized_keys", [])) if config.get("disable_root") is False else ""
