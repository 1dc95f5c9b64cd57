"""The simulated API of Cherry Servers: servers and SSH keys of one project, as its published clients describe them."""

from dataclasses import replace
from typing import Any, ClassVar

from simulator.providers.kit.hardware import Hardware
from simulator.providers.kit.hosting import HostingApi, Json
from simulator.providers.kit.http_server import Reply
from simulator.providers.kit.machines import FakeMachine, FakeMachines, Options, RequestRefused, States
from simulator.providers.kit.rest import Call, route

PROJECT = 123456
_REQUIRED = {"plan", "region"}
_STATES = States(
    queued="pending deploying",
    provisioning="provisioning deploying",
    active="active deployed",
    reinstalling="active deploying",
    deprovisioning="terminating deployed",
    failed="active failed deployment",
)
"""The state, and the status of the deployment."""


class _Machines(FakeMachines[FakeMachine]):
    """The servers, whose ids are numbers."""

    def new_id(self) -> str:
        """Return a new id."""
        return str(self._random.randrange(100_000, 10**9))


class CherryserversApi(HostingApi):
    """Servers that are made at once, one project, and a store of SSH keys."""

    base: ClassVar[str] = "/v1"
    orders = f"/projects/{PROJECT}/servers"
    public_key = "key"
    invalid = 400
    page_parameters: ClassVar[tuple[str, str]] = ("page", "limit")

    def __init__(self, hardware: Hardware, *, options: Options | None = None, **more: Any) -> None:
        options = options or Options()
        super().__init__(hardware, options=options, machines=_Machines(hardware, options, _STATES), **more)

    def error(self, refused: RequestRefused) -> Any:
        """See ``RestApi``."""
        return {"code": refused.status, "message": "; ".join(refused.messages)}

    def listing(self, call: Call, name: str, items: list[Json]) -> Any:  # noqa: ARG002 - always a list
        """See ``HostingApi``."""
        first_page = replace(call, query={**call.query, "page": "1"})
        return list(self.page(first_page, items[int(call.query.get("offset", 0)) :])[0])

    def shown(self, machine: FakeMachine) -> Json:
        """See ``HostingApi``."""
        state, _, status = machine.state.partition(" ")
        addresses = {"10.0.0.1": "private-ip", **({machine.address: "primary-ip"} if machine.address else {})}
        return {
            "id": int(machine.id),
            "hostname": machine.name,
            "state": state,
            "status": status,
            "tags": machine.fields.get("tags", {}),
            "ip_addresses": [{"address": address, "type": kind} for address, kind in addresses.items()],
            "region": {"slug": machine.fields.get("region", "eu_nord_1")},
            "project": {"id": machine.fields.get("project", PROJECT)},
        }

    def ordered(self, call: Call) -> FakeMachine:
        """See ``HostingApi``."""
        given = call.body
        if missing := sorted(_REQUIRED - given.keys()):
            raise RequestRefused(400, f"{missing[0]} is missing")
        fields = {name: given[name] for name in ("tags", "region", "plan")}
        return self.create(given["hostname"], self.lines(given["ssh_keys"]), **fields)

    @route("POST", "SERVERS/{id}/actions")
    def act(self, call: Call, machine_id: str) -> Reply:
        """Begin an action."""
        machine, given = self.machine(machine_id), call.body
        if given.get("type") not in {"reboot", "reinstall"}:
            raise RequestRefused(400, f"there is no action {given.get('type')!r}")
        lines = self.lines(given["ssh_keys"]) if given["type"] == "reinstall" else machine.authorized_key
        self.machines.act(machine, given["type"])
        machine.authorized_key = lines
        return Reply(status=201, body=self.shown(machine))

    def key(self, key_id: str, fields: Json) -> Json:
        """See ``HostingApi``."""
        return {"id": int(key_id), **fields, "created": "2026-11-24 00:00:00"}
