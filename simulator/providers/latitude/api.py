"""The simulated API of Latitude.sh: the servers and SSH keys of one account, as its published client describes them."""

from typing import Any, ClassVar

from simulator.providers.kit.hardware import Hardware
from simulator.providers.kit.http_server import Reply
from simulator.providers.kit.machines import FakeMachine, RequestRefused, States
from simulator.providers.kit.rest import Call, RestApi, route

PROJECT = "proj_simulated"
_LONGEST_NAME = 32
_WANTED = {"project", "plan", "site", "operating_system", "hostname", "ssh_keys", "billing"}


class LatitudeApi(RestApi):
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
    page_parameters: ClassVar[tuple[str, str]] = ("page[number]", "page[size]")
    page_size: ClassVar[int] = 20

    def __init__(self, hardware: Hardware, **options: Any) -> None:
        super().__init__(hardware, **options)
        self.keys: dict[str, dict[str, str]] = {}

    def error(self, refused: RequestRefused) -> Any:
        """See ``RestApi``."""
        return {"errors": [{"status": str(refused.status), "detail": each} for each in refused.messages]}

    @route("GET", "/servers")
    def list_servers(self, call: Call) -> Any:
        """List the servers of a project."""
        project = call.query.get("filter[project]", PROJECT)
        of_it = [each for each in self.machines.all.values() if each.fields.get("project", PROJECT) == project]
        return self._listing(call, [_server(each) for each in of_it])

    @route("GET", "/servers/{id}")
    def get_server(self, _: Call, machine_id: str) -> Any:
        """Return one server."""
        return {"data": _server(self.machine(machine_id))}

    @route("POST", "/servers")
    def create_server(self, call: Call) -> Reply:
        """Begin to make a server."""
        given = _attributes(call, "servers")
        if missing := sorted(_WANTED - given.keys()):
            raise RequestRefused(422, f"{missing[0]} is missing")
        if given["project"] != PROJECT or len(given["hostname"]) > _LONGEST_NAME:
            raise RequestRefused(422, "the project does not exist, or the hostname is longer than 32 characters")
        made = self.create(
            given["hostname"],
            self._lines(given),
            project=given["project"],
            site=given["site"],
            billing=given["billing"],
        )
        shown = _server(made)
        for name in ("region", "project"):  # as recorded
            del shown["attributes"][name]
        return Reply(status=201, body={"data": shown, "meta": {}})

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
        given = _attributes(call, "reinstalls")
        machine = self.machine(machine_id)
        self.machines.act(machine, "reinstall")
        machine.name, machine.authorized_key = given["hostname"], self._lines(given)
        return Reply(status=201, body=None)

    @route("DELETE", "/servers/{id}")
    def delete(self, _: Call, machine_id: str) -> None:
        """Begin to delete a server."""
        self.machines.delete(self.machine(machine_id))

    @route("GET", "/ssh_keys")
    def list_keys(self, call: Call) -> Any:
        """List the SSH keys."""
        keys = [{"id": key_id, "type": "ssh_keys", "attributes": each} for key_id, each in self.keys.items()]
        return self._listing(call, keys)

    @route("POST", "/ssh_keys")
    def add_key(self, call: Call) -> Reply:
        """Add an SSH key."""
        given = _attributes(call, "ssh_keys")
        if any(each["public_key"] == given["public_key"] for each in self.keys.values()):
            raise RequestRefused(422, "public_key has already been taken")
        key_id = f"ssh_{self.machines.new_id()}"
        self.keys[key_id] = {"name": given["name"], "public_key": given["public_key"], "created_at": "2026-08-03"}
        return Reply(status=201, body={"data": {"id": key_id, "type": "ssh_keys", "attributes": self.keys[key_id]}})

    def _listing(self, call: Call, items: list[dict[str, Any]]) -> Any:
        shown, page = self.page(call, items)
        counted = {"stats": {"total": {"count": page.total}}} if call.query.get("stats[total]") == "count" else {}
        return {"data": list(shown), "meta": counted}

    def _lines(self, given: dict[str, Any]) -> str:
        if unknown := [each for each in given["ssh_keys"] if each not in self.keys]:
            raise RequestRefused(422, f"there is no SSH key {unknown[0]!r}")
        return "\n".join(self.keys[each]["public_key"] for each in given["ssh_keys"])


def _attributes(call: Call, kind: str) -> dict[str, Any]:
    """Return the attributes in a body of *kind*."""
    data = call.body.get("data") if isinstance(call.body, dict) else None
    if not isinstance(data, dict) or data.get("type") != kind or not isinstance(data.get("attributes"), dict):
        raise RequestRefused(400, f"the body must have data of type {kind} with attributes")
    found: dict[str, Any] = data["attributes"]
    return found


def _server(machine: FakeMachine) -> dict[str, Any]:
    attributes = {
        "hostname": machine.name,
        "status": machine.state,
        "primary_ipv4": machine.address,
        "region": {"site": {"slug": machine.fields.get("site", "ASH")}},
        "project": {"id": machine.fields.get("project", PROJECT)},
    }
    return {"id": machine.id, "type": "servers", "attributes": attributes}
