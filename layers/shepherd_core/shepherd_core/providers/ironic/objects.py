"""The nodes of OpenStack Ironic, and what their states mean; makes no requests."""

from __future__ import annotations

from typing import Any

from shepherd_core.domain.machine import ProviderStatus
from shepherd_core.providers.kit.api_object import ApiObject, Id, Text
from shepherd_core.providers.kit.http import segment

AVAILABLE, ACTIVE, FAILED, DELETING = "available", "active", "deploy failed", "deleting"
DEPLOYING = {"deploying", "wait call-back", "deploy hold"}
_POWER = {"power on": ProviderStatus.RUNNING, "power off": ProviderStatus.STOPPED}


class IronicNode(ApiObject):
    """A node, with the fields that are asked for."""

    uuid: Id
    instance_uuid: Id | None
    provision_state: str
    power_state: str | None
    maintenance: bool
    maintenance_reason: str | None
    fault: str | None
    last_error: str | None
    retired: bool
    owner: str | None
    lessee: str | None
    traits: list[str]
    conductor_group: Text | None
    extra: dict[str, Any]
    instance_info: dict[str, Any]

    @property
    def path(self) -> str:
        """Return the path of its resource."""
        return f"/v1/nodes/{segment(self.uuid)}"

    @property
    def status(self) -> ProviderStatus:
        """Return the status of the machine on it."""
        if self.provision_state == FAILED:
            return ProviderStatus.PROVISIONING_FAILED_PERMANENT
        if self.provision_state in {AVAILABLE, *DEPLOYING}:
            return ProviderStatus.PROVISIONING
        power = _POWER.get(self.power_state or "") if self.provision_state == ACTIVE else None
        return power or ProviderStatus.UNKNOWN

    @property
    def failure(self) -> str | None:
        """Return Ironic's word for a deployment that failed for good."""
        return ": ".join(filter(None, (FAILED, self.last_error))) if self.provision_state == FAILED else None

    @property
    def withdrawn(self) -> str:
        """Return why only operators may touch it: they, or Ironic, set it to maintenance. Empty: Shepherd may."""
        if not self.maintenance and self.fault is None:
            return ""
        return f"node {self.uuid} is in maintenance: {self.fault or self.maintenance_reason or 'no reason'!r:.80}"

    def __str__(self) -> str:
        return self.withdrawn or f"node {self.uuid} is {self.provision_state!r:.80}"


class IronicNodes(ApiObject):
    """The answer to a search."""

    nodes: list[IronicNode]


FIELDS = ",".join(IronicNode.model_fields)
"""The value of the parameter ``fields``."""
