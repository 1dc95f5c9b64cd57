"""Ironic in front of simulated machines: its drivers touch no hardware, so accepted requests are carried out here."""

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any

from simulator.providers.kit.credentials import basic
from simulator.providers.kit.http_server import HttpRequest, Reply
from simulator.providers.kit.rest import Call, RestApi

Json = dict[str, Any]


class IronicApi(RestApi):
    """The service, fake or real; its secret is ``USER:PASSWORD``. Machines have the names of their instances."""

    def __init__(self, *given: Any, **options: Any) -> None:
        """See ``RestApi``."""
        super().__init__(*given, **options)
        self._enrolled: list[str] = []

    def enroll(self, resource_class: str, addresses: Sequence[str]) -> list[str]:
        """Add available nodes with these addresses in ``extra``; return their ids."""
        nodes = [self.add(resource_class, {"ipv4_address": address}) for address in addresses]
        self._enrolled += nodes
        while not self.settled():
            time.sleep(0.01)
        return nodes

    def instances(self) -> dict[str, str | None]:
        """Return our machines, with the token of each."""
        nodes = [self.node(each) for each in self._enrolled]
        return {node["instance_uuid"]: node["instance_info"].get("shepherd_machine") for node in nodes
                if node["instance_uuid"]}  # fmt: skip

    @abstractmethod
    def add(self, resource_class: str, extra: Json) -> str:
        """Begin to add a node, and return its id."""

    @abstractmethod
    def node(self, node_id: str) -> Json:
        """Return a node; empty if there is none."""

    @abstractmethod
    def carry_out(self, call: Call, operation: Any, segments: Sequence[str]) -> Reply:
        """Return the answer to a request."""

    def logged_in(self, http: HttpRequest) -> bool:
        """Look for user and password."""
        return basic(http, self.secret)

    def _perform(self, call: Call, operation: Any, segments: Sequence[str]) -> Any:
        moves = call.method == "PUT" and "/states/" in call.path
        before = self.node(call.path.split("/")[3]) if moves else {}
        reply = self.carry_out(call, operation, segments)
        if before.get("instance_uuid") and reply.status == HTTPStatus.ACCEPTED:
            seconds, happen = self._consequence(before, call.body)
            self.machines.timers.after(seconds, happen)
        return reply

    def _consequence(self, node: Json, wanted: Json) -> tuple[float, Callable[[], object]]:
        """Return the seconds until the hardware acts, and the call by which it does."""
        name, address = node["instance_uuid"], node["extra"]["ipv4_address"]
        hardware, options = self.machines.hardware, self.machines.options
        match wanted["target"]:
            case "active":
                key = wanted["configdrive"]["meta_data"]["public_keys"]["shepherd"]
                return 0, lambda: hardware.rack(name, key, options.provision_seconds, address)
            case "rebuild":
                return options.provision_seconds, lambda: hardware.reinstall(name)
            case "deleted":
                return 0, lambda: hardware.remove(name)
            case "power off":
                return options.action_seconds, lambda: hardware.power_off(name)
            case "power on":
                return options.action_seconds, lambda: hardware.power_on(name)
        return options.action_seconds, lambda: hardware.reboot(name)
