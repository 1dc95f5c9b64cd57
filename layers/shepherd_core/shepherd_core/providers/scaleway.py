"""Elastic Metal servers at Scaleway: those of a project with a mark of our fleet among their tags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shepherd_core.domain import labels
from shepherd_core.domain.errors.provider import ProviderRefused, ProviderUnavailable
from shepherd_core.domain.machine import ProviderStatus
from shepherd_core.providers.kit.api_object import ApiObject, MachineAddress, Text, found_at
from shepherd_core.providers.kit.auth import Header
from shepherd_core.providers.kit.dialect import Dialect, Refusal, at
from shepherd_core.providers.kit.hosting import Facts, HostedKey, HostedServer, HostingProvider, KeyStore
from shepherd_core.providers.kit.http import segment
from shepherd_core.providers.kit.paging import PageNumbers

if TYPE_CHECKING:
    from collections.abc import Callable

    from shepherd_core.domain.clock import Deadline
    from shepherd_core.providers.kit.auth import Authentication
    from shepherd_core.providers.kit.context import ProviderContext
    from shepherd_core.providers.kit.hosting import Action
    from shepherd_core.settings.providers.scaleway import ScalewaySettings

_STATUS = {
    "ready": ProviderStatus.RUNNING,
    "migrating": ProviderStatus.RUNNING,  # to monthly billing
    "stopping": ProviderStatus.STOPPED,
    "stopped": ProviderStatus.STOPPED,
    "ordered": ProviderStatus.PROVISIONING,
    "delivering": ProviderStatus.PROVISIONING,
    "out_of_stock": ProviderStatus.PROVISIONING_FAILED_PERMANENT,
    "deleting": ProviderStatus.MISSING,
    **dict.fromkeys(("error", "locked", "resetting", "starting", "unknown"), ProviderStatus.UNKNOWN),
    # A server that is ready, by the status of its operating system:
    "ready to_install": ProviderStatus.PROVISIONING,
    "ready installing": ProviderStatus.PROVISIONING,
    "ready error": ProviderStatus.PROVISIONING_FAILED_PERMANENT,
    **dict.fromkeys(("ready completed", "ready unknown"), ProviderStatus.RUNNING),
}
_REFUSALS = (
    Refusal(says="^transient_state", error=ProviderUnavailable, retry_after=60),
    Refusal(says="^(quotas_exceeded|out_of_stock|locked)", error=ProviderRefused),
    Refusal(status=503, says="is not supported", error=ProviderRefused),  # by this offer; it does not pass
)


class Ip(ApiObject):
    """One address of a server."""

    address: MachineAddress


class ScalewayServer(HostedServer):
    """One server."""

    project_id: str
    zone: Text | None = None
    tags: tuple[str, ...] = ()
    ips: tuple[Ip, ...] = ()
    installing: str | None = found_at("install.status", None)

    def facts(self) -> Facts:
        """See ``HostedServer``."""
        addresses, stages = [ip.address for ip in self.ips], (f"{self.status} {self.installing}",)
        where = {"location": self.zone, "project": self.project_id}
        return Facts(marks=self.tags, addresses=addresses, **where, stages=stages, tags=map(labels.split, self.tags))


class ScalewayKey(HostedKey):
    """One SSH key."""


class ScalewayProvider(HostingProvider):
    """The servers of the fleet in a zone, and as many more as the limit allows."""

    name = "scaleway"
    statuses = _STATUS
    server = ScalewayServer
    paging = PageNumbers(entries="servers", total="total_count", size="page_size")
    dialect = Dialect(refusals=_REFUSALS)
    restart = ("reboot", {"boot_type": "normal"})
    start = ("start", {"boot_type": "normal"})
    _settings: ScalewaySettings

    def __init__(self, settings: ScalewaySettings, context: ProviderContext) -> None:
        zone, project = f"/baremetal/v1/zones/{segment(settings.location)}", {"project_id": settings.project}
        self._offer = f"{zone}/offers/{segment(settings.machine_type)}"
        pages, query = PageNumbers(entries="ssh_keys", total="total_count", size="page_size"), {"disabled": "false"}
        keys = KeyStore(path="/iam/v1alpha1/ssh-keys", key=ScalewayKey, paging=pages, query={**project, **query})
        super().__init__(settings, context, settings.fleet, servers=f"{zone}/servers", query=project, keys=keys)

    def _login(self, read: Callable[[], str], context: ProviderContext) -> Authentication:  # noqa: ARG002 - for others
        return Header("X-Auth-Token", read)

    def _check_offer(self, deadline: Deadline) -> None:
        if at(self._api.get(self._offer, deadline), "subscription_period") != self._settings.billing:
            raise ProviderRefused(f"machine_type is not {self._settings.billing}: nothing was ordered")

    def _order(self, mark: str, key: str) -> dict[str, Any]:
        chosen, install = self._settings, self._reinstallation(mark, key)[1]
        what = {"offer_id": chosen.machine_type, "project_id": chosen.project, "install": install}
        return {"name": mark, "description": "", "tags": [mark], **what}

    def _reinstallation(self, mark: str, key: str) -> Action:
        return "install", {"os_id": self._settings.os, "hostname": mark, "ssh_key_ids": [key]}

    def _new_key(self, name: str, line: str) -> dict[str, Any]:
        return {**super()._new_key(name, line), "project_id": self._settings.project}


build = ScalewayProvider
