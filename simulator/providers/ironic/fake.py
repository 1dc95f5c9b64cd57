"""
A small fake of Ironic: the requests that the adapter makes, answered as version 39.0.0 does.

The tests of the adapter run against it and, with ``make test-ironic``, against the real service.
"""

import copy
import json
import uuid
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from simulator.environment.faults import Shrink
from simulator.providers.ironic.api import IronicApi, Json
from simulator.providers.kit.http_server import Reply
from simulator.providers.kit.machines import RequestRefused
from simulator.providers.kit.rest import Call, route

_POWER = {"power on": "power on", "power off": "power off", "rebooting": "power on", "soft rebooting": "power on"}
_FROM = {"active": {"available"}, "rebuild": {"active", "deploy failed"}, "deleted": {"active", "deploy failed"}}
_VERSIONS = {f"1.{minor}" for minor in range(1, 116)}
_ACCEPTED = Reply(status=202)


class FakeIronic(IronicApi):
    """Nodes, and the operations on them. A node is locked while a request takes its time."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.nodes: dict[str, Json] = {}
        self.without_soft: set[str] = set()
        """The nodes whose driver cannot ask the operating system to reboot."""
        self.broken: set[str] = set()
        """The nodes on which every deployment fails."""

    def add(self, resource_class: str, extra: Json) -> str:
        """See ``IronicApi``."""
        node: Json = {"uuid": self.machines.new_id(), "resource_class": resource_class, "extra": extra}
        node |= {"provision_state": "available", "power_state": "power on", "reservation": None, "fault": None}
        node |= {"last_error": None}
        node |= {"instance_uuid": None, "instance_info": {}, "maintenance": False, "maintenance_reason": None}
        node |= {"owner": None, "lessee": None}
        self.nodes[node["uuid"]] = {**node, "retired": False, "protected": False, "traits": [], "conductor_group": ""}
        return str(node["uuid"])

    def node(self, node_id: str) -> Json:
        """See ``IronicApi``."""
        with self.machines.lock:
            return copy.deepcopy(self.nodes.get(node_id, {}))

    def carry_out(self, call: Call, operation: Any, segments: Sequence[str]) -> Reply:
        """See ``IronicApi``."""
        if not self.logged_in(call.http):
            return Reply(status=401, body={"error": {"message": "Incorrect username or password", "code": 401}})
        if operation is None:
            raise RequestRefused(404, "The resource could not be found.")
        if call.http.headers.get("X-OpenStack-Ironic-API-Version", "1.1") not in _VERSIONS:
            raise RequestRefused(406, "the minor version is not supported by this service")
        with self.machines.lock:
            reply: Reply = operation(call, *segments)
        return reply

    def error(self, refused: RequestRefused) -> Json:
        """Return an error, as JSON in a text."""
        fault = {"faultcode": "Client", "faultstring": "; ".join(refused.messages), "debuginfo": None}
        return {"error_message": json.dumps(fault)}

    @route("GET", "/v1/nodes")
    def list_nodes(self, call: Call) -> Reply:
        """Return the nodes after the marker, with a link to the next ones."""
        asked = dict(call.query)
        if not _is_uuid(asked.get("instance_uuid", str(uuid.NAMESPACE_URL))):
            raise RequestRefused(400, f"Expected UUID for instance_uuid: {asked['instance_uuid']}")
        filters = {name: asked[name] for name in ("resource_class", "instance_uuid") if name in asked}
        nodes = [node for node in self.nodes.values() if filters.items() <= node.items()]
        nodes = nodes[call.fault.count :] if isinstance(call.fault, Shrink) else nodes
        if "marker" in asked:
            nodes = nodes[[node["uuid"] for node in nodes].index(self._named(asked["marker"])["uuid"]) + 1 :]
        limit = min(self.options.per_page_cap, int(asked.get("limit", self.options.per_page_cap)))
        answer: Json = {"nodes": [_shown(node, call) for node in nodes[:limit]]}
        if len(nodes) > limit:
            query = urlencode({**asked, "limit": limit, "marker": nodes[limit - 1]["uuid"]})
            answer["next"] = f"{self.url}/v1/nodes?{query}"
        return Reply(status=200, body=answer)

    @route("GET", "/v1/nodes/{id}")
    def get_node(self, call: Call, name: str) -> Reply:
        """Return a node."""
        return Reply(status=200, body=_shown(self._named(name), call))

    @route("PATCH", "/v1/nodes/{id}")
    def patch(self, call: Call, name: str) -> Reply:
        """Change fields, all or none; an instance is never replaced by another one."""
        node = self._named(name)
        if node["provision_state"] in {"deploying", "deleting"}:
            raise RequestRefused(409, f"Node {name} can not be updated while a state transition is in progress.")
        changed = copy.deepcopy(node)
        for each in call.body:
            if each["op"] not in {"add", "replace", "remove"}:
                raise RequestRefused(
                    400, f"Schema error for patch: {each['op']!r} is not one of ['add', 'replace', 'remove']"
                )
            field, _, key = each["path"].removeprefix("/").partition("/")
            (changed[field] if key else changed)[key or field] = each.get("value")
        instance, before = changed["instance_uuid"], node["instance_uuid"]
        if instance and before not in {None, instance}:
            raise RequestRefused(409, f"Node {name} is associated with instance {before}.")
        if instance and any(other is not node and other["instance_uuid"] == instance for other in self.nodes.values()):
            raise RequestRefused(409, f"Instance {instance} is already associated with a node")
        node.update(changed)
        return self.get_node(call, name)

    @route("PUT", "/v1/nodes/{id}/states/power")
    def power(self, call: Call, name: str) -> Reply:
        """Begin to switch a node, in maintenance too."""
        node, target = self._unlocked(name), call.body["target"]
        if target == "soft rebooting" and name in self.without_soft:
            raise RequestRefused(400, f"The driver ipmi does not support the power state, {target}")
        if target not in _POWER:
            raise _impossible(node, target, "power_state")
        return self._later(node, self.options.action_seconds, power_state=_POWER[target])

    @route("PUT", "/v1/nodes/{id}/states/provision")
    def provision(self, call: Call, name: str) -> Reply:
        """Begin to deploy or undeploy a node; in maintenance, it can be undeployed."""
        node, target = self._unlocked(name), call.body["target"]
        if node["maintenance"] and target != "deleted":
            raise RequestRefused(400, "The provisioning operation can't be performed, because it's in maintenance mode")
        if node["protected"] and target != "active":
            raise RequestRefused(403, f"Node {name} is protected and cannot be undeployed, rebuilt or deleted")
        if node["provision_state"] not in _FROM.get(target, ()):
            raise _impossible(node, target, "provision_state")
        if target == "deleted":
            node["provision_state"] = "deleting"
            return self._later(node, 0, provision_state="available", instance_uuid=None, instance_info={})
        node["provision_state"] = "deploying"
        failed = {"provision_state": "deploy failed", "last_error": "no disk"}
        came = failed if name in self.broken else {"provision_state": "active", "last_error": None}
        return self._later(node, self.options.provision_seconds, **came)

    @route("PUT", "/v1/nodes/{id}/maintenance")
    def set_maintenance(self, call: Call, name: str) -> Reply:
        """Begin maintenance."""
        self._unlocked(name).update(maintenance=True, maintenance_reason=call.body["reason"])
        return _ACCEPTED

    @route("PUT", "/v1/nodes/{id}/traits/{trait}")
    def add_trait(self, _: Call, name: str, trait: str) -> Reply:
        """Add a trait."""
        self._named(name)["traits"].append(trait)
        return Reply(status=204)

    def _named(self, name: str) -> Json:
        if name not in self.nodes:
            raise RequestRefused(404, f"Node {name} could not be found.")
        return self.nodes[name]

    def _unlocked(self, name: str) -> Json:
        node = self._named(name)
        if node["reservation"]:
            raise RequestRefused(409, f"Node {name} is locked by host {node['reservation']}, please retry")
        return node

    def _later(self, node: Json, seconds: float, **fields: Any) -> Reply:
        """Lock the node; set these *fields* and unlock it when the time has passed."""
        node["reservation"] = "127.0.0.1"

        def end() -> None:
            with self.machines.lock:
                node.update(fields, reservation=None)

        self.machines.timers.after(seconds, end)
        return _ACCEPTED


def _impossible(node: Json, target: str, field: str) -> RequestRefused:
    text = f'The requested action "{target}" can not be performed on node "{node["uuid"]}" while it is in state'
    return RequestRefused(400, f'{text} "{node[field]}".')


def _shown(node: Json, call: Call) -> Json:
    names = call.query["fields"].split(",") if "fields" in call.query else list(node)
    return {name: copy.deepcopy(node[name]) for name in names}


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False
