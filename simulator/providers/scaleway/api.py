"""The simulated API of Elastic Metal: servers, offers and SSH keys, as Scaleway's published client describes them."""

from typing import Any, ClassVar

from simulator.providers.kit.credentials import in_header
from simulator.providers.kit.hosting import HostingApi, Json
from simulator.providers.kit.http_server import HttpRequest
from simulator.providers.kit.machines import FakeMachine, RequestRefused, States
from simulator.providers.kit.rest import Call, route

PROJECT = "b8a1e0c2-0000-4000-8000-000000000001"
OFFER = "b8a1e0c2-0000-4000-8000-000000000002"
MONTHLY_OFFER = "b8a1e0c2-0000-4000-8000-000000000003"
OS = "b8a1e0c2-0000-4000-8000-000000000004"
ZONE = "fr-par-2"
_OFFERS = {OFFER: "hourly", MONTHLY_OFFER: "monthly"}


class ScalewayApi(HostingApi):
    """One project with servers in one zone, two offers, and a store of SSH keys."""

    states = States(
        queued="ordered",
        provisioning="delivering",
        active="ready",
        stopped="stopped",
        reinstalling="ready installing",
        deprovisioning="deleting",
        failed="error",
    )
    servers = f"/baremetal/v1/zones/{ZONE}/servers"
    key_store = "/iam/v1alpha1/ssh-keys"
    made = 200
    invalid = 400
    filters = ("project_id",)
    page_parameters: ClassVar[tuple[str, str]] = ("page", "page_size")
    page_size: ClassVar[int] = 20

    def logged_in(self, http: HttpRequest) -> bool:
        """See ``RestApi``."""
        return in_header("X-Auth-Token")(http, self.secret)

    def error(self, refused: RequestRefused) -> Any:
        """See ``RestApi``."""
        kinds = {401: "denied_authentication", 404: "not_found", 409: "transient_state", 412: "precondition_failed"}
        return {"type": kinds.get(refused.status, "invalid_arguments"), "message": "; ".join(refused.messages)}

    def listing(self, call: Call, name: str, items: list[Json]) -> Any:
        """See ``HostingApi``."""
        shown, page = self.page(call, items)
        return {name: list(shown), "total_count": page.total}

    def shown(self, machine: FakeMachine) -> Json:
        """See ``HostingApi``."""
        status, _, installing = machine.state.partition(" ")
        ips = [{"id": machine.id, "address": machine.address, "version": "IPv4"}] if machine.address else []
        return {
            "id": machine.id,
            "name": machine.name,
            "project_id": machine.fields.get("project_id", PROJECT),
            "zone": ZONE,
            "status": status,
            "tags": machine.fields.get("tags", []),
            "ips": ips,
            "install": {"status": installing or "completed"} if machine.address else None,
        }

    def ordered(self, call: Call) -> FakeMachine:
        """See ``HostingApi``."""
        given = call.body
        if given["offer_id"] not in _OFFERS or given["project_id"] != PROJECT:
            raise RequestRefused(400, "offer_id or project_id does not exist")
        fields = {name: given[name] for name in ("tags", "project_id", "offer_id")}
        return self.create(given["name"], self._installed(given["install"]), **fields)

    @route("POST", "SERVERS/{id}/reboot")
    @route("POST", "SERVERS/{id}/start")
    def switch(self, call: Call, machine_id: str) -> Any:
        """Begin to switch a server off and on, or on."""
        machine = self.machine(machine_id)
        self.machines.act(machine, "reboot" if call.path.endswith("reboot") else "power_on")
        return self.shown(machine)

    @route("POST", "SERVERS/{id}/install")
    def install(self, call: Call, machine_id: str) -> Any:
        """Begin to install a server."""
        machine, lines = self.machine(machine_id), self._installed(call.body)
        self.machines.act(machine, "reinstall")
        machine.authorized_key = lines
        return self.shown(machine)

    def delete(self, call: Call, machine_id: str) -> Any:
        """See ``HostingApi``."""
        super().delete(call, machine_id)
        return self.shown(self.machine(machine_id))

    @route("GET", f"/baremetal/v1/zones/{ZONE}/offers/{{offer_id}}")
    def get_offer(self, _: Call, offer_id: str) -> Any:
        """Return one offer."""
        if offer_id not in _OFFERS:
            raise RequestRefused(404, "not found")
        return {"id": offer_id, "subscription_period": _OFFERS[offer_id]}

    def new_key(self, call: Call) -> Json:
        """See ``HostingApi``."""
        return {**call.body, "created_at": "2026-08-20T00:00:00Z", "disabled": False}

    def _installed(self, install: Json) -> str:
        if install["os_id"] != OS:
            raise RequestRefused(400, "os_id does not exist")
        return self.lines(install["ssh_key_ids"])
