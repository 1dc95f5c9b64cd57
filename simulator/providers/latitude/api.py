"""The simulated API of Latitude.sh: the servers and SSH keys of one account, as its published client describes them."""

from typing import Any, ClassVar

from simulator.providers.kit.hosting import HostingApi, Json
from simulator.providers.kit.http_server import Reply
from simulator.providers.kit.machines import FakeMachine, RequestRefused, States
from simulator.providers.kit.rest import Call, route

PROJECT = "proj_simulated"
_LONGEST_NAME = 32
_WANTED = {"project", "plan", "site", "operating_system", "hostname", "ssh_keys", "billing"}


class LatitudeApi(HostingApi):
    """Servers that are made at once, one project, and a store of SSH keys."""

    states = States(
        queued="starting_deploy",
        provisioning="deploying",
        active="on",
        stopping="on",
        stopped="off",
        starting="off",
        reinstalling="disk_erasing",
        deprovisioning="off",
        failed="failed_deployment",
    )
    key_store = "/ssh_keys"
    filters = ("filter[project]",)
    page_parameters: ClassVar[tuple[str, str]] = ("page[number]", "page[size]")
    page_size: ClassVar[int] = 20

    def error(self, refused: RequestRefused) -> Any:
        """See ``RestApi``."""
        return {"errors": [{"status": str(refused.status), "detail": each} for each in refused.messages]}

    def listing(self, call: Call, name: str, items: list[Json]) -> Any:  # noqa: ARG002 - both are ``data``
        """See ``HostingApi``."""
        shown, page = self.page(call, items)
        counted = {"stats": {"total": {"count": page.total}}} if call.query.get("stats[total]") == "count" else {}
        return {"data": list(shown), "meta": counted}

    def single(self, call: Call, shown: Json) -> Any:  # noqa: ARG002 - always alike
        """See ``HostingApi``."""
        return {"data": shown}

    def shown(self, machine: FakeMachine) -> Json:
        """See ``HostingApi``."""
        attributes = {
            "hostname": machine.name,
            "status": machine.state,
            "primary_ipv4": machine.address,
            "region": {"site": {"slug": machine.fields.get("site", "ASH")}},
            "project": {"id": machine.fields.get("project", PROJECT)},
        }
        return {"id": machine.id, "type": "servers", "attributes": attributes}

    def ordered(self, call: Call) -> FakeMachine:
        """See ``HostingApi``."""
        given = _attributes(call, "servers")
        if missing := sorted(_WANTED - given.keys()):
            raise RequestRefused(422, f"{missing[0]} is missing")
        if given["project"] != PROJECT or len(given["hostname"]) > _LONGEST_NAME:
            raise RequestRefused(422, "the project does not exist, or the hostname is longer than 32 characters")
        fields = {name: given[name] for name in ("project", "site", "billing")}
        return self.create(given["hostname"], self.lines(given["ssh_keys"]), **fields)

    def create_server(self, call: Call) -> Reply:
        """See ``HostingApi``."""
        reply = super().create_server(call)
        for name in ("region", "project"):  # as recorded
            del reply.body["data"]["attributes"][name]
        return Reply(status=reply.status, body={**reply.body, "meta": {}})

    @route("POST", "/servers/{id}/actions")
    def act(self, call: Call, machine_id: str) -> Reply:
        """Begin an action."""
        action = _attributes(call, "actions").get("action")
        if action not in {"reboot", "power_on", "power_off"}:
            raise RequestRefused(422, f"there is no action {action!r}")
        self.machines.act(self.machine(machine_id), action)
        return Reply(status=201, body={"data": {"id": machine_id, "type": "actions", "attributes": {"status": action}}})

    @route("POST", "/servers/{id}/reinstall")
    def reinstall(self, call: Call, machine_id: str) -> Reply:
        """Begin to reinstall a server."""
        given, machine = _attributes(call, "reinstalls"), self.machine(machine_id)
        self.machines.act(machine, "reinstall")
        machine.name, machine.authorized_key = given["hostname"], self.lines(given["ssh_keys"])
        return Reply(status=201, body=None)

    def new_key(self, call: Call) -> Json:
        """See ``HostingApi``."""
        given = _attributes(call, "ssh_keys")
        return {"name": given["name"], "public_key": given["public_key"], "created_at": "2026-08-03"}

    def key(self, key_id: str, fields: Json) -> Json:
        """See ``HostingApi``."""
        return {"id": key_id, "type": "ssh_keys", "attributes": fields}


def _attributes(call: Call, kind: str) -> Json:
    """Return the attributes in a body of *kind*."""
    data = call.body.get("data") if isinstance(call.body, dict) else None
    if not isinstance(data, dict) or data.get("type") != kind or not isinstance(data.get("attributes"), dict):
        raise RequestRefused(400, f"the body must have data of type {kind} with attributes")
    found: Json = data["attributes"]
    return found
