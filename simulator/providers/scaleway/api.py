"""The simulated API of Elastic Metal: servers, offers and SSH keys, as Scaleway's published client describes them."""

from typing import Any, ClassVar

from simulator.providers.kit.credentials import in_header
from simulator.providers.kit.hardware import Hardware
from simulator.providers.kit.http_server import HttpRequest, Reply
from simulator.providers.kit.machines import FakeMachine, RequestRefused, States
from simulator.providers.kit.rest import Call, RestApi, route

PROJECT = "b8a1e0c2-0000-4000-8000-000000000001"
OFFER = "b8a1e0c2-0000-4000-8000-000000000002"
MONTHLY_OFFER = "b8a1e0c2-0000-4000-8000-000000000003"
OS = "b8a1e0c2-0000-4000-8000-000000000004"
ZONE = "fr-par-2"
_SERVERS = f"/baremetal/v1/zones/{ZONE}/servers"
_KEYS = "/iam/v1alpha1/ssh-keys"
_OFFERS = {OFFER: "hourly", MONTHLY_OFFER: "monthly"}
_INSTALLING = "installing"


class ScalewayApi(RestApi):
    """One project with servers in one zone, two offers, and a store of SSH keys."""

    states = States(
        queued="ordered",
        provisioning="delivering",
        active="ready",
        stopped="stopped",
        reinstalling=_INSTALLING,
        deprovisioning="deleting",
        failed="error",
    )
    page_parameters: ClassVar[tuple[str, str]] = ("page", "page_size")
    page_size: ClassVar[int] = 20

    def __init__(self, hardware: Hardware, **options: Any) -> None:
        super().__init__(hardware, **options)
        self.keys: dict[str, dict[str, Any]] = {}

    def logged_in(self, http: HttpRequest) -> bool:
        """See ``RestApi``."""
        return in_header("X-Auth-Token")(http, self.secret)

    def error(self, refused: RequestRefused) -> Any:
        """See ``RestApi``."""
        kinds = {401: "denied_authentication", 404: "not_found", 409: "transient_state", 412: "precondition_failed"}
        return {"type": kinds.get(refused.status, "invalid_arguments"), "message": "; ".join(refused.messages)}

    @route("GET", _SERVERS)
    def list_servers(self, call: Call) -> Any:
        """List the servers of a project."""
        wanted = call.query.get("project_id")
        of_it = [each for each in self.machines.all.values() if wanted in {None, _project(each)}]
        shown, page = self.page(call, of_it)
        return {"servers": [_server(each) for each in shown], "total_count": page.total}

    @route("GET", _SERVERS + "/{server_id}")
    def get_server(self, _: Call, machine_id: str) -> Any:
        """Return one server."""
        return _server(self.machine(machine_id))

    @route("POST", _SERVERS)
    def create_server(self, call: Call) -> Any:
        """Begin to deliver a server."""
        given = call.body
        if given["offer_id"] not in _OFFERS or given["project_id"] != PROJECT:
            raise RequestRefused(400, "offer_id or project_id does not exist")
        lines = self._lines(given["install"])
        fields = {name: given[name] for name in ("tags", "project_id", "offer_id")}
        return _server(self.create(given["name"], lines, **fields))

    @route("POST", _SERVERS + "/{server_id}/reboot")
    @route("POST", _SERVERS + "/{server_id}/start")
    def switch(self, call: Call, machine_id: str) -> Any:
        """Begin to switch a server off and on, or on."""
        machine = self.machine(machine_id)
        self.machines.act(machine, "reboot" if call.path.endswith("reboot") else "power_on")
        return _server(machine)

    @route("POST", _SERVERS + "/{server_id}/install")
    def install(self, call: Call, machine_id: str) -> Any:
        """Begin to install a server."""
        machine, lines = self.machine(machine_id), self._lines(call.body)
        self.machines.act(machine, "reinstall")
        machine.authorized_key = lines
        return _server(machine)

    @route("DELETE", _SERVERS + "/{server_id}")
    def delete(self, _: Call, machine_id: str) -> Any:
        """Begin to delete a server."""
        machine = self.machine(machine_id)
        self.machines.delete(machine)
        return _server(machine)

    @route("GET", f"/baremetal/v1/zones/{ZONE}/offers/{{offer_id}}")
    def get_offer(self, _: Call, offer_id: str) -> Any:
        """Return one offer."""
        if offer_id not in _OFFERS:
            raise RequestRefused(404, "not found")
        return {"id": offer_id, "subscription_period": _OFFERS[offer_id]}

    @route("GET", _KEYS)
    def list_keys(self, call: Call) -> Any:
        """List the SSH keys that are not disabled."""
        shown, page = self.page(call, list(self.keys.values()))
        return {"ssh_keys": list(shown), "total_count": page.total}

    @route("POST", _KEYS)
    def add_key(self, call: Call) -> Reply:
        """Add an SSH key."""
        if any(each["public_key"] == call.body["public_key"] for each in self.keys.values()):
            raise RequestRefused(400, "the key exists")
        key = {"id": self.machines.new_id(), **call.body, "created_at": "2026-08-20T00:00:00Z", "disabled": False}
        self.keys[key["id"]] = key
        return Reply(status=200, body=key)

    def _lines(self, install: dict[str, Any]) -> str:
        if install["os_id"] != OS or not set(install["ssh_key_ids"]) <= self.keys.keys():
            raise RequestRefused(400, "os_id or ssh_key_ids does not exist")
        return "\n".join(self.keys[each]["public_key"] for each in install["ssh_key_ids"])


def _project(machine: FakeMachine) -> str:
    return str(machine.fields.get("project_id", PROJECT))


def _server(machine: FakeMachine) -> dict[str, Any]:
    installing = machine.state == _INSTALLING
    ips = [{"id": machine.id, "address": machine.address, "version": "IPv4"}] if machine.address else []
    return {
        "id": machine.id,
        "name": machine.name,
        "project_id": _project(machine),
        "zone": ZONE,
        "status": "ready" if installing else machine.state,
        "tags": machine.fields.get("tags", []),
        "ips": ips,
        "install": {"status": "installing" if installing else "completed"} if machine.address else None,
    }
