"""
OpenStack Ironic: capacity is an available node of our resource class, and a machine is the instance on it.

A node has at most one ``instance_uuid``. Ironic refuses to replace it, and drops it when the node is undeployed. So it
is the id of a machine, and never names the next machine on the same node.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shepherd_core.domain.errors import (
    CapacityTaken,
    ListingInvalid,
    MachineNotFound,
    NotSupported,
    ProviderRefused,
    ProviderUnavailable,
    ProviderUnusable,
    ShepherdError,
)
from shepherd_core.domain.machine import INVALID, Availability, Machine, ProviderId, ProviderStatus
from shepherd_core.domain.provider import Capability, Provider
from shepherd_core.providers.ironic.keystone import ApplicationCredential
from shepherd_core.providers.ironic.objects import ACTIVE, AVAILABLE, DELETING, DEPLOYING, FAILED, FIELDS, Node, Nodes
from shepherd_core.providers.kit import fields
from shepherd_core.providers.kit.api_object import parse
from shepherd_core.providers.kit.auth import Basic, NoLogin
from shepherd_core.providers.kit.context import readable
from shepherd_core.providers.kit.dialect import Dialect, Refusal
from shepherd_core.providers.kit.http import HttpApi, segment
from shepherd_core.providers.kit.paging import NextLinks, listed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from uuid import UUID

    from shepherd_core.domain.clock import Clock, Deadline
    from shepherd_core.domain.errors import ProviderError
    from shepherd_core.providers.kit.auth import Authentication
    from shepherd_core.providers.kit.context import ProviderContext
    from shepherd_core.settings.providers.ironic import IronicSettings

VERSION = "1.61"
"""The microversion of the API, of 2020: it has all that is used, and later changes of behaviour do not apply."""
LOCKED_SECONDS = 15
"""When to call again about a node that Ironic is working on."""
SOFT_REBOOT_SECONDS = 120
"""How long Ironic waits for the operating system. Its own default, ten minutes, would lock the node for so long."""

_FLEET, _TOKEN = "shepherd_fleet", "shepherd_machine"
"""The fields of ``instance_info`` with the fleet and the token; Ironic drops them with the instance."""
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


class IronicProvider(Provider):
    """
    The instances with our fleet in ``instance_info``, and the free nodes of our resource class and trait.

    Others are never touched, nor are nodes in maintenance. *ssh_public_key* returns a line as in ``authorized_keys``.
    """

    name = "ironic"
    capabilities = frozenset(Capability)
    boot_seconds = 600.0

    def __init__(
        self, settings: IronicSettings, login: Authentication, ssh_public_key: Callable[[], str], clock: Clock
    ) -> None:
        self._settings = settings
        self._ssh_public_key = ssh_public_key
        self._api = HttpApi(settings.ironic_api_url, login, clock, settings.ironic_max_calls, _DIALECT)

    def list_machines(self, deadline: Deadline) -> list[Machine]:
        """
        Return our instances, and the free nodes that have an address.

        Raises:
            ListingInvalid: the pages were inconsistent twice in a row, or an entry was not understood.
        """
        paging = NextLinks(entries="nodes", next="next", id="uuid", per_page=1000)
        wanted = {"resource_class": self._settings.ironic_resource_class, "fields": FIELDS}
        entries = listed(self._api, "/v1/nodes", deadline, paging, wanted)
        nodes = [parse(Node, entry, f"node {entry['uuid']}", ListingInvalid) for entry in entries]
        found = [self._machine(node, ListingInvalid) for node in nodes if self._owns(node) or self._offers(node)]
        return [each for each in found if each.provider_id != INVALID or each.address]

    def get_machine(self, provider_id: ProviderId, deadline: Deadline) -> Machine:
        """Return the instance as a machine; one request."""
        return self._machine(self._instance(provider_id, deadline))

    def create_machine(self, capacity: Machine, token: UUID, deadline: Deadline) -> Machine:
        """
        Reserve the node of *capacity* for the instance *token*, then deploy it. Each part is left out if it was done.

        Raises:
            CapacityTaken: the node has another instance.
            ProviderRefused: nothing was created, and the node is not reserved.
            ProviderUnavailable: unknown. Call again with the same token.
        """
        node = self._node(capacity, deadline)
        if node.instance_uuid is None:
            if not self._offers(node):
                raise ProviderRefused(f"{node}, and not free")
            node = self._reserve(node, capacity, token, deadline)
        if node.instance_uuid != str(token) or not self._owns(node):
            raise CapacityTaken(f"node {node.uuid} has another instance, {node.instance_uuid}")
        if node.provision_state == AVAILABLE:
            try:
                self._provision(node, "active", deadline)
            except ProviderRefused as error:
                node = self._node(capacity, deadline)
                if node.provision_state not in {ACTIVE, FAILED, *DEPLOYING}:  # not by an earlier call either
                    self._cancel(node, deadline, error)
                    raise
        return self._machine(node)

    def reboot(self, provider_id: ProviderId, deadline: Deadline) -> None:
        """Have the operating system restarted, or the node reset if its driver cannot do that."""
        node = self._ready(provider_id, {ACTIVE}, deadline)
        try:
            self._power(node, {"target": "soft rebooting", "timeout": SOFT_REBOOT_SECONDS}, deadline)
        except NotSupported:
            self._power(node, {"target": "rebooting"}, deadline)

    def power_cycle(self, provider_id: ProviderId, deadline: Deadline) -> None:
        """Have the node switched off and on."""
        self._power(self._ready(provider_id, {ACTIVE}, deadline), {"target": "rebooting"}, deadline)

    def reinstall(self, provider_id: ProviderId, deadline: Deadline) -> None:
        """Have the image of the instance deployed again."""
        node = self._ready(provider_id, {ACTIVE, FAILED}, deadline)
        self._provision(node, "rebuild", deadline, interrupts=True)

    def release(self, provider_id: ProviderId, deadline: Deadline) -> None:
        """Have the node undeployed; Ironic cleans it before it offers it again."""
        with suppress(MachineNotFound):  # it was released before, or is being undeployed
            node = self._instance(provider_id, deadline)
            if node.withdrawn:
                raise ProviderRefused(node.withdrawn)
            if node.provision_state == AVAILABLE:  # reserved, and never deployed
                self._cancel(node, deadline)
            else:
                self._api.put(f"{node.path}/states/provision", {"target": "deleted"}, deadline, MachineNotFound)

    def _owns(self, node: Node) -> bool:
        ours = node.instance_info.get(_FLEET) == self._settings.ironic_fleet
        return ours and node.instance_uuid is not None and node.provision_state != DELETING

    def _offers(self, node: Node) -> bool:
        free = node.provision_state == AVAILABLE and not (node.instance_uuid or node.withdrawn or node.retired)
        return free and self._settings.ironic_trait in {None, *node.traits}

    def _machine(self, node: Node, error_type: type[ProviderError] = ProviderUnavailable) -> Machine:
        name = self._settings.ironic_address_field
        given = node.extra.get(name)
        if (address := fields.address(given)) is None and given is not None:
            raise error_type(f"node {node.uuid}: {given!r:.80} in extra.{name} is not the IP address of one machine")
        free = Machine(
            provider_id=INVALID,
            availability=Availability.KNOWN_UNUSED,
            address=address,
            reservation_id=node.uuid,
            location=node.conductor_group or None,
        )
        if not self._owns(node):
            return free
        return replace(
            free,
            provider_id=ProviderId(node.instance_uuid or ""),
            availability=Availability.KNOWN_USED,
            status=node.status,
            failed=node.provision_state == FAILED,
            token=fields.token(node.instance_info.get(_TOKEN)),
        )

    def _node(self, capacity: Machine, deadline: Deadline) -> Node:
        path = f"/v1/nodes/{segment(capacity.reservation_id or '')}"
        return parse(Node, self._api.get(path, deadline, {"fields": FIELDS}), f"node {capacity.reservation_id}")

    def _instance(self, provider_id: ProviderId, deadline: Deadline) -> Node:
        if fields.token(provider_id) is not None:
            wanted = {"instance_uuid": provider_id, "fields": FIELDS}
            answer = self._api.get("/v1/nodes", deadline, wanted, MachineNotFound)
            for node in parse(Nodes, answer, f"the node of instance {provider_id}").nodes:
                if node.instance_uuid == provider_id and self._owns(node):
                    return node
        raise MachineNotFound(f"no node has our instance {provider_id!r}")

    def _ready(self, provider_id: ProviderId, states: Collection[str], deadline: Deadline) -> Node:
        """Return the node of an instance, if it may be interrupted, and is in one of these states."""
        node = self._instance(provider_id, deadline)
        if node.withdrawn or node.provision_state not in states:
            passing = not node.withdrawn and node.status is ProviderStatus.PROVISIONING
            raise (ProviderUnavailable if passing else ProviderRefused)(str(node))
        return node

    def _reserve(self, node: Node, capacity: Machine, token: UUID, deadline: Deadline) -> Node:
        """Return the node as it is after a reservation, by us or by somebody who was faster."""
        wanted = {
            "image_source": self._settings.ironic_image,
            "image_checksum": self._settings.ironic_image_checksum,
            _FLEET: self._settings.ironic_fleet,
            _TOKEN: str(token),
        }
        info = {name: value for name, value in wanted.items() if value is not None}
        try:
            answer = self._api.patch(
                node.path, [_add("/instance_uuid", str(token)), _add("/instance_info", info)], deadline
            )
        except ProviderRefused:
            node = self._node(capacity, deadline)
            if node.instance_uuid is None:
                raise
            return node
        return parse(Node, answer, f"node {node.uuid}")

    def _cancel(self, node: Node, deadline: Deadline, cause: ProviderError | None = None) -> None:
        """End the reservation of a node that is not deployed."""
        try:
            self._api.patch(
                node.path, [{"op": "remove", "path": "/instance_uuid"}, _add("/instance_info", {})], deadline
            )
        except ShepherdError as error:
            if cause is None:
                raise
            raise ProviderUnavailable(f"{cause}; node {node.uuid} stays reserved: {error}") from error

    def _provision(self, node: Node, target: str, deadline: Deadline, *, interrupts: bool = False) -> None:
        """Deploy the image, with a config drive."""
        with readable("our SSH key"):
            key = self._ssh_public_key()
        config = json.dumps({"disable_root": False, "ssh_authorized_keys": [key]})  # JSON is valid YAML
        drive = {
            "meta_data": {"uuid": node.instance_uuid, "public_keys": {"shepherd": key}},
            "user_data": f"#cloud-config\n{config}\n",
        }
        body = {"target": target, "configdrive": drive}
        self._api.put(f"{node.path}/states/provision", body, deadline, interrupts=interrupts)

    def _power(self, node: Node, wanted: dict[str, Any], deadline: Deadline) -> None:
        self._api.put(f"{node.path}/states/power", wanted, deadline, interrupts=True)


def _add(path: str, value: object) -> dict[str, Any]:
    return {"op": "add", "path": path, "value": value}


def build(settings: IronicSettings, context: ProviderContext) -> IronicProvider:
    """Return the provider of these settings."""
    credential = context.secret(settings.ironic_credential_parameter)
    login: Authentication = NoLogin()
    if settings.ironic_auth == "basic":
        login = Basic(credential)
    elif settings.ironic_auth == "keystone":
        login = ApplicationCredential(settings.ironic_keystone_url or "", credential, context.clock)
    return IronicProvider(settings, login, context.public_key, context.clock)
