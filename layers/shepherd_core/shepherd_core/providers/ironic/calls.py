"""The requests to Ironic: what is asked, of which version of the API, and what its refusals mean."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from shepherd_core.domain.errors.provider import (
    ListingInvalid,
    MachineNotFound,
    NotSupported,
    ProviderRefused,
    ProviderUnavailable,
    ProviderUnusable,
)
from shepherd_core.providers.ironic.objects import FIELDS, IronicNode, IronicNodes
from shepherd_core.providers.kit.api_object import parse
from shepherd_core.providers.kit.context import readable
from shepherd_core.providers.kit.dialect import Dialect, Refusal
from shepherd_core.providers.kit.http import HttpApi, segment
from shepherd_core.providers.kit.paging import NextLinks, listed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shepherd_core.domain.clock import Clock, Deadline, Permission
    from shepherd_core.providers.kit.auth import Authentication

VERSION = "1.65"
"""The microversion of the API, of 2020: it has all that is used, and later changes of behaviour do not apply."""
LOCKED_SECONDS = 15
"""When to call again about a node that Ironic is working on."""
SOFT_REBOOT_SECONDS = 120
"""How long Ironic waits for the operating system. Its own default, ten minutes, would lock the node for so long."""

_LOCKED = "is locked by host|state transition is in progress"
_DIALECT = Dialect(
    headers={"X-OpenStack-Ironic-API-Version": VERSION},
    refusals=(
        Refusal(status=409, says=_LOCKED, error=ProviderUnavailable, retry_after=LOCKED_SECONDS),
        Refusal(status=400, says="does not support the power state", error=NotSupported),
        Refusal(status=403, says="is protected", error=ProviderRefused),  # this node; the credential is good
        Refusal(status=406, error=ProviderUnusable),  # the microversion
    ),
)


class IronicCalls:
    """The API at *url*. *ssh_public_key* returns a line as in ``authorized_keys``; it raises SecretError."""

    def __init__(self, url: str, login: Authentication, ssh_public_key: Callable[[], str], clock: Clock) -> None:
        self._api = HttpApi(url, login, clock, dialect=_DIALECT)
        self._ssh_public_key = ssh_public_key

    def nodes(self, resource_class: str, deadline: Deadline) -> list[IronicNode]:
        """
        Return all nodes of a resource class.

        Raises:
            ListingInvalid: the pages were inconsistent twice in a row, or an entry was not understood.
        """
        paging = NextLinks(entries="nodes", next="next", id="uuid", per_page=1000)
        entries = listed(self._api, "/v1/nodes", deadline, paging, {"resource_class": resource_class, "fields": FIELDS})
        return [parse(IronicNode, entry, f"node {entry['uuid']}", ListingInvalid) for entry in entries]

    def node(self, node_id: str, deadline: Deadline) -> IronicNode:
        """Return a node."""
        answer = self._api.get(f"/v1/nodes/{segment(node_id)}", deadline, {"fields": FIELDS})
        return parse(IronicNode, answer, f"node {node_id}")

    def with_instance(self, instance: str, deadline: Deadline) -> list[IronicNode]:
        """Return the node with an instance, a UUID, if there is one. Raises MachineNotFound after a 404."""
        answer = self._api.get("/v1/nodes", deadline, {"instance_uuid": instance, "fields": FIELDS}, MachineNotFound)
        return parse(IronicNodes, answer, f"the node of instance {instance}").nodes

    def reserve(self, node: IronicNode, instance: str, info: Mapping[str, str], deadline: Deadline) -> IronicNode:
        """Give the node an instance; refused if it has another one. Return the node as it is then."""
        patch = [_add("/instance_uuid", instance), _add("/instance_info", info)]
        return parse(IronicNode, self._api.patch(node.path, patch, deadline), f"node {node.uuid}")

    def cancel(self, node: IronicNode, deadline: Deadline) -> None:
        """Take the instance from a node that is not deployed."""
        nothing = [{"op": "remove", "path": "/instance_uuid"}, _add("/instance_info", {})]
        self._api.patch(node.path, nothing, deadline)

    def deploy(self, node: IronicNode, deadline: Deadline) -> None:
        """Begin to deploy the image of the instance, with a config drive."""
        self._api.put(f"{node.path}/states/provision", self._deployment(node, "active"), deadline)

    def rebuild(self, node: IronicNode, permission: Permission) -> None:
        """Begin to deploy the image of the instance again, with a config drive."""
        self._api.interrupt("PUT", f"{node.path}/states/provision", self._deployment(node, "rebuild"), permission)

    def _deployment(self, node: IronicNode, target: str) -> dict[str, object]:
        with readable("our SSH key"):
            key = self._ssh_public_key()
        config = json.dumps({"disable_root": False, "ssh_authorized_keys": [key]})  # JSON is valid YAML
        drive = {
            "meta_data": {"uuid": node.instance_uuid, "public_keys": {"shepherd": key}},
            "user_data": f"#cloud-config\n{config}\n",
        }
        return {"target": target, "configdrive": drive}

    def undeploy(self, node: IronicNode, deadline: Deadline) -> None:
        """Begin to undeploy a node. Raises MachineNotFound after a 404."""
        self._api.put(f"{node.path}/states/provision", {"target": "deleted"}, deadline, MachineNotFound)

    def reboot(self, node: IronicNode, permission: Permission) -> None:
        """Ask the operating system to reboot. Raises NotSupported if the node's driver cannot."""
        self._power(node, {"target": "soft rebooting", "timeout": SOFT_REBOOT_SECONDS}, permission)

    def reset(self, node: IronicNode, permission: Permission) -> None:
        """Switch the node off and on."""
        self._power(node, {"target": "rebooting"}, permission)

    def _power(self, node: IronicNode, wanted: Mapping[str, object], permission: Permission) -> None:
        self._api.interrupt("PUT", f"{node.path}/states/power", wanted, permission)


def _add(path: str, value: object) -> dict[str, Any]:
    return {"op": "add", "path": path, "value": value}
