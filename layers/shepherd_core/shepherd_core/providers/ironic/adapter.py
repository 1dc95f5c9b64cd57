"""
OpenStack Ironic: capacity is an available node of our resource class, and a machine is the instance on it.

A node has at most one ``instance_uuid``. Ironic refuses to replace it, and drops it when the node is undeployed. So it
is the id of a machine, and never names the next machine on the same node.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from shepherd_core.domain import labels
from shepherd_core.domain.errors import ShepherdError
from shepherd_core.domain.errors.provider import (
    CapacityTaken,
    ListingInvalid,
    MachineNotFound,
    NotSupported,
    ProviderRefused,
    ProviderUnavailable,
)
from shepherd_core.domain.machine import INVALID, Availability, Machine, ProviderId, ProviderStatus
from shepherd_core.domain.provider import Capability, Provider
from shepherd_core.providers.ironic.calls import IronicCalls
from shepherd_core.providers.ironic.keystone import ApplicationCredential
from shepherd_core.providers.ironic.objects import ACTIVE, AVAILABLE, DELETING, DEPLOYING, FAILED
from shepherd_core.providers.kit import fields
from shepherd_core.providers.kit.auth import Basic, NoLogin

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from uuid import UUID

    from shepherd_core.domain.clock import Clock, Deadline, Permission
    from shepherd_core.domain.errors.provider import ProviderError
    from shepherd_core.providers.ironic.objects import IronicNode
    from shepherd_core.providers.kit.auth import Authentication
    from shepherd_core.providers.kit.context import ProviderContext
    from shepherd_core.settings.providers.ironic import IronicSettings

_FLEET, _TOKEN = "shepherd_fleet", "shepherd_machine"
"""The fields of ``instance_info`` with the fleet and the token; Ironic drops them with the instance."""


class IronicProvider(Provider):
    """
    The instances with our fleet in ``instance_info``, and the free nodes of our resource class and trait.

    Others are never touched, nor are nodes in maintenance. *ssh_public_key* returns a line as in ``authorized_keys``.
    """

    name = "ironic"
    capabilities = frozenset(
        {Capability.CREATE, Capability.REBOOT, Capability.POWER_CYCLE, Capability.REINSTALL, Capability.RELEASE}
    )
    boot_seconds = 600.0

    def __init__(
        self, settings: IronicSettings, login: Authentication, ssh_public_key: Callable[[], str], clock: Clock
    ) -> None:
        self._settings = settings
        self._calls = IronicCalls(settings.api_url, login, ssh_public_key, clock)

    def list_machines(self, deadline: Deadline) -> list[Machine]:
        """
        Return our instances, and the free nodes that have an address.

        Raises:
            ListingInvalid: the pages were inconsistent twice in a row, or an entry was not understood.
        """
        nodes = self._calls.nodes(self._settings.machine_type, deadline)
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
        node = self._calls.node(capacity.reservation_id or "", deadline)
        if node.instance_uuid is None:
            node = self._reserved(node, token, deadline)
        if node.instance_uuid != str(token) or not self._owns(node):
            raise CapacityTaken(f"node {node.uuid} has another instance, {node.instance_uuid}")
        if node.provision_state == AVAILABLE:
            try:
                self._calls.deploy(node, deadline)
            except ProviderRefused as error:
                node = self._calls.node(node.uuid, deadline)
                if node.provision_state not in {ACTIVE, FAILED, *DEPLOYING}:  # not by an earlier call either
                    self._cancel(node, deadline, error)
                    raise
        return self._machine(node)

    def reboot(self, provider_id: ProviderId, permission: Permission) -> None:
        """Have the operating system restarted, or the node reset if its driver cannot do that."""
        node = self._ready(provider_id, {ACTIVE}, permission.deadline)
        try:
            self._calls.reboot(node, permission)
        except NotSupported:
            self._calls.reset(node, permission)

    def power_cycle(self, provider_id: ProviderId, permission: Permission) -> None:
        """Have the node switched off and on."""
        self._calls.reset(self._ready(provider_id, {ACTIVE}, permission.deadline), permission)

    def reinstall(self, provider_id: ProviderId, permission: Permission) -> None:
        """Have the image of the instance deployed again."""
        node = self._ready(provider_id, {ACTIVE, FAILED}, permission.deadline)
        self._calls.rebuild(node, permission)

    def release(self, provider_id: ProviderId, deadline: Deadline) -> None:
        """Have the node undeployed; Ironic cleans it before it offers it again."""
        with suppress(MachineNotFound):  # it was released before, or is being undeployed
            node = self._instance(provider_id, deadline)
            if node.withdrawn:
                raise ProviderRefused(node.withdrawn)
            if node.provision_state == AVAILABLE:  # reserved, and never deployed
                self._calls.cancel(node, deadline)
            else:
                self._calls.undeploy(node, deadline)

    def _owns(self, node: IronicNode) -> bool:
        ours = node.instance_info.get(_FLEET) == self._settings.fleet
        return ours and node.instance_uuid is not None and node.provision_state != DELETING

    def _offers(self, node: IronicNode) -> bool:
        free = node.provision_state == AVAILABLE and not (node.instance_uuid or node.withdrawn or node.retired)
        return free and self._settings.trait in {None, *node.traits} and not self._is_of_others(node)

    def _is_of_others(self, node: IronicNode) -> bool:
        """Return whether the node is leased to another project, or is another's and not leased."""
        if self._settings.project is None:
            return node.lessee is not None
        return (node.lessee or node.owner) not in {None, self._settings.project}

    def _machine(self, node: IronicNode, error_type: type[ProviderError] = ProviderUnavailable) -> Machine:
        name = self._settings.address_field
        given = node.extra.get(name)
        if (address := fields.address(given)) is None and given is not None:
            raise error_type(f"node {node.uuid}: {given!r:.80} in extra.{name} is not the IP address of one machine")
        free = Machine(
            provider_id=INVALID,
            availability=Availability.KNOWN_UNUSED,
            address=address,
            reservation_id=node.uuid,
            location=node.conductor_group or None,
            labels=labels.of_tags(tag for tag in node.extra.items() if tag[0] != name),
        )
        if not self._owns(node):
            return free
        return replace(
            free,
            provider_id=ProviderId(node.instance_uuid or ""),
            availability=Availability.KNOWN_USED,
            status=node.status,
            failed=node.failure is not None,
            failure=node.failure,
            token=fields.token(node.instance_info.get(_TOKEN)),
        )

    def _instance(self, provider_id: ProviderId, deadline: Deadline) -> IronicNode:
        if fields.token(provider_id) is not None:  # the API asks for a UUID
            for node in self._calls.with_instance(provider_id, deadline):
                if node.instance_uuid == provider_id and self._owns(node):
                    return node
        raise MachineNotFound(f"no node has our instance {provider_id!r}")

    def _ready(self, provider_id: ProviderId, states: Collection[str], deadline: Deadline) -> IronicNode:
        """Return the node of an instance, if it may be interrupted, and is in one of these states."""
        node = self._instance(provider_id, deadline)
        if node.withdrawn or node.provision_state not in states:
            passing = not node.withdrawn and node.status is ProviderStatus.PROVISIONING
            raise (ProviderUnavailable if passing else ProviderRefused)(str(node))
        return node

    def _reserved(self, node: IronicNode, token: UUID, deadline: Deadline) -> IronicNode:
        """Return the free *node* with an instance: ours, or that of somebody who was faster."""
        if not self._offers(node):
            raise ProviderRefused(f"{node}, and not free")
        info = {"image_source": self._settings.image, _FLEET: self._settings.fleet, _TOKEN: str(token)}
        if self._settings.image_checksum is not None:
            info["image_checksum"] = self._settings.image_checksum
        try:
            reserved = self._calls.reserve(node, str(token), info, deadline)
        except ProviderRefused:
            if (node := self._calls.node(node.uuid, deadline)).instance_uuid is None:
                raise
            return node
        if reserved.provision_state != AVAILABLE:  # somebody deployed it meanwhile, without an instance
            error = ProviderRefused(f"{reserved}, and not free")
            self._cancel(reserved, deadline, error)
            raise error
        return reserved

    def _cancel(self, node: IronicNode, deadline: Deadline, cause: ProviderError) -> None:
        """End the reservation of a node whose deployment was refused."""
        try:
            self._calls.cancel(node, deadline)
        except ShepherdError as error:
            raise ProviderUnavailable(f"{cause}; node {node.uuid} stays reserved: {error}") from error


def build(settings: IronicSettings, context: ProviderContext) -> IronicProvider:
    """Return the provider of these settings."""
    credential = context.secret(settings.credential_parameter)
    login: Authentication = NoLogin()
    if settings.auth == "basic":
        login = Basic(credential)
    elif settings.auth == "keystone":
        login = ApplicationCredential(settings.auth_url or "", credential, context.clock)
    return IronicProvider(settings, login, context.public_key, context.clock)
