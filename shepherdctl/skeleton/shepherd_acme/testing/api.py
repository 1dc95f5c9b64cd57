"""The API of Acme, simulated: servers, each with an owner."""

from typing import Any

from simulator.providers.kit.credentials import in_header
from simulator.providers.kit.hardware import NoHardware
from simulator.providers.kit.http_server import HttpRequest
from simulator.providers.kit.machines import RequestRefused
from simulator.providers.kit.rest import Call, RestApi, route

KEY = "the-key-of-the-api"


class AcmeApi(RestApi):
    """A local server of that API with five servers, two of which have an owner; a context manager."""

    def __init__(self) -> None:
        super().__init__(NoHardware(), secret=KEY)
        self.servers: dict[str, dict[str, Any]] = {
            f"server-{n}": {"name": f"server-{n}", "ip": f"192.0.2.{n}", "power": "on", "owner": None}
            for n in range(1, 6)
        }
        self.servers["server-1"]["owner"] = "0a4bc1a8-7c5f-4c0f-9a53-6b4b5b1f0009"
        self.servers["server-2"].update(owner="Jane from accounting", power="half")
        self.restarts: list[str] = []

    def requests(self) -> int:
        return self.calls.total()

    def logged_in(self, http: HttpRequest) -> bool:
        return in_header("X-Acme-Key")(http, self.secret)

    @route("GET", "/servers")
    def list_servers(self, _: Call) -> Any:
        return {"total": len(self.servers), "servers": list(self.servers.values())}

    @route("GET", "/servers/{name}")
    def get_server(self, _: Call, name: str) -> Any:
        if name not in self.servers:
            raise RequestRefused(404, "no such server")
        return self.servers[name]

    @route("POST", "/servers/{name}/restart")
    def restart(self, call: Call, name: str) -> None:
        self.restarts.append(self.get_server(call, name)["name"])

    @route("POST", "/servers/{name}/owner")
    def set_owner(self, call: Call, name: str) -> None:
        server = self.get_server(call, name)
        if server["owner"] not in {None, call.body["owner"]}:
            raise RequestRefused(409, "the server has another owner")
        server["owner"] = call.body["owner"]

    @route("DELETE", "/servers/{name}/owner")
    def remove_owner(self, call: Call, name: str) -> None:
        self.get_server(call, name)["owner"] = None
