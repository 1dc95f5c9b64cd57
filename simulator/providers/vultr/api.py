"""The simulated API of Vultr's bare metal: the servers and SSH keys of one account, as in its public description."""

from dataclasses import replace
from typing import Any, ClassVar

from simulator.providers.kit.hosting import HostingApi, Json
from simulator.providers.kit.http_server import Reply
from simulator.providers.kit.machines import FakeMachine, RequestRefused, States
from simulator.providers.kit.rest import Call, route

_REQUIRED = ("region", "plan", "os_id")
_NO_ADDRESS = "0.0.0.0"  # noqa: S104 - nothing listens there


class VultrApi(HostingApi):
    """Servers that are made at once, in pages that name the next one by a cursor, and a store of SSH keys."""

    base: ClassVar[str] = "/v2"
    states = States(
        queued="pending",
        provisioning="pending",
        active="active",
        reinstalling="pending",
        deprovisioning="pending",
        failed="suspended",
    )
    servers = "/bare-metals"
    public_key = "ssh_key"
    made = 202
    invalid = 400
    page_parameters: ClassVar[tuple[str, str]] = ("cursor", "per_page")

    def error(self, refused: RequestRefused) -> Any:
        """See ``RestApi``."""
        return {"error": "; ".join(refused.messages), "status": refused.status}

    def listing(self, call: Call, name: str, items: list[Json]) -> Any:
        """See ``HostingApi``."""
        shown, page = self.page(call, items)
        links = {"next": str(page.number + 1) if page.number < page.last else "", "prev": ""}
        name = "bare_metals" if name == "servers" else name
        return {name: list(shown), "meta": {"total": page.total, "links": links}}

    def single(self, call: Call, shown: Json) -> Any:  # noqa: ARG002 - always alike
        """See ``HostingApi``."""
        return {"ssh_key" if "ssh_key" in shown else "bare_metal": shown}

    def shown(self, machine: FakeMachine) -> Json:
        """See ``HostingApi``."""
        return {
            "id": machine.id,
            "status": machine.state,
            "main_ip": machine.address or _NO_ADDRESS,
            "region": machine.fields.get("region", "ewr"),
            "label": machine.name,
            "tags": machine.fields.get("tags", []),
        }

    def ordered(self, call: Call) -> FakeMachine:
        """See ``HostingApi``."""
        given = call.body
        if missing := [name for name in _REQUIRED if name not in given]:
            raise RequestRefused(400, f"{missing[0]} is missing")
        fields = {name: given[name] for name in ("tags", *_REQUIRED)}
        return self.create(given["label"], self.lines(given["sshkey_id"]), **fields)

    @route("POST", "SERVERS/{id}/reboot")
    def reboot(self, _: Call, machine_id: str) -> None:
        """Begin to restart a server."""
        self.machines.act(self.machine(machine_id), "reboot")

    @route("POST", "SERVERS/{id}/reinstall")
    def reinstall(self, call: Call, machine_id: str) -> Reply:
        """Begin to reinstall a server, with its system and its keys."""
        machine = self.machine(machine_id)
        self.machines.act(machine, "reinstall")
        return Reply(status=202, body=self.single(call, self.shown(machine)))

    def new_key(self, call: Call) -> Json:
        """See ``HostingApi``."""
        return {**call.body, "date_created": "2026-11-24T00:00:00+00:00"}

    def add_key(self, call: Call) -> Reply:
        """See ``HostingApi``."""
        return replace(super().add_key(call), status=201)
