"""The API of the example provider ``acme`` in ``docs/providers/write-your-own.md``: servers, each with an owner."""

from __future__ import annotations

import json
import re
import threading
from typing import TYPE_CHECKING, Any, Self

from simulator.environment.faults import FaultScript
from simulator.providers.kit.http_server import HttpRequest, Reply, Server
from simulator.providers.kit.middleware import Middleware

if TYPE_CHECKING:
    from types import TracebackType

KEY = "the-key-of-acme"


class AcmeApi:
    """A local server of that API with five servers, two of which have an owner; a context manager."""

    def __init__(self) -> None:
        self.servers: dict[str, dict[str, Any]] = {
            f"server-{n}": {"name": f"server-{n}", "ip": f"192.0.2.{n}", "power": "on", "owner": None}
            for n in range(1, 6)
        }
        self.servers["server-1"]["owner"] = "0a4bc1a8-7c5f-4c0f-9a53-6b4b5b1f0009"
        self.servers["server-2"].update(owner="Jane from accounting", power="half")
        self.restarts: list[str] = []
        self.faults = FaultScript()
        self._front = Middleware(self.faults)
        self._lock = threading.Lock()
        self._http = Server(self._reply, "127.0.0.1")

    @property
    def url(self) -> str:
        """Return the base URL."""
        return f"http://127.0.0.1:{self._http.server_port}"

    def requests(self) -> int:
        """Return how many requests there were."""
        return self._front.calls.total()

    def __enter__(self) -> Self:
        self._http.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._front.closing.set()
        self._http.close()

    def _reply(self, request: HttpRequest) -> Reply | None:
        return self._front.pass_on(request.method, request.path, request.path, lambda _: self._answer(request))

    def _answer(self, request: HttpRequest) -> Reply:
        if request.headers.get("X-Acme-Key") != KEY:
            return Reply(status=401, body={"error": "no such key"})
        with self._lock:
            if (request.method, request.path) == ("GET", "/servers"):
                return Reply(status=200, body={"total": len(self.servers), "servers": list(self.servers.values())})
            path = re.fullmatch("/servers/([^/]+)(/owner|/restart)?", request.path)
            server = self.servers.get(path[1]) if path else None
            if path is None or server is None:
                return Reply(status=404, body={"error": "no such server"})
            return self._act(request, server, path[2])

    def _act(self, request: HttpRequest, server: dict[str, Any], part: str | None) -> Reply:
        match request.method, part:
            case "GET", None:
                return Reply(status=200, body=server)
            case "POST", "/restart":
                self.restarts.append(server["name"])
                return Reply(status=204)
            case "POST", "/owner":
                owner = json.loads(request.content)["owner"]
                if server["owner"] not in {None, owner}:
                    return Reply(status=409, body={"error": "the server has another owner"})
                server["owner"] = owner
                return Reply(status=204)
            case "DELETE", "/owner":
                server["owner"] = None
                return Reply(status=204)
        return Reply(status=405, body={"error": "method not allowed"})
