"""Dedicated servers of Cherry Servers: those of a project with a mark of our fleet in a tag."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from shepherd_core.domain.machine import ProviderStatus
from shepherd_core.providers.kit.api_object import ApiObject, MachineAddress, NumberId, Text, found_at
from shepherd_core.providers.kit.hosting import Facts, HostedKey, HostedServer, HostingProvider, KeyStore
from shepherd_core.providers.kit.http import segment
from shepherd_core.providers.kit.paging import Offsets

if TYPE_CHECKING:
    from shepherd_core.providers.kit.context import ProviderContext
    from shepherd_core.providers.kit.hosting import Action
    from shepherd_core.settings.providers.cherryservers import CherryserversSettings

_STATUS = {
    # The state, and the status of the deployment, which says more.
    **dict.fromkeys(("pending", "provisioning", "deploying"), ProviderStatus.PROVISIONING),
    **dict.fromkeys(("active", "deployed", "allocated"), ProviderStatus.RUNNING),  # or off: the answer does not tell
    "failed deployment": ProviderStatus.PROVISIONING_FAILED_PERMANENT,
    "terminating": ProviderStatus.MISSING,
}
_TAG = "shepherd"


class CherryAddress(ApiObject):
    """One address of a server."""

    address: MachineAddress
    type: str = ""


class CherryserversServer(HostedServer):
    """One server."""

    id: NumberId
    status: str = found_at("state")
    deployment: str = found_at("status", "")
    tags: dict[str, str]
    ips: tuple[CherryAddress, ...] = found_at("ip_addresses", ())
    region: Text | None = found_at("region.slug", None)
    project: NumberId | None = found_at("project.id", None)

    def facts(self) -> Facts:
        """See ``HostedServer``."""
        return Facts(
            marks=[self.tags.get(_TAG)],
            addresses=[ip.address for ip in self.ips if ip.type == "primary-ip"],
            location=self.region,
            project=self.project,
            stages=() if self.status == "terminating" else (self.deployment,),
            tags=self.tags.items(),
        )


class CherryserversKey(HostedKey):
    """One SSH key."""

    id: NumberId
    name: Text | None = found_at("label", None)
    public_key: str = found_at("key")
    created_at: str | None = found_at("created", None)


class CherryserversProvider(HostingProvider):
    """The servers of the fleet in a project, and as many more as the limit allows."""

    name = "cherryservers"
    statuses = _STATUS
    server = CherryserversServer
    paging = Offsets(entries="")
    restart = ("actions", {"type": "reboot"})
    _settings: CherryserversSettings

    def __init__(self, settings: CherryserversSettings, context: ProviderContext) -> None:
        orders = f"/projects/{segment(settings.project)}/servers"
        keys = KeyStore(path="/ssh-keys", key=CherryserversKey, paging=self.paging)
        super().__init__(settings, context, settings.fleet, orders=orders, keys=keys)

    def _order(self, mark: str, key: str) -> dict[str, Any]:
        what = {"plan": self._settings.machine_type, "region": self._settings.location, "tags": {_TAG: mark}}
        return {**what, **self._installed(mark, key)}

    def _reinstallation(self, mark: str, key: str) -> Action:
        # A password is required; nobody is to know it. It must have a capital, and end with a letter.
        password = f"xA{secrets.token_hex(12)}x"
        return "actions", {"type": "reinstall", "password": password, **self._installed(mark, key)}

    def _installed(self, mark: str, key: str) -> dict[str, Any]:
        return {"hostname": mark, "image": self._settings.os, "ssh_keys": [key]}

    def _new_key(self, name: str, line: str) -> dict[str, Any]:
        return {"label": name, "key": line}


build = CherryserversProvider
